"""Compiled code finds the very words in ASCII texts that Python's patterns find."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.runtime.parallel import set_threads
from longtail.text import ascii as ascii_words
from longtail.text.tokens import MANY_TEXTS, UNKNOWN, Tokens

LETTERS = st.text(alphabet="aB9_+# \n\x00é#’…\u0301²™", max_size=20)
TEXTS = ["C++ and c#", "c+ c### c#x", "", "A_b 42", "Ünknown wörds", "\x00\x7f!?"] * MANY_TEXTS


def read_plainly(tokens, texts):
    return tokens._reader.look_up(texts, tokens._ids, UNKNOWN)


@settings(deadline=None)
@given(st.lists(LETTERS, min_size=1, max_size=8), st.sampled_from([1, 2, 500]))
def test_words_are_those_of_the_plain_reader(texts, limit):
    tokens = Tokens(max_length=limit).fit([*texts, "word"])
    many = texts * MANY_TEXTS
    start, ids = read_plainly(tokens, many)
    rows = tokens.encode(many)
    np.testing.assert_array_equal(rows.start, start)
    np.testing.assert_array_equal(rows.tokens, ids)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_rows_do_not_depend_on_threads(n_threads, monkeypatch):
    monkeypatch.setattr(ascii_words, "TASK_BYTES", 50)
    tokens = Tokens().fit(["c++ and c#", "a_b wörds"])
    start, ids = read_plainly(tokens, TEXTS)
    set_threads(n_threads)
    try:
        rows = tokens.encode(TEXTS)
    finally:
        set_threads(None)
    np.testing.assert_array_equal(rows.start, start)
    np.testing.assert_array_equal(rows.tokens, ids)
    assert (rows.tokens > UNKNOWN).any()


def test_characters_that_only_separate_words_are_no_obstacle():
    assert ascii_words.simplify("it’s “so” – done…") == "it s  so    done "
    assert ascii_words.simplify("naïve") is None
    assert ascii_words.simplify("a²") is None
    assert ascii_words.simplify(b"bytes") is None


def test_texts_without_any_ascii_or_any_letter():
    tokens = Tokens().fit(["wörd"])
    for text in ("wörd", "", "!!"):
        many = [text] * MANY_TEXTS
        start, ids = read_plainly(tokens, many)
        rows = tokens.encode(many)
        np.testing.assert_array_equal(rows.start, start)
        np.testing.assert_array_equal(rows.tokens, ids)
