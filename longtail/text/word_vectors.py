"""Word vectors from text files: GloVe's, and word2vec's with their header line, gzipped or not."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longtail.data.source import Source
from longtail.errors import DataError
from longtail.progress import SILENT, Progress

Floats = NDArray[np.float32]

FEW = 0.05  # the share of words with a vector below which a file is hardly the right one
DOUBT = "is it the right language, and in lower case?"


def read_term_vectors(
    path: str | Path,
    terms: Sequence[str],
    dim: int | None = None,
    progress: Progress = SILENT,
) -> Floats:
    """Return a vector (n_terms, dim) for each term, zeros for those that the file does not know.

    The vector of a pair such as "red wine" is the mean of its words' vectors, where both have one.

    Args:
        path: the file.
        terms: words, and pairs of words with a space in between.
        dim: how long the vectors have to be; None takes what the file holds.
        progress: is told which share of the words has a vector.
    """
    words = {word for term in terms for word in term.split(" ")}
    known = _read_known(path, words, dim)
    progress.say(_say_share(path, len(known), len(words)))
    found = np.zeros((len(terms), len(next(iter(known.values())))), np.float32)
    for row, term in enumerate(terms):
        parts = [known.get(word) for word in term.split(" ")]
        if all(part is not None for part in parts):
            found[row] = np.mean(parts, axis=0)  # type: ignore[arg-type]
    return found


def read_word_vectors(
    path: str | Path,
    words: Sequence[str],
    rng: np.random.Generator,
    dim: int | None = None,
    progress: Progress = SILENT,
) -> Floats:
    """Return a vector (n_words, dim) for each word: the file's, or a random one.

    Random values are uniform around 0 and vary as much as those found do, so that words that the
    file does not know are neither louder nor quieter than the others.
    """
    known = _read_known(path, set(words), dim)
    found = np.stack([*known.values()])
    limit = np.sqrt(3 * np.square(found).mean())  # of a uniform spread with that mean square
    vectors = rng.uniform(-limit, limit, (len(words), found.shape[1])).astype(np.float32)
    for row, word in enumerate(words):
        if word in known:
            vectors[row] = known[word]
    progress.say(_say_share(path, len(known), len(words)))
    return vectors


def _read_known(path: str | Path, wanted: set[str], dim: int | None) -> dict[str, Floats]:
    known = read_vectors(path, wanted, dim)
    if not known:
        raise DataError(
            f"none of the {len(wanted):,} words of the documents has a vector here; {DOUBT}",
            path=path,
        )
    return known


def _say_share(path: str | Path, n_known: int, n_words: int) -> str:
    share = n_known / n_words
    doubt = f"; {DOUBT}" if share < FEW else ""
    return f"Word vectors: {path} has {share:.0%} of the {n_words:,} words{doubt}"


def read_vectors(
    path: str | Path, wanted: set[str] | None = None, dim: int | None = None
) -> dict[str, Floats]:
    """Return the vectors of the words `wanted`, or of all; the first where a word comes twice.

    Every line has to have as many values as the first one; of words that are not wanted, the
    values themselves are not looked at.
    """
    found: dict[str, Floats] = {}
    promised, n_lines, width = None, 0, 0
    with Source(path) as source:
        for first, lines in source.lines():
            for number, line in enumerate(map(str.rstrip, lines), first):
                if number == 1:
                    promised, width = _read_shape(path, line.split(" "), dim)
                    if promised is not None:
                        continue
                word, values = _cut(path, number, line, width)
                n_lines += 1
                if (wanted is None or word in wanted) and word not in found:
                    found[word] = _as_numbers(path, number, values.split(" "))
    if promised is not None and n_lines != promised:
        raise DataError(
            f"the first line promises {promised:,} vectors, but there are {n_lines:,}; "
            "is the file whole?",
            path=path,
        )
    return found


def _read_shape(path: str | Path, fields: list[str], dim: int | None) -> tuple[int | None, int]:
    """Return how many vectors the first line promises, if it does, and how long they are."""
    promised = None
    width = len(fields) - 1
    if len(fields) == 2 and all(field.isdecimal() for field in fields):
        promised, width = int(fields[0]), int(fields[1])
    if width < 1:
        raise DataError(
            "is no file of word vectors: a line is a word and its values, with blanks in between",
            path=path,
            line=1,
        )
    if dim is not None and width != dim:
        raise DataError(
            f"holds vectors of {width} values, but word_dim is {dim}; "
            f"set word_dim={width}, or leave it out",
            path=path,
        )
    return promised, width


def _cut(path: str | Path, line_number: int, line: str, width: int) -> tuple[str, str]:
    """Return the word and its `width` values, still as one text; words may have blanks in them."""
    n_blanks = line.count(" ")
    if n_blanks == width:  # nearly always, and quick
        word, _, values = line.partition(" ")
    else:
        fields = line.split(" ")
        word, values = " ".join(fields[:-width]), " ".join(fields[-width:])
    if not word or n_blanks < width:
        raise _broken(path, line_number, n_blanks, width)
    return word, values


def _as_numbers(path: str | Path, line: int, values: list[str]) -> Floats:
    try:
        with np.errstate(over="ignore"):
            numbers = np.array([float(value) for value in values]).astype(np.float32)
    except ValueError:
        wrong = next(value for value in values if not _is_number(value))
        raise DataError(f"{wrong!r:.40} is not a number", path=path, line=line) from None
    if not np.isfinite(numbers).all():
        raise DataError("holds a value that is not finite", path=path, line=line)
    return numbers


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _broken(path: str | Path, line: int, found: int, expected: int) -> DataError:
    return DataError(
        f"a word with {found} values, where the lines before have {expected}; is the file whole?",
        path=path,
        line=line,
    )
