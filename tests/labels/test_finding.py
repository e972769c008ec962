"""Labels are found by their names, with typos, quickly."""

import tracemalloc

import numpy as np
import pytest

from longtail.labels.finding import compare, fold, fold_names, search
from longtail.labels.word_index import index_words, look_up

NAMES = ["beer", "Craft beer", "beers of Spain", "bear", "Bröt", "wine", "ale"]
LABELS = np.array([0, 1, 2, 3, 4, 5, 0], np.int32)  # ale is another name of beer
COUNTS = np.array([5, 9, 2, 50, 3, 1])


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("beer", [0, 2, 1, 3]),  # itself, begins so, a word, a typo away
        ("spain beer", [2]),
        ("beesr of spian", [2]),
        ("craft wine", []),
        ("?!", []),
        ("BEE", [0, 2, 1]),
        ("beex", [1, 0]),
        ("brot", [4]),
        ("ale", [0]),
        ("craft bere", [1]),
        ("wien", [5]),
        ("of", [2]),
        ("eer", []),
        ("be", [3, 0, 2, 1]),
        ("", []),
        ("xyz", []),
    ],
)
def test_the_best_comes_first(typed, found):
    assert search(fold_names(NAMES, LABELS), typed, COUNTS, 10) == found


@pytest.mark.parametrize("seed", range(5))
def test_a_word_index_finds_the_same(seed):
    rng = np.random.default_rng(seed)
    letters = list("abcde ¿ж-9")
    names = ["".join(rng.choice(letters, rng.integers(0, 22))) for _ in range(1500)]
    names += ["", " ", "a" * 100, "underwater basket", "under-water", "9" * 64]
    folded = fold_names(names, np.arange(len(names), dtype=np.int32))
    words = index_words(folded)
    typed = ["".join(rng.choice(letters, rng.integers(1, 16))) for _ in range(300)]
    typed += [
        "a" * 100,
        "undrwater baskt",
        "water",
        "-",
        "ж",
        "a¿ ¿b",
        "9" * 63,
        "under-w",
        "baskte",
    ]
    n_found = 0
    for each in typed:
        query = np.frombuffer(fold(each.strip()).encode(), np.uint8)
        if len(query):
            expected = compare(*folded[:3], query)
            assert np.array_equal(look_up(folded, words, query), expected), each
            n_found += (expected < 4).sum()
    assert n_found > 1000


def test_no_more_than_asked_for():
    assert search(fold_names(NAMES, LABELS), "beer", COUNTS, 2) == [0, 2]


def test_folding():
    assert fold("Ångström STRASSE ß") == "angstrom strasse ss"


def test_a_label_with_many_names_leaves_room_for_others():
    names = fold_names(
        [f"x{i}" for i in range(100)], np.array([*[0] * 90, *range(1, 11)], np.int32)
    )
    assert search(names, "x", np.array([99, *range(10)]), 3) == [0, 10, 9]


def test_line_breaks_in_names():
    names = fold_names(["a\nb", "c"], np.arange(2, dtype=np.int32))
    assert search(names, "c", np.ones(2), 5) == [1]


def test_a_million_names_are_searched():
    rng = np.random.default_rng(0)
    letters = rng.choice(list("abcdefghijklmnopqrstuvwxyz "), size=(1_000_000, 16))
    names = ["".join(row) for row in letters]
    names[777] = "underwater basket"
    folded = fold_names(names, np.arange(len(names), dtype=np.int32))
    counts = np.ones(len(names))
    assert 777 in search(folded, "underwater", counts, 5)
    assert 777 in search(folded, "undrwater baskt", counts, 5)
    assert len(search(folded, "abc", counts, 5)) == 5


def test_folding_takes_little_more_memory_than_the_names():
    names = [f"label number {i}" for i in range(200_000)]
    owners = np.arange(len(names), dtype=np.int32)
    fold_names(names[:2], owners[:2])  # compiles
    tracemalloc.start()
    folded = fold_names(names, owners)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert search(folded, "number 199999", np.zeros(len(names), np.int64), 1) == [199_999]
    assert peak < 1.6 * kept
