import gzip
import json
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from longtail.errors import DataError, NotFittedError, ParameterError
from longtail.runtime.store import Files, read_folder, write_folder
from longtail.text.tfidf import Tfidf
from longtail.text.words import word_pattern

SHARED = Path(__file__).parents[3] / "shared" / "data"

TEXTS = [
    "Brewing beer at home: the beer book",
    "Käse und Bier, Bier und Käse",
    "C, C++ and C# for the home brewer",
    "",
    "the home of the brave; THE HOME",
    "Élève à l'école — naïve cafés №5",
    "हिन्दी की पुस्तक",
]


def assert_same(got: sp.csr_matrix, expected: sp.csr_matrix) -> None:
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got.indptr, expected.indptr)
    np.testing.assert_array_equal(got.indices, expected.indices)
    np.testing.assert_array_equal(got.data, expected.data)


def assert_as_scikit_learn(texts: list[str], ngrams: int, min_df: int) -> None:
    """Compare rows and terms with TfidfVectorizer's on texts in composed form."""
    texts = [unicodedata.normalize("NFC", text.lower()) for text in texts]
    ours = Tfidf(ngrams=ngrams, min_df=min_df, min_pair_df=min_df, pair_weight=1, beginnings=0)
    theirs = TfidfVectorizer(
        sublinear_tf=True,
        ngram_range=(1, ngrams),
        min_df=min_df,
        token_pattern=word_pattern().pattern,
        dtype=np.float32,
    )
    got, expected = ours.fit_transform(texts), theirs.fit_transform(texts)
    order = [theirs.vocabulary_[term] for term in ours.feature_names_]
    assert sorted(order) == list(range(len(theirs.vocabulary_)))
    moved = expected[:, order].tocsr()
    moved.sort_indices()
    np.testing.assert_array_equal(got.indptr, moved.indptr)
    np.testing.assert_array_equal(got.indices, moved.indices)
    np.testing.assert_allclose(got.data, moved.data, rtol=1e-6)
    assert_same(ours.transform(texts), got)


def read_shared_texts(n_texts: int) -> list[str]:
    if not SHARED.is_dir():
        pytest.skip("needs the data sets in ../shared/data")
    with gzip.open(SHARED / "yso" / "train.jsonl.gz", "rt", encoding="utf-8") as lines:
        titles = [json.loads(line)["text"] for line, _ in zip(lines, range(n_texts), strict=False)]
    path = SHARED / "stackexchange" / "train_texts.txt.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        questions = [line for line, _ in zip(lines, range(n_texts // 10), strict=False)]
    return titles + questions


# The rows


@pytest.mark.parametrize(("ngrams", "min_df"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_rows_are_those_of_scikit_learn(ngrams: int, min_df: int) -> None:
    assert_as_scikit_learn(TEXTS, ngrams, min_df)


@pytest.mark.parametrize(("ngrams", "min_df"), [(1, 1), (2, 2)])
def test_rows_are_those_of_scikit_learn_on_real_texts(ngrams: int, min_df: int) -> None:
    assert_as_scikit_learn(read_shared_texts(5000), ngrams, min_df)


@given(st.lists(st.text(alphabet="abä ́#+.\n"), min_size=1))
@settings(max_examples=100, deadline=None)
def test_rows_are_those_of_scikit_learn_on_any_text(texts: list[str]) -> None:
    assert_as_scikit_learn([*texts, "at least one word"], ngrams=2, min_df=1)


def test_weights_by_hand() -> None:
    X = Tfidf(ngrams=1).fit_transform(["beer beer wine", "beer", "x"]).toarray()
    beer = (1 + np.log(2)) * (np.log(4 / 3) + 1)
    wine = np.log(4 / 2) + 1
    expected = np.array([beer, wine]) / np.hypot(beer, wine)
    np.testing.assert_allclose(X[0], [*expected, 0], rtol=1e-6)
    np.testing.assert_allclose(X[1], [1, 0, 0])


def test_one_by_one_equals_the_batch() -> None:
    texts = [*TEXTS, "word " * 5000, *map(" ".join, zip("abcdefgh" * 40, "hgfe" * 80, strict=True))]
    tfidf = Tfidf(min_pair_df=1)
    X = tfidf.fit_transform(texts)
    assert_same(sp.vstack([tfidf.transform([text]) for text in texts], format="csr"), X)


def test_a_pair_counts_half_unless_asked():
    texts = ["pale ale", "pale ale", "pale malt"]
    whole, half = (Tfidf(ngrams=2, pair_weight=w).fit(texts) for w in (1.0, 0.5))
    assert half.feature_names_ == ["ale", "malt", "pale", "pale ale"]
    np.testing.assert_allclose(half.idf_ / whole.idf_, [1, 1, 1, 0.5])
    row = half.transform(["pale ale"]).toarray().ravel()
    np.testing.assert_allclose(row[3] / row[0], 0.5)  # both stand in as many texts
    np.testing.assert_allclose(Tfidf(ngrams=2).fit(texts).idf_, half.idf_)


def list_terms(text: str) -> list[str]:
    """Return the words of a text, and the beginnings of the longer ones."""
    words = word_pattern().findall(unicodedata.normalize("NFC", text.lower()))
    return words + [f"{word[:n]}…" for word in words for n in (4, 6) if len(word) > n]


def assert_beginnings_as_scikit_learn(texts: list[str], new: list[str]) -> None:
    """Compare rows, also of texts that nothing was learned from, with TfidfVectorizer's."""
    held = Counter(term for text in texts for term in set(list_terms(text)))
    known = sorted(term for term, n in held.items() if n > 1 or not term.endswith("…"))
    ours = Tfidf(ngrams=1, beginnings=1)
    theirs = TfidfVectorizer(
        analyzer=list_terms, vocabulary=known, sublinear_tf=True, dtype=np.float32
    )
    got, expected = ours.fit_transform(texts), theirs.fit_transform(texts)
    assert sorted(ours.feature_names_) == known
    order = [known.index(term) for term in ours.feature_names_]
    for rows, wanted in ((got, expected), (ours.transform(new), theirs.transform(new))):
        np.testing.assert_allclose(rows.toarray(), wanted[:, order].toarray(), rtol=1e-6, atol=1e-7)
    assert_same(ours.transform(texts), got)


def test_beginnings_are_counted_in_known_and_unknown_words() -> None:
    texts = [
        *TEXTS,
        "farmers farming farmland",
        "a farmer brews käsekuchen, käsebrot",
        "beerengarten",
    ]
    assert_beginnings_as_scikit_learn(texts, [*TEXTS, "farmhouses, brewers", "käsestücke farm"])


@given(st.lists(st.text("aabcß é", max_size=40), min_size=2, max_size=6))
@settings(max_examples=100, deadline=None)
def test_beginnings_are_those_of_any_text(texts: list[str]) -> None:
    half = len(texts) // 2
    assert_beginnings_as_scikit_learn([*texts[:half], "aaaaa", "aaaaab ababab"], texts[half:])


def test_a_beginning_counts_half_unless_asked() -> None:
    texts = ["farmers", "farming", "beer"]
    whole, half = (Tfidf(beginnings=w).fit(texts) for w in (1.0, 0.5))
    assert whole.feature_names_ == ["beer", "farmers", "farming", "farm…"]
    np.testing.assert_allclose(half.idf_[:3], whole.idf_[:3])
    np.testing.assert_allclose(half.idf_[3], 0.5 * whole.idf_[3])


def test_a_word_that_is_not_kept_still_begins_like_others() -> None:
    texts = ["farmers beer", "farming beer", "farmland"]
    tfidf = Tfidf(min_df=2)
    rows = tfidf.fit_transform(texts)
    assert tfidf.feature_names_ == ["beer"]  # beginnings are those of words that are kept
    tfidf = Tfidf(ngrams=1, max_features=2)
    rows = tfidf.fit_transform(texts)
    assert tfidf.feature_names_ == ["beer", "farm…"]
    assert rows[2].indices.tolist() == [1]
    assert_same(tfidf.transform(texts), rows)
    assert tfidf.locate("Farmhouse beer") == {0: [(10, 14)], 1: [(0, 9)]}


def test_rows_have_the_form_that_models_expect() -> None:
    X = Tfidf().fit_transform(TEXTS)
    assert isinstance(X, sp.csr_matrix)
    assert (X.dtype, X.indices.dtype, X.indptr.dtype) == (np.float32, np.int32, np.int32)
    assert all((np.diff(X[row].indices) > 0).all() for row in range(len(TEXTS)))
    norms = np.sqrt(X.multiply(X).sum(axis=1).A1)
    np.testing.assert_allclose(norms, [1, 1, 1, 0, 1, 1, 1], rtol=1e-6)


def test_texts_without_a_known_word_have_empty_rows() -> None:
    tfidf = Tfidf().fit(TEXTS)
    X = tfidf.transform(["", "unheard", "... !", "beer"])
    assert np.diff(X.indptr).tolist() == [0, 0, 0, 1]
    assert tfidf.transform([]).shape == (0, tfidf.n_features_)
    assert tfidf.transform([""]).shape == (1, tfidf.n_features_)


def test_any_iterable_of_strings_will_do() -> None:
    tfidf = Tfidf().fit(iter(TEXTS))
    assert_same(tfidf.transform(np.array(TEXTS)), tfidf.transform(tuple(TEXTS)))


def test_a_copy_has_the_settings_and_nothing_learned() -> None:
    copy = Tfidf(ngrams=1, max_features=7).fit(TEXTS).copy()
    assert (copy.ngrams, copy.max_features) == (1, 7)
    with pytest.raises(NotFittedError):
        copy.transform(TEXTS)


# Words and pairs


def words_of(text: str, **settings: object) -> list[str]:
    return Tfidf(**settings)._reader.find(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("C, C++11 and C#!", ["c", "c++", "11", "and", "c#"]),
        ("r 2 x_y node.js", ["r", "2", "x_y", "node", "js"]),
        ("page#top ### a++ #5", ["page", "top", "a++", "5"]),
        ("Yö, ÄITI ja Œuvre", ["yö", "äiti", "ja", "œuvre"]),
        ("cafe\u0301 café", ["café", "café"]),
        ("l'été wie groß", ["l", "été", "wie", "groß"]),
        ("हिन्दी", ["हिन्दी"]),
        ("İstanbul", ["i\u0307stanbul"]),
        ("\x00 \ud800 \n", []),
    ],
)
def test_what_a_word_is(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_case_and_accents_are_settings() -> None:
    assert words_of("Käse CAFÉ", lowercase=False) == ["Käse", "CAFÉ"]
    assert words_of("Käse CAFÉ cafe\u0301 ﬁn", accents="strip") == ["kase", "cafe", "cafe", "fin"]


def test_pairs_do_not_cross_documents_nor_unknown_words() -> None:
    tfidf = Tfidf(min_df=2, min_pair_df=1).fit(["a b", "", "c d", "b a", "c d", "a rare b"])
    assert tfidf.feature_names_ == ["a", "b", "c", "d", "a b", "b a", "c d"]
    assert tfidf.transform(["a rare b"]).indices.tolist() == [0, 1]
    assert tfidf.transform(["a", "b", "c a", "b"]).indices.tolist() == [0, 1, 0, 2, 1]


def test_document_frequencies_decide_which_terms_are_kept() -> None:
    texts = ["a b a b", "a c", "a b"]
    assert Tfidf(ngrams=1).fit(texts).feature_names_ == ["a", "b", "c"]
    assert Tfidf(ngrams=1, min_df=2).fit(texts).feature_names_ == ["a", "b"]
    assert Tfidf().fit(texts).feature_names_ == ["a", "b", "c", "a b"]
    assert Tfidf(min_pair_df=1).fit(texts).feature_names_ == [
        *("a", "b", "c"),
        *("a b", "a c", "b a"),
    ]


@pytest.mark.parametrize("max_features", [1, 2, 3, 4, 5, 6, 100])
def test_max_features_keeps_the_commonest(max_features: int) -> None:
    texts = ["x y x y x", "z a", "x y z", "z"]
    full = Tfidf(min_pair_df=1).fit(texts)
    assert full.feature_names_ == ["a", "x", "y", "z", "x y", "y x", "y z", "z a"]
    cut = Tfidf(min_pair_df=1, max_features=max_features).fit(texts)
    by_count = ["x", "y", "z", "x y", "y x", "a", "y z", "z a"][:max_features]
    assert cut.feature_names_ == [name for name in full.feature_names_ if name in by_count]
    kept = [full.feature_names_.index(name) for name in cut.feature_names_]
    np.testing.assert_array_equal(cut.idf_, full.idf_[kept])
    assert_same(cut.fit_transform(texts), cut.transform(texts))


# Bad input


@pytest.mark.parametrize(("bad", "kind"), [(None, "NoneType"), (b"x", "bytes"), (3.5, "float")])
def test_what_is_not_a_string_is_named(bad: object, kind: str) -> None:
    message = (
        f"texts must be strings. Got {kind} for document 1, counted from 0; "
        "write a document without text as an empty string"
    )
    for call in (Tfidf().fit, Tfidf().fit(TEXTS).transform):
        with pytest.raises(DataError) as caught:
            call(["beer", bad])  # type: ignore[list-item]
        assert str(caught.value) == message


def test_one_string_is_not_a_list_of_strings() -> None:
    with pytest.raises(DataError) as caught:
        Tfidf().fit("one text")
    assert str(caught.value) == "texts must be a list of strings. Got one str."


@pytest.mark.parametrize("texts", [[], ["", " ", "..."]])
def test_texts_without_words(texts: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        Tfidf().fit(texts)
    assert str(caught.value) == (
        f"there is not a single word in the {len(texts)} texts; "
        "check that the right file and the right column were read"
    )


def test_too_high_a_min_df() -> None:
    with pytest.raises(DataError) as caught:
        Tfidf(min_df=3).fit(["a b", "b c"])
    assert str(caught.value) == (
        "no word occurs in at least 3 of the 2 texts; choose a lower min_df"
    )


def test_transform_before_fit() -> None:
    for call in (lambda: Tfidf().transform(["a"]), lambda: Tfidf().to_files(Files())):
        with pytest.raises(NotFittedError) as caught:
            call()
        assert str(caught.value) == "this Tfidf has not learned any terms yet; call fit first"
    with pytest.raises(NotFittedError):
        _ = Tfidf().n_features_


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ngrams": 3}, "The 'ngrams' parameter of Tfidf must be 1 or 2, or none. Got 3 instead."),
        (
            {"accents": "x"},
            "The 'accents' parameter of Tfidf must be 'keep' or 'strip'. Got 'x' instead.",
        ),
        (
            {"min_df": 0},
            "The 'min_df' parameter of Tfidf must be at least 1. Got 0 instead.",
        ),
        (
            {"max_features": 0.5},
            "The 'max_features' parameter of Tfidf must be a whole number or none. "
            "Got 0.5 instead.",
        ),
    ],
)
def test_wrong_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        Tfidf(**settings).fit(TEXTS)  # type: ignore[arg-type]
    assert str(caught.value) == message


# Storing


@pytest.mark.parametrize(
    "settings",
    [{}, {"ngrams": 1}, {"accents": "strip", "lowercase": False}, {"max_features": 9}],
)
def test_loaded_rows_are_the_same_to_the_last_bit(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    tfidf = Tfidf(**settings)  # type: ignore[arg-type]
    X = tfidf.fit_transform(TEXTS)
    files = Files()
    tfidf.to_files(files)
    write_folder(tmp_path / "m", files)
    loaded = check_and_open(read_folder(tmp_path / "m"))
    assert loaded._settings() == tfidf._settings()
    assert loaded.feature_names_ == tfidf.feature_names_
    assert_same(loaded.transform(TEXTS), X)
    assert loaded.transform(TEXTS).data.tobytes() == X.data.tobytes()


def stored() -> Files:
    files = Files()
    Tfidf(min_pair_df=1).fit(["a b", "b c"]).to_files(files)
    assert files.texts["vocabulary"] == ["a", "b", "c"]
    assert files.arrays["features.pairs.start"].tolist() == [0, 1, 2, 2]
    assert files.arrays["features.pairs.second"].tolist() == [1, 2]
    return files


@pytest.mark.parametrize("words", [[], ["a", "b"], ["a", "b", "c", "d"], ["a", "a", "c"]])
def test_a_damaged_vocabulary_is_refused(words: list[str]) -> None:
    files = stored()
    files.texts["vocabulary"] = words
    with pytest.raises(ValueError, match=r"vocabulary|n_words"):
        check_and_open(files)


@pytest.mark.parametrize(
    ("start", "second", "message"),
    [
        ([0, 1, 2], [1, 2], "n_words"),
        ([0, 2, 1, 2], [1, 2], "start must hold rising"),
        ([0, 1, 2, 3], [1, 2], "start must hold rising"),
        ([0, 1, 2, 2], [1, 3], "second must hold whole numbers"),
        ([0, 1, 2, 2], [1, -1], "second must hold whole numbers"),
        ([0, 2, 2, 2], [2, 1], "pairs must be in order"),
        ([0, 2, 2, 2], [1, 1], "pairs must be in order"),
        ([0, 1, 2, 3], [1, 2, 0], "a number for each word, pair"),
        ([0, 0, 0, 0], [], "a number for each word, pair"),
    ],
)
def test_damaged_pairs_are_refused(start: list[int], second: list[int], message: str) -> None:
    files = stored()
    files.arrays["features.pairs.start"] = np.array(start, np.int64)
    files.arrays["features.pairs.second"] = np.array(second, np.int32)
    with pytest.raises(ValueError, match=message):
        check_and_open(files)


def check_and_open(files: Files) -> Tfidf:
    Tfidf.describe().check(files, {})
    Tfidf.describe().check_names(files)
    return Tfidf.from_files(files)


@pytest.mark.parametrize(
    "settings",
    [None, {}, {"type": "pickle"}, {"type": "tfidf", "x": 1}, {"type": "tfidf", "ngrams": 9}],
)
def test_damaged_settings_are_refused(settings: object) -> None:
    files = stored()
    files.config["features"] = settings
    with pytest.raises(ValueError, match=r"features|type"):
        check_and_open(files)


@pytest.mark.parametrize(
    "idf", [np.ones(4, np.float32), np.ones(5), np.full(5, np.nan, np.float32)]
)
def test_damaged_weights_are_refused(idf: np.ndarray) -> None:
    files = stored()
    files.arrays["features.idf"] = idf
    with pytest.raises(ValueError, match=r"features\.idf"):
        check_and_open(files)


def test_pairs_are_counted_where_texts_are_short() -> None:
    short, long = "red beer here", "red beer here " * 40
    assert "red beer" in Tfidf().fit([short] * 3).feature_names_
    assert Tfidf().fit([long] * 3).feature_names_ == ["beer", "here", "red"]
    assert "red beer" in Tfidf(ngrams=2).fit([long] * 3).feature_names_
    assert Tfidf(ngrams=1).fit([short] * 3).feature_names_ == ["beer", "here", "red"]
