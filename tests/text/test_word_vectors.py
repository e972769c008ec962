"""Word vectors from files as they are found in the wild."""

import gzip

import numpy as np
import pytest

from longtail.errors import DataError
from longtail.text.word_vectors import read_term_vectors, read_vectors, read_word_vectors

GLOVE = "wine 1 2 3\nbeer 0.5 -1 1e-2\n. 7 8 9\n"


@pytest.fixture
def write(tmp_path):
    def write(text, name="vectors.txt"):
        path = tmp_path / name
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.txt.gz"])
@pytest.mark.parametrize("header", ["", "3 3\n"])
def test_both_formats_packed_or_not(write, name, header):
    found = read_vectors(write(header + GLOVE, name))
    assert sorted(found) == [".", "beer", "wine"]
    np.testing.assert_allclose(found["beer"], [0.5, -1, 0.01])
    assert found["wine"].dtype == np.float32


def test_word2vec_ends_its_lines_with_a_blank_and_windows_with_a_carriage_return(write):
    found = read_vectors(write("2 2\r\nwine 1 2 \r\nbeer 3 4 \r\n"))
    assert found["beer"].tolist() == [3, 4]


def test_words_with_blanks_in_them(write):
    found = read_vectors(write("wine 1 2\n. . . 3 4\n"))
    assert found[". . ."].tolist() == [3, 4]


def test_only_what_is_wanted_and_the_first_of_two(write):
    found = read_vectors(write(GLOVE + "wine 0 0 0\n"), {"wine", "cider"})
    assert list(found) == ["wine"]
    assert found["wine"].tolist() == [1, 2, 3]


def test_terms_get_vectors_pairs_the_mean_unknown_ones_zeros(write):
    terms = ["beer", "cider", "beer wine", "cider wine"]
    found = read_term_vectors(write(GLOVE), terms)
    expected = [[0.5, -1, 0.01], [0, 0, 0], [0.75, 0.5, 1.505], [0, 0, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_no_word_is_known(write):
    path = write(GLOVE)
    with pytest.raises(DataError) as caught:
        read_term_vectors(path, ["viini", "olut viini"])
    assert str(caught.value) == (
        f"{path}: none of the 2 words of the documents has a vector here; "
        "is it the right language, and in lower case?"
    )


class Said:
    def __init__(self):
        self.texts = []

    def say(self, text):
        self.texts.append(text)


def test_words_get_vectors_unknown_ones_random_ones_as_large(write):
    path, said = write("wine 1 2\nbeer -2 1\n"), Said()
    words = ["beer", *(f"word{i}" for i in range(2000)), "wine"]
    vectors = read_word_vectors(path, words, np.random.default_rng(0), progress=said)
    assert (vectors.shape, vectors.dtype) == ((2002, 2), np.float32)
    assert (vectors[0].tolist(), vectors[-1].tolist()) == ([-2, 1], [1, 2])
    drawn = vectors[1:-1]
    assert np.sqrt(np.square(drawn).mean()) == pytest.approx(np.sqrt(2.5), rel=0.03)
    assert np.abs(drawn).max() <= np.sqrt(7.5)
    assert len(np.unique(drawn)) == drawn.size
    again = read_word_vectors(path, words, np.random.default_rng(0))
    np.testing.assert_array_equal(again, vectors)
    assert said.texts == [
        f"Word vectors: {path} has 0% of the 2,002 words; "
        "is it the right language, and in lower case?"
    ]


def test_a_file_that_knows_the_words_raises_no_doubt(write):
    path, said = write(GLOVE), Said()
    read_word_vectors(path, ["wine", "cider"], np.random.default_rng(0), dim=3, progress=said)
    assert said.texts == [f"Word vectors: {path} has 50% of the 2 words"]


def test_a_file_of_another_language(write):
    with pytest.raises(DataError, match="none of the 1 words of the documents has a vector here"):
        read_word_vectors(write(GLOVE), ["viini"], np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            "wine 1 2 3\nbeer 1 2\n",
            2,
            "a word with 2 values, where the lines before have 3; is the file whole?",
        ),
        (
            "wine 1 2 3\n\n",
            2,
            "a word with 0 values, where the lines before have 3; is the file whole?",
        ),
        ("wine 1 x 3\n", 1, "'x' is not a number"),
        ("wine 1 2\nred wine 1 2\nbeer 1 nan\n", 3, "holds a value that is not finite"),
        ("wine 1e99 2\n", 1, "holds a value that is not finite"),
        (
            "wine\n",
            1,
            "is no file of word vectors: a line is a word and its values, with blanks in between",
        ),
    ],
)
def test_broken_lines(write, text, line, message):
    path = write(text)
    with pytest.raises(DataError) as caught:
        read_vectors(path)
    assert str(caught.value) == f"{path}:{line}: {message}"


def test_fewer_vectors_than_promised(write):
    with pytest.raises(DataError, match="promises 5 vectors, but there are 3; is the file whole"):
        read_vectors(write("5 3\n" + GLOVE))


def test_another_dimension_than_asked_for(write):
    with pytest.raises(DataError) as caught:
        read_vectors(write(GLOVE), dim=100)
    assert str(caught.value).endswith(
        "holds vectors of 3 values, but word_dim is 100; set word_dim=3, or leave it out"
    )


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        read_vectors(tmp_path / "nothing.txt")


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "binary.bin").write_bytes(b"wine \xff\xfe 1 2\n")
    with pytest.raises(DataError, match="'ÿþ' is not a number"):
        read_vectors(tmp_path / "binary.bin")
