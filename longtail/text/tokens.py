"""Tokens: raw texts → rows of word ids in the order of the text, for models that read it.

What a word is, `words` says; here words are in lower case, and a character of a script that sets
no blanks between words, an emoji or a flag is a word of its own.

Packed texts may hold all words of theirs as numbers (`find_words`). Then no text is looked at: the
words that are kept, and their order, follow from which documents hold them, as they always do.
"""

import json
import os
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, LongtailError, NotFittedError, ParameterError
from longtail.runtime.compiled import njit
from longtail.runtime.mapped import Texts, WordsOfTexts, is_mapped, room
from longtail.runtime.schema import Schema, Value, whole
from longtail.runtime.schema import Texts as TextsOf
from longtail.runtime.store import Files
from longtail.text.lexicon import (
    Lexicon,
    learn_words,
    learn_words_of_many,
    replace_ids,
    starts_of,
)
from longtail.text.words import WordReader, check_texts, no_words_error, word_pattern

PADDING, UNKNOWN = 0, 1
SPECIAL = ["<padding>", "<unknown>"]  # no words, as no word has a "<" in it

LONGEST_WORD = 100  # characters; longer ones are no words of any language, and never known


class TokenRows(NamedTuple):
    """Document i holds `tokens[start[i]:start[i + 1]]`, numbers of words in their order."""

    start: NDArray[np.int64]
    tokens: NDArray[np.int32]

    @property
    def n_documents(self) -> int:
        """The number of documents."""
        return len(self.start) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each document has."""
        return np.diff(self.start)

    def take(self, rows: NDArray[np.int64]) -> "TokenRows":
        """Return these documents alone; in a file, if tokens that are larger than memory are."""
        start = np.concatenate(([0], np.cumsum(self.lengths[rows])))
        gathered = room(int(start[-1]), np.int32, in_file=self.are_large)
        _gather(self.start, self.tokens, rows, start, gathered)
        return TokenRows(start, gathered)

    @property
    def are_large(self) -> bool:
        """Whether the tokens lie in a file, being larger than memory."""
        return is_mapped(self.tokens)

    def pad(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the tokens (n, longest) of these documents, padding behind, and their lengths.

        There is one column at least, so that documents without a word make a batch as well.
        """
        return _pad(self.start, self.tokens, rows)

    def save(self, folder: Path) -> None:
        """Write both arrays into the folder, each whole or not at all."""
        _write(folder / "start.npy", partial(np.save, arr=self.start))
        _write(folder / "tokens.npy", partial(np.save, arr=self.tokens))

    @classmethod
    def open(cls, folder: Path) -> "TokenRows":
        """Return what `save` wrote, read from the disk as it is needed."""
        # "c" and not "r": writable in memory, so that compiled code meets no further type.
        parts = [np.load(folder / f"{name}.npy", mmap_mode="c") for name in cls._fields]
        rows = cls(*(part.view(np.ndarray) for part in parts))
        if rows.start.dtype != np.int64 or rows.tokens.dtype != np.int32:
            raise ValueError("the tokens have another type")
        if rows.start.ndim != 1 or rows.tokens.ndim != 1 or not len(rows.start):
            raise ValueError("the tokens have another shape")
        falls = (rows.start[1:] < rows.start[:-1]).any()  # a difference could wrap around
        if rows.start[0] or falls or rows.start[-1] != len(rows.tokens):
            raise ValueError("the tokens do not fit their documents")
        return rows


class Tokens:
    """Turn texts into rows of word ids: 0 is padding, 1 an unknown word.

    Attributes:
        max_words: keep at most so many words, those of the most documents.
        min_documents: keep a word if at least this many documents hold it.
        max_length: read so many words of a text, the first.
        words_: the words by id, the commonest first, behind the two that are none.
    """

    words_: list[str]
    _lexicon: Lexicon

    def __init__(
        self, *, max_words: int = 500_000, min_documents: int = 1, max_length: int = 500
    ) -> None:
        """Take the settings; the class's docstring tells what each means."""
        self.max_words = max_words
        self.min_documents = min_documents
        self.max_length = max_length

    @property
    def n_words_(self) -> int:
        """The number of ids, padding and the unknown word included."""
        self._check_fitted()
        return len(self.words_)

    def fit(self, texts: Iterable[str]) -> Self:
        """Learn the words of `texts`."""
        self._learn(texts)
        return self

    def fit_encode(self, texts: Sequence[str], folder: Path | None = None) -> TokenRows:
        """Learn the words of `texts` and return their rows, as `encode` gives them afterwards.

        With a folder, the rows lie there and not in memory; if it holds those of the same texts
        and settings already, words and rows are taken from it.
        """
        if folder is None or _found_before(texts) is not None:
            return self._learn(texts)
        key = self._fingerprint(texts)
        with suppress(OSError, EOFError, ValueError, KeyError, TypeError):  # absent or broken
            return self._take_up(folder, key)
        rows = self._learn(texts)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            rows.save(folder)
            kept = json.dumps({"key": key, "words": self.words_[len(SPECIAL) :]}).encode()
            _write(folder / "words.json", lambda file: file.write(kept))
            return TokenRows.open(folder)
        except OSError as error:
            raise LongtailError(f"{folder}: cannot keep tokens here: {error.strerror}") from error

    def encode(self, texts: Iterable[str]) -> TokenRows:
        """Return a row for each text; one without any word has an empty row."""
        self._check_fitted()
        return TokenRows(*self._lexicon.look_up(check_texts(texts), self._reader, UNKNOWN))

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return (begin, end, id) for each word that `encode` reads, as it stands in `text`."""
        self._check_fitted()
        ids = self.encode([text]).tokens.tolist()
        # Lower case or one form of accents can change a text's length; the words stay apart.
        places = _find_places(text, self.max_length)
        return [(begin, end, word) for (begin, end), word in zip(places, ids, strict=False)]

    def to_files(self, files: Files) -> None:
        """Add the settings and the words to a model's files."""
        self._check_fitted()
        files.config["tokens"] = {"type": "words", **self._settings()}
        files.texts["words"] = self.words_

    @classmethod
    def describe(cls) -> Schema:
        """Return the schema of what `to_files` adds."""
        settings = ("max_words", "min_documents", "max_length")
        return Schema(
            config={
                "tokens": {"type": Value(Literal["words"]), **dict.fromkeys(settings, whole())}
            },
            texts={"words": TextsOf("n_words", unique=True)},
        )

    @classmethod
    def from_files(cls, files: Files) -> "Tokens":
        """Return the Tokens that `to_files` stored; ValueError if the special words do not lead."""
        settings = {key: value for key, value in files.config["tokens"].items() if key != "type"}
        loaded = cls(**settings)
        loaded._set_words(list(files.texts["words"]))
        return loaded

    def _settings(self) -> dict[str, Any]:
        return {
            "max_words": self.max_words,
            "min_documents": self.min_documents,
            "max_length": self.max_length,
        }

    def _check_settings(self) -> None:
        for name, value in self._settings().items():
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ParameterError(
                    f"The '{name}' parameter of Tokens must be a whole number of at least 1. "
                    f"Got {value!r} instead."
                )

    def _check_fitted(self) -> None:
        if not hasattr(self, "words_"):
            raise NotFittedError("these Tokens have not learned any words yet; call fit first")

    def _set_words(self, words: list[str]) -> None:
        if words[: len(SPECIAL)] != SPECIAL or len(set(words)) != len(words):
            raise ValueError("a word stands twice, or padding and the unknown word do not lead")
        self.words_ = words
        self._lexicon = Lexicon.of(words)

    def _learn(self, texts: Iterable[str]) -> TokenRows:
        """Learn the words, numbered anew by how many documents hold them; return the rows."""
        self._check_settings()
        texts = texts if isinstance(texts, Texts) else check_texts(texts)
        if isinstance(texts, Texts) and (words := _found_before(texts)) is not None:
            read = _limit(words, texts.rows, self.max_length)
        else:
            read = _read_words(texts, self._reader)
        names, held = read.names, read.held.tolist()
        kept = [i for i, name in enumerate(names) if len(name) <= LONGEST_WORD]
        kept = [i for i in kept if held[i] >= self.min_documents]
        if not kept:
            n_found = int((read.held > 0).sum())
            raise no_words_error(len(texts), n_found, "min_documents", self.min_documents)
        kept.sort(key=lambda i: (-held[i], names[i]))
        del kept[self.max_words :]
        new_id = np.full(len(names), UNKNOWN, np.int32)
        new_id[kept] = np.arange(len(SPECIAL), len(SPECIAL) + len(kept))
        self._set_words(SPECIAL + [names[i] for i in kept])
        replace_ids(read.ids, new_id)
        return TokenRows(read.starts, read.ids)

    @property
    def _reader(self) -> WordReader:
        return WordReader(single_characters=True, limit=self.max_length)

    def _fingerprint(self, texts: Iterable[str]) -> str:
        """Return a few characters that change with the settings and the texts."""
        total = blake2b(json.dumps(self._settings()).encode(), digest_size=16)
        for text in texts:
            data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""
            total.update(b"%d " % len(data) + data)
        return total.hexdigest()

    def _take_up(self, folder: Path, key: str) -> TokenRows:
        kept = json.loads((folder / "words.json").read_bytes())
        if kept["key"] != key:
            raise ValueError("these are the tokens of other texts")
        rows = TokenRows.open(folder)
        words = SPECIAL + kept["words"]
        if len(rows.tokens) and not 0 < rows.tokens.min() <= rows.tokens.max() < len(words):
            raise ValueError("a token is none of the words")
        self._set_words(words)
        return rows


# ------------------------------------------------------------------------------- words of texts


class _Read(NamedTuple):
    """All words, how many texts hold each, where the words of each text begin, and all of them."""

    names: Sequence[str]
    held: NDArray[np.int64]
    starts: NDArray[np.int64]
    ids: NDArray[np.int32]


def _read_words(texts: list[str] | Texts, reader: WordReader) -> _Read:
    if isinstance(texts, Texts):
        read = learn_words_of_many(texts, reader)
    else:
        read = learn_words(texts, reader)
    return _Read(read.lexicon.words, read.held, read.starts, read.ids)


def find_words(texts: Sequence[str]) -> WordsOfTexts:
    """Return all words of texts, for `Tokens` to take up later."""
    checked = texts if isinstance(texts, Texts) else check_texts(texts)
    read = _read_words(checked, WordReader(single_characters=True))
    return WordsOfTexts(read.names, read.starts, read.ids, _word_rule())


def _word_rule() -> str:
    """Return what changes when a word becomes something else."""
    said = f"{word_pattern(single_characters=True).pattern} {unicodedata.unidata_version}"
    return blake2b(said.encode(), digest_size=8).hexdigest()


def _found_before(texts: Iterable[str]) -> WordsOfTexts | None:
    """Return the words that lie beside texts, if they are what words are now."""
    words = texts.words if isinstance(texts, Texts) else None
    return words if words is not None and words.rule == _word_rule() else None


def _limit(words: WordsOfTexts, rows: NDArray[np.int64] | None, limit: int) -> _Read:
    """Return the first words of each text, or of those in `rows`, and which texts hold which."""
    names = list(words.names)
    chosen = np.arange(len(words.start) - 1) if rows is None else rows
    starts = starts_of(np.minimum(words.start[chosen + 1] - words.start[chosen], limit))
    ids = room(int(starts[-1]), np.int32, in_file=True)
    held = np.zeros(len(names), np.int64)
    if len(set(names)) != len(names) or not _take_words(
        words.start, words.ids, chosen, starts, ids, held
    ):
        raise DataError("the words of packed texts are damaged; pack the data again")
    return _Read(names, held, starts, ids)


# ------------------------------------------------------------------------------- words of a text


def _find_places(text: str, limit: int) -> list[tuple[int, int]]:
    """Return where the first words of a text begin and end."""
    found = word_pattern(single_characters=True).finditer(text)
    return [match.span() for _, match in zip(range(limit), found, strict=False)]


# ------------------------------------------------------------------------------ rows and the disk


@njit(nogil=True, cache=True)
def _pad(
    start: NDArray[np.int64], tokens: NDArray[np.int32], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    lengths = np.empty(len(rows), np.int32)
    longest = 1
    for i in range(len(rows)):
        lengths[i] = start[rows[i] + 1] - start[rows[i]]
        longest = max(longest, lengths[i])
    padded = np.full((len(rows), longest), PADDING, np.int32)
    for i in range(len(rows)):
        begin = start[rows[i]]
        for place in range(lengths[i]):
            padded[i, place] = tokens[begin + place]
    return padded, lengths


@njit(nogil=True, cache=True)
def _gather(
    start: NDArray[np.int64],
    tokens: NDArray[np.int32],
    rows: NDArray[np.int64],
    new_start: NDArray[np.int64],
    gathered: NDArray[np.int32],
) -> None:
    for i in range(len(rows)):
        begin = start[rows[i]]
        for place in range(new_start[i], new_start[i + 1]):
            gathered[place] = tokens[begin + place - new_start[i]]


@njit(nogil=True, cache=True)
def _take_words(
    start: NDArray[np.int64],
    words: NDArray[np.int32],
    rows: NDArray[np.int64],
    new_start: NDArray[np.int64],
    taken: NDArray[np.int32],
    held: NDArray[np.int64],
) -> bool:
    """Copy the first words of some texts, and count how many hold each; False if damaged."""
    last = np.full(len(held), -1, np.int64)  # the text that held a word last
    for i in range(len(rows)):
        begin = start[rows[i]] - new_start[i]
        for place in range(new_start[i], new_start[i + 1]):
            word = words[begin + place]
            if not 0 <= word < len(held):
                return False
            taken[place] = word
            held[word] += last[word] != i
            last[word] = i
    return True


def _write(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file under another name first, so that it is whole wherever it bears its own."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with new.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
