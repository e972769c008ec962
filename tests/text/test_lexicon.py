"""Compiled code finds the very words that Python's patterns find, on any number of threads."""

import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import DataError
from longtail.runtime.parallel import set_threads
from longtail.text import lexicon
from longtail.text.letters import N_CHARACTERS, UNSURE, letters_of
from longtail.text.lexicon import MANY_TEXTS, Lexicon, learn_words
from longtail.text.words import WordReader, check_texts

READERS = [
    WordReader(),
    WordReader(lowercase=False),
    WordReader(strip_accents=True),
    WordReader(lowercase=False, strip_accents=True),
    WordReader(single_characters=True),
    WordReader(single_characters=True, limit=2),
]
# What the rules speak of: tails, marks, letters that join, scripts without blanks, emoji, flags.
SPECIAL = (
    "aB9_+# \n\x00é#’…²™ǅßẞİΣσıſKÅﬁ½＋＃中かカ한ภาक्षि❤✌🏽🎉🇫🇮\ufe0f\u0301\u0323\u0345\u1161\u200d"  # noqa: RUF001
)
TEXTS = st.lists(
    st.text(alphabet=st.one_of(st.sampled_from(SPECIAL), st.characters()), max_size=12),
    min_size=1,
    max_size=8,
)


def words_of(found: Lexicon, starts: np.ndarray, ids: np.ndarray) -> list[list[str]]:
    names = [*found.words, "?"]
    return [[names[i] for i in ids[a:b]] for a, b in pairwise(starts.tolist())]


@pytest.mark.parametrize("reader", READERS)
@settings(deadline=None, max_examples=150)
@given(texts=TEXTS)
def test_words_are_those_of_the_plain_reader(reader: WordReader, texts: list[str]) -> None:
    expected = [reader.find(text) for text in texts]
    for copies in (1, MANY_TEXTS):  # by Python where it is not ASCII; by the table
        read = learn_words(texts * copies, reader)
        assert words_of(read.lexicon, read.starts, read.ids) == expected * copies
        held = Counter(word for words in expected for word in set(words))
        assert read.held.tolist() == [held[word] * copies for word in read.lexicon.words]
        some = Lexicon.of(read.lexicon.words[::2])
        found = words_of(some, *some.look_up(texts * copies, reader, -1))
        known = set(some.words)
        assert found == [[word if word in known else "?" for word in w] for w in expected] * copies
    for text, words in zip(texts, expected, strict=True):
        assert words_of(some, *some.look_up([text], reader, -1))[0] == [
            word if word in known else "?" for word in words
        ]


@pytest.mark.parametrize("reader", READERS[:5])
def test_every_single_character_between_letters(reader: WordReader) -> None:
    texts = [f"a{chr(code)}b {chr(code)}# A{chr(code)}++" for code in range(0x80, 0x20000)]
    read = learn_words(texts, reader)
    expected = [reader.find(text) for text in texts]
    assert words_of(read.lexicon, read.starts, read.ids) == expected


def test_hardly_any_character_is_unsure() -> None:
    kinds = letters_of(WordReader()).kinds
    assert (kinds[:0x250] == UNSURE).sum() == 1  # İ
    assert (kinds[0x400:0x530] == UNSURE).sum() == 0  # Cyrillic
    assert (kinds == UNSURE).mean() < 0.05
    assert len(kinds) == N_CHARACTERS < sys.maxunicode


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_the_result_does_not_depend_on_threads_or_pieces(n_threads, monkeypatch) -> None:
    texts = ["C++ and c#", "c+ c### c#x", "", "A_b 42", "Ünknown wörds ΣΑΣ", "\x00\x7f!?"] * 50
    reader = WordReader()
    whole = learn_words(texts, reader)
    known = Lexicon.of(["c++", "wörds", "σας"])
    expected = known.look_up(texts, reader, -1)
    monkeypatch.setattr(lexicon, "PIECE", 7)
    set_threads(n_threads)
    try:
        read, found = learn_words(texts, reader), known.look_up(texts, reader, -1)
    finally:
        set_threads(None)
    for got, wanted in zip(
        (*read[1:], *read.lexicon[:2]), (*whole[1:], *whole.lexicon[:2]), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert set(found[1].tolist()) == {-1, 0, 1, 2}


def test_many_words_make_the_tables_grow() -> None:
    words = [f"w{i}" for i in range(5000)]
    read = learn_words([" ".join(words), *words], WordReader())
    assert read.lexicon.words == words
    assert read.held.tolist() == [2] * 5000
    assert read.lexicon.find(["w0", "w4999", "w5000"], -1).tolist() == [0, 4999, -1]
    taken = read.lexicon.take(np.array([7, 3]))
    assert taken.words == ["w7", "w3"]
    assert taken.find(["w3"], -1).tolist() == [1]
    assert taken.find([], -1).tolist() == []


def test_a_word_that_is_none_is_never_found() -> None:
    known = Lexicon.of(["a", "b\nc", "é", ""])
    assert known.n_words == 4
    assert known.find(["é", "b", "c", "a"], -1).tolist() == [2, -1, -1, 0]


def test_nothing_to_read() -> None:
    for texts in ([], [""], ["", "!!"]):
        read = learn_words(texts, WordReader())
        assert (read.lexicon.n_words, read.starts.tolist()) == (0, [0] * (len(texts) + 1))
        starts, ids = Lexicon.of([]).look_up(texts, WordReader(), -1)
        assert (starts.tolist(), len(ids)) == ([0] * (len(texts) + 1), 0)
        assert (starts.dtype, ids.dtype) == (np.int64, np.int32)


def test_what_is_no_text_is_named() -> None:
    for texts in (["a", None], iter(["a", None])):
        with pytest.raises(DataError, match="Got NoneType for document 1, counted from 0"):
            check_texts(texts)
    with pytest.raises(DataError, match="Got one str"):
        check_texts("a")
