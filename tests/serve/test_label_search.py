import time

import numpy as np
import pytest

from longtail.serve.label_search import LabelSearch, count_slips

NAMES = ["Beer", "Beer glasses", "Ginger beer", "Brewing", "Sailing ships", "Élan", "straße", ""]
COUNTS = np.array([5, 9, 20, 3, 2, 1, 1, 0])


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("beer", ["Beer", "Beer glasses", "Ginger beer"]),
        ("be", ["Beer glasses", "Beer", "Ginger beer"]),
        ("gla", ["Beer glasses"]),
        ("beer ging", ["Ginger beer"]),
        ("bere", ["Ginger beer", "Beer glasses", "Beer"]),
        ("salling", ["Sailing ships"]),
        ("elan", ["Élan"]),
        ("STRASSE", ["straße"]),
        ("zzz", []),
        ("  ", []),
        ("?!", []),
    ],
)
def test_find(query, found):
    search = LabelSearch(NAMES, COUNTS)
    assert [NAMES[i] for i in search.find(query, 3)] == found


def test_one_label_is_found_once_and_n_is_the_most():
    search = LabelSearch(["ale", "ale house", "pale ale"], np.array([1, 2, 3]))
    assert search.find("ale", 10) == [0, 1, 2]
    assert search.find("ale", 2) == [0, 1]


@pytest.mark.parametrize(
    ("one", "other", "slips"),
    [
        ("beer", "beer", 0),
        ("bere", "beer", 1),
        ("ber", "beer", 1),
        ("bear", "beer", 1),
        ("", "ab", 2),
    ],
)
def test_count_slips(one, other, slips):
    assert count_slips(one, other) == count_slips(other, one) == slips


@pytest.mark.slow
def test_a_million_labels_are_searched_in_a_blink():
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnop"))
    words = np.array(["".join(row) for row in rng.choice(letters, (50_000, 6))])
    names = [" ".join(row) for row in rng.choice(words, (1_000_000, 3)).tolist()]
    search = LabelSearch(names, rng.integers(0, 1000, len(names)))
    for query in (names[17][:3], names[17], "x" + names[17][1:6]):
        began = time.process_time()
        search.find(query, 10)
        assert time.process_time() - began < 0.1
