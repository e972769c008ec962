"""Tokens: what a word is, which are kept, and that no text is too odd."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.errors import DataError, LongtailError, NotFittedError, ParameterError
from longtail.runtime.mapped import Texts as MappedTexts
from longtail.runtime.store import Files
from longtail.text.tokens import PADDING, UNKNOWN, TokenRows, Tokens

TEXTS = ["Beer and wine", "beer, beer!", "", "wine and Brot"]


def words_in(text):
    """Return the words of a text as Tokens reads them."""
    tokens = Tokens().fit([text])
    return [tokens.words_[token] for token in tokens.encode([text]).tokens]


# ------------------------------------------------------------------------------------------ words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Beer, BREAD\nand\twine", ["beer", "bread", "and", "wine"]),
        ("one", ["one"]),
        ("C, C++ and C# (not ##)", ["c", "c++", "and", "c#", "not"]),
        ("Käse, Ääkköset ja Ångström", ["käse", "ääkköset", "ja", "ångström"]),
        ("A\u030angstro\u0308m", ["ångström"]),
        ("東京タワーへ", ["東", "京", "タワー", "へ"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("หมา", ["ห", "ม", "า"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("שלום, عَالَم", ["שלום", "عَالَم"]),
        ("\u202eabc\u202c \u200fdef", ["abc", "def"]),
        ("good 👍🏽😀 🇫🇮🇸🇪", ["good", "👍", "😀", "🇫🇮", "🇸🇪"]),
        ("a\0b\x07c\x1b[0m", ["a", "b", "c", "0m"]),
        ("half \ud83d a pair", ["half", "a", "pair"]),
    ],
)
def test_what_a_word_is(text, words):
    assert words_in(text) == words


def test_ids_by_documents_then_by_word():
    tokens = Tokens().fit(TEXTS)
    assert tokens.words_ == ["<padding>", "<unknown>", "and", "beer", "wine", "brot"]
    assert tokens.n_words_ == 6
    rows = tokens.encode(["wine and cider", "", "Brot"])
    assert rows.tokens.tolist() == [4, 2, UNKNOWN, 5]
    assert rows.start.tolist() == [0, 3, 3, 4]
    assert (rows.tokens.dtype, rows.start.dtype) == (np.int32, np.int64)


def test_learning_gives_the_rows_that_encoding_gives():
    tokens = Tokens(max_words=2)
    learned, encoded = tokens.fit_encode(TEXTS), tokens.encode(TEXTS)
    for a, b in zip(learned, encoded, strict=True):
        np.testing.assert_array_equal(a, b)
    assert learned.tokens.tolist() == [3, 2, UNKNOWN, 3, 3, UNKNOWN, 2, UNKNOWN]


def test_only_the_commonest_words_are_kept():
    assert Tokens(max_words=2).fit(TEXTS).words_[2:] == ["and", "beer"]
    assert Tokens(min_documents=2).fit(TEXTS).words_[2:] == ["and", "beer", "wine"]


def test_texts_are_cut():
    tokens = Tokens(max_length=2).fit(["a b c", "d"])
    assert tokens.words_[2:] == ["a", "b", "d"]
    assert tokens.encode(["a b a b", "b a"]).tokens.tolist() == [2, 3, 3, 2]
    assert tokens.spans("b a d") == [(0, 1, 3), (2, 3, 2)]


def test_words_with_wide_gaps_in_between_are_found():
    tokens = Tokens(max_length=4).fit(["a b c d"])
    assert tokens.encode(["a" + " " * 5000 + "b" + "." * 90_000 + "c"]).tokens.tolist() == [2, 3, 4]


def test_a_word_on_the_edge_of_a_part_is_whole():
    tokens = Tokens(max_length=2).fit(["abc defgh"])
    for gap in range(1, 70):
        text = "abc" + " " * gap + "defgh " + "x" * 100
        assert tokens.encode([text]).tokens.tolist() == [2, 3]


def test_where_the_words_stand():
    tokens = Tokens().fit(["drink wine"])
    text = "Drink İstanbul's  WINE"
    named = [(text[begin:end], token) for begin, end, token in tokens.spans(text)]
    assert named == [("Drink", 2), ("İstanbul", UNKNOWN), ("s", UNKNOWN), ("WINE", 3)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text() | st.text(alphabet="aÅΣΩς'.c+#é\u0301東😀🇫\ud800\0 ")))
def test_every_string_has_words_and_places(texts):
    tokens = Tokens(max_length=7).fit(["a c c++", *texts])
    rows = tokens.encode(texts)
    for i, text in enumerate(texts):
        found = rows.tokens[rows.start[i] : rows.start[i + 1]].tolist()
        assert UNKNOWN not in found
        assert [token for _, _, token in tokens.spans(text)] == found


# -------------------------------------------------------------------------------------- odd texts


def test_of_a_million_words_the_first_are_read():
    text = "word " * 1_000_000
    tokens = Tokens().fit(["word", text])
    assert tokens.words_[2:] == ["word"]
    assert tokens.encode([text]).lengths.tolist() == [500]
    assert len(tokens.spans(text)) == 500


def test_a_word_longer_than_any_is_unknown():
    tokens = Tokens().fit(["x" * 1_000_000 + " y"])
    assert tokens.words_[2:] == ["y"]
    assert tokens.encode(["x" * 1_000_000 + " y"]).tokens.tolist() == [UNKNOWN, 2]


def test_only_unknown_words():
    assert Tokens().fit(["a"]).encode(["b c"]).tokens.tolist() == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("text", ["", " \t\n", "\0\x01\x7f", "...", "\ud800", "\u200f\u202e"])
def test_texts_without_a_word(text):
    tokens = Tokens().fit(["a", text])
    assert tokens.encode([text]).lengths.tolist() == [0]
    assert tokens.spans(text) == []
    ids, lengths = tokens.encode([text]).pad(np.array([0]))
    assert (ids.tolist(), lengths.tolist()) == ([[PADDING]], [0])


def test_no_word_at_all():
    with pytest.raises(DataError) as caught:
        Tokens().fit(["", "\0"])
    assert str(caught.value) == (
        "there is not a single word in the 2 texts; "
        "check that the right file and the right column were read"
    )


def test_no_word_is_common_enough():
    with pytest.raises(DataError) as caught:
        Tokens(min_documents=3).fit(["a", "b"])
    assert str(caught.value) == (
        "no word occurs in at least 3 of the 2 texts; choose a lower min_documents"
    )


def test_what_is_no_list_of_texts():
    with pytest.raises(DataError, match=r"^texts must be a list of strings. Got one str.$"):
        Tokens().fit("one text")
    with pytest.raises(DataError, match="Got NoneType for document 1, counted from 0"):
        Tokens().fit(["a", None])


@pytest.mark.parametrize("name", ["max_words", "min_documents", "max_length"])
@pytest.mark.parametrize("value", [0, 2.5, True, None])
def test_settings_out_of_range(name, value):
    with pytest.raises(ParameterError) as caught:
        Tokens(**{name: value}).fit(["a"])
    assert str(caught.value) == (
        f"The '{name}' parameter of Tokens must be a whole number of at least 1. "
        f"Got {value!r} instead."
    )


def test_nothing_is_learned_yet():
    with pytest.raises(NotFittedError, match="have not learned any words yet; call fit first"):
        Tokens().encode(["a"])


# ------------------------------------------------------------------------------------ model files


def test_saved_and_loaded_it_reads_the_same():
    tokens = Tokens(max_words=3, max_length=4).fit(TEXTS)
    files = Files()
    tokens.to_files(files)
    loaded = check_and_open(files)
    assert (loaded.words_, loaded.max_length) == (tokens.words_, 4)
    np.testing.assert_array_equal(loaded.encode(TEXTS).tokens, tokens.encode(TEXTS).tokens)


@pytest.mark.parametrize(
    ("config", "words", "reason"),
    [
        ({}, ["a"], "padding and the unknown word do not lead"),
        ({}, ["<padding>", "<unknown>", "a", "a"], "two of the words are the same"),
        ({"type": "pieces"}, ["<padding>", "<unknown>"], "tokens.type must be 'words'"),
        ({"max_length": -1}, ["<padding>", "<unknown>"], "tokens.max_length must be at least 1"),
        ({"colour": 1}, ["<padding>", "<unknown>"], "config.json must not have tokens.colour"),
        (None, ["<padding>", "<unknown>"], "tokens must be a group of values"),
    ],
)
def test_files_that_cannot_be_used(config, words, reason):
    files = Files()
    Tokens().fit(TEXTS).to_files(files)
    files.texts["words"] = words
    files.config["tokens"] = None if config is None else {**files.config["tokens"], **config}
    with pytest.raises(ValueError, match=reason):
        check_and_open(files)


def check_and_open(files):
    Tokens.describe().check(files, {})
    Tokens.describe().check_names(files)
    return Tokens.from_files(files)


# ------------------------------------------------------------------------- batches and the disk


def test_a_batch_is_as_wide_as_its_longest_document():
    rows = Tokens().fit(["a b c"]).encode(["a", "a b c", "b c", ""])
    ids, lengths = rows.pad(np.array([2, 0, 3]))
    assert ids.tolist() == [[3, 4], [2, PADDING], [PADDING, PADDING]]
    assert lengths.tolist() == [2, 1, 0]
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int32)
    assert rows.pad(np.array([], np.int64))[0].shape == (0, 1)


def test_some_documents_alone():
    rows = Tokens().fit(["a b c"]).encode(["a", "a b c", "b c", ""])
    some = rows.take(np.array([2, 3, 0, 2]))
    assert some.start.tolist() == [0, 2, 2, 3, 5]
    assert some.tokens.tolist() == [3, 4, 2, 3, 4]
    assert rows.take(np.array([], np.int64)).n_documents == 0


def test_kept_rows_lie_on_the_disk_and_come_back(tmp_path, monkeypatch):
    first, again, other = Tokens(), Tokens(), Tokens(max_length=2)
    rows = first.fit_encode(TEXTS, tmp_path / "run" / "tokens")
    assert isinstance(rows.tokens.base, np.memmap)
    np.testing.assert_array_equal(rows.tokens, first.encode(TEXTS).tokens)
    with monkeypatch.context() as patch:
        patch.setattr(Tokens, "_learn", None)  # nothing is learned a second time
        np.testing.assert_array_equal(
            again.fit_encode(TEXTS, tmp_path / "run" / "tokens").tokens, rows.tokens
        )
    assert again.words_ == first.words_
    assert other.fit_encode(TEXTS, tmp_path / "run" / "tokens").lengths.max() == 2
    assert sorted(path.name for path in (tmp_path / "run" / "tokens").iterdir()) == [
        "start.npy",
        "tokens.npy",
        "words.json",
    ]


@pytest.mark.parametrize("name", ["start.npy", "tokens.npy", "words.json"])
@pytest.mark.parametrize("damage", [b"", b"not at all what was written", None])
def test_damaged_rows_are_made_anew(tmp_path, name, damage):
    expected = Tokens().fit_encode(TEXTS, tmp_path).tokens.tolist()
    if damage is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(damage)
    tokens = Tokens()
    assert tokens.fit_encode(TEXTS, tmp_path).tokens.tolist() == expected
    assert tokens.n_words_ == 6


def test_rows_that_do_not_fit_are_not_opened(tmp_path):
    TokenRows(np.array([0, 9]), np.array([2], np.int32)).save(tmp_path)
    with pytest.raises(ValueError, match="do not fit their documents"):
        TokenRows.open(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LongtailError, match="cannot keep tokens here: "):
        Tokens().fit_encode(TEXTS, tmp_path / "file" / "tokens")


def test_texts_in_a_file_become_the_same_tokens_in_a_file(monkeypatch):
    monkeypatch.setattr("longtail.text.lexicon.READ_TOGETHER", 200)
    texts = [f"word{i % 7} wörd{i % 13} 日本 {'x ' * (i % 5)}" for i in range(100)]
    in_memory, in_files = Tokens(max_length=5), Tokens(max_length=5)
    rows, mapped = in_memory.fit_encode(texts), in_files.fit_encode(MappedTexts.of(texts))
    assert in_files.words_ == in_memory.words_
    assert mapped.are_large
    assert not rows.are_large
    some = np.arange(3, 80, 4)
    for mine, others in ((mapped, rows), (mapped.take(some), rows.take(some))):
        np.testing.assert_array_equal(mine.start, others.start)
        np.testing.assert_array_equal(mine.tokens, others.tokens)
    assert mapped.take(some).are_large


def test_any_length_can_be_asked_for():
    """Of a stranger's model it may be a number that no machine counts with."""
    tokens = Tokens(max_length=10**30).fit(["beer and wine"])
    assert tokens.encode(["wine beer", "and"]).tokens.tolist() == [4, 3, 2]
