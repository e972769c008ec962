"""Lexicon: words as a hash table that compiled code fills and looks up, on all cores.

Texts are read as UTF-8, in pieces of a megabyte. A piece numbers its own words as they first
appear; then the words of all pieces are joined in the order of the pieces (`learn_words`), or
each is looked up in a lexicon that exists (`Lexicon.look_up`). Neither the size of the pieces nor
the number of threads changes what comes out. The words are exactly those of `WordReader.find`,
which also reads the few texts that `letters` is not sure about.

A lexicon may also hold beginnings of words (`beginnings.py`): what a word that is not known begins
with, says something all the same.

A second of processor time looks up about 50 MB of questions, where Python's regular expressions and
a dictionary come to 15 (`python -m bench.text_speed`).
"""

import secrets
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.mapped import ArrayWriter, Texts
from longtail.runtime.parallel import in_threads, n_threads
from longtail.text.letters import N_ASCII, Letters, letters_of
from longtail.text.scanning import Bytes, copy_word, find_unsure, read_word
from longtail.text.word_table import (
    Starts,
    Table,
    WordIds,
    fill_slots,
    find_beginnings,
    find_words,
    gather,
    hash_word,
    hash_words,
    list_beginnings,
    look_up_text,
    place_again,
    unite,
)
from longtail.text.words import WordReader

READ_TOGETHER = 1 << 26  # bytes of texts that are larger than memory
PIECE = 1 << 20  # characters of text that are read together
MANY_TEXTS = 64  # from which it pays to make the table of all characters
NO_LIMIT = 1 << 62
BETWEEN = "\n"  # stands between the words of a text that Python has read; no word holds it

# Random, so that nobody can prepare words that all fall into one slot.
_SEED = np.uint64(secrets.randbits(64))


class _Piece(NamedTuple):
    """The words of some texts.

    Attributes:
        counts: (n_texts,) how many words each text has.
        ids: the words of all texts in a row, as numbers from 0 by first appearance.
        letters: the words themselves in UTF-8, one behind the other, each once.
        start: (n_words + 1,) where each begins in `letters`.
        hashes: (n_words,) their hashes.
        held: (n_words,) how many of the texts hold each.
    """

    counts: NDArray[np.int64]
    ids: WordIds
    letters: Bytes
    start: Starts
    hashes: NDArray[np.uint64]
    held: NDArray[np.int64]


class Lexicon(NamedTuple):
    """Words, each once; a word's number is its place.

    Attributes:
        letters: the words in UTF-8, one behind the other.
        start: (n + 1,) where each begins in `letters`.
        slots: the words' numbers by their hash; −1 where a slot is free.
    """

    letters: Bytes
    start: Starts
    slots: NDArray[np.int32]

    @classmethod
    def of(cls, words: Sequence[str]) -> "Lexicon":
        """Return the lexicon of these words."""
        lines = BETWEEN.join([*words, ""])
        if lines.count(BETWEEN) != len(words):  # of a stranger's model; no text holds such a word
            lines = BETWEEN.join([*(word.replace(BETWEEN, " ") for word in words), ""])
        text = np.frombuffer(bytearray(lines.encode("utf-8", "surrogatepass")), np.uint8)
        is_end = text == ord(BETWEEN)
        start = starts_of(np.diff(np.flatnonzero(is_end), prepend=-1) - 1)
        letters = text[~is_end]
        return cls(letters, start, fill_slots(letters, start, _SEED))

    @classmethod
    def empty(cls) -> "Lexicon":
        """Return a lexicon without words."""
        return cls(np.empty(0, np.uint8), np.zeros(1, np.int64), np.full(2, -1, np.int32))

    @property
    def n_words(self) -> int:
        """How many there are."""
        return len(self.start) - 1

    @property
    def words(self) -> list[str]:
        """The words as strings."""
        encoded = self.letters.tobytes()
        return [
            str(encoded[a:b], "utf-8", "surrogatepass") for a, b in pairwise(self.start.tolist())
        ]

    def take(self, chosen: NDArray[np.int64]) -> "Lexicon":
        """Return the lexicon of the chosen words, in that order."""
        letters, start = gather(self.letters, self.start, chosen)
        return Lexicon(letters, start, fill_slots(letters, start, _SEED))

    def join(self, other: "Lexicon") -> tuple["Lexicon", WordIds]:
        """Return the lexicon with the words of another behind its own, and the number of each."""
        letters = np.concatenate((self.letters, other.letters))
        start = np.concatenate((self.start, other.start[1:] + self.start[-1]))
        hashes = hash_words(letters, start, _SEED)
        numbers, firsts, _ = unite(letters, start, hashes, np.zeros(len(hashes), np.int64))
        joined = Lexicon(letters, start, np.empty(0, np.int32)).take(firsts)
        return joined, numbers[self.n_words :]

    def list_beginnings(self) -> "Lexicon":
        """Return the beginnings of the words, each once."""
        letters, start = list_beginnings(self.letters, self.start)
        hashes = hash_words(letters, start, _SEED)
        _, firsts, _ = unite(letters, start, hashes, np.zeros(len(hashes), np.int64))
        return Lexicon(letters, start, np.empty(0, np.int32)).take(firsts)

    def find_beginnings(self, words: "Lexicon") -> WordIds:
        """Return which of these beginnings each word has: the longest; −1 if none."""
        return find_beginnings(Table(*self), words.letters, words.start, _SEED)

    def find(
        self, words: Sequence[str], unknown: int, beginnings: "Lexicon | None" = None
    ) -> WordIds:
        """Return the number of each of these words."""
        text, others = BETWEEN.join(words), beginnings or Lexicon.empty()
        return self._read(text, WordReader(), unknown, others, is_split=True)

    def look_up(
        self,
        texts: Sequence[str],
        reader: WordReader,
        unknown: int,
        beginnings: "Lexicon | None" = None,
    ) -> tuple[Starts, WordIds]:
        """Return where the words of each text begin (n + 1,), and the ids of all words in a row.

        A word that is not in the lexicon, but has one of the beginnings, is −2 − that one's number.
        """
        others = beginnings or Lexicon.empty()
        if len(texts) == 1:
            ids = self._look_up_one(texts[0], reader, unknown, others)
            return np.array((0, len(ids))), ids

        def read(first: int, last: int) -> tuple[NDArray[np.int64], WordIds]:
            piece = _read_piece(texts[first:last], reader, len(texts))
            words = (piece.letters, piece.start, piece.hashes)
            found = find_words(Table(*self), *words, unknown, Table(*others), _SEED)
            return piece.counts, found[piece.ids]

        pieces = in_threads(read, _cut(texts))
        return _join_starts([counts for counts, _ in pieces]), _join([ids for _, ids in pieces])

    def _look_up_one(
        self, text: str, reader: WordReader, unknown: int, others: "Lexicon"
    ) -> WordIds:
        """Do as `look_up` does, without a table in between: every microsecond is felt here."""
        if not text.isascii():
            return self.find(reader.find(text), unknown, others)
        return self._read(text, reader, unknown, others, is_split=False)

    def _read(
        self, text: str, reader: WordReader, unknown: int, others: "Lexicon", *, is_split: bool
    ) -> WordIds:
        letters = np.frombuffer(bytearray(text.encode("utf-8", "surrogatepass")), np.uint8)
        kinds, folded, _, singles = letters_of(reader, N_ASCII)
        limit = NO_LIMIT if reader.limit is None else min(reader.limit, NO_LIMIT)
        return look_up_text(
            *self, letters, is_split, kinds, folded, singles, limit, unknown, *others, _SEED
        )


class Learned(NamedTuple):
    """All words of texts, numbered as they first appear, and the texts as `look_up` gives them.

    Attributes:
        lexicon: the words.
        held: (n_words,) how many texts hold each.
        starts: (n_texts + 1,) where the words of each text begin.
        ids: the words of all texts in a row.
    """

    lexicon: Lexicon
    held: NDArray[np.int64]
    starts: Starts
    ids: WordIds


def learn_words(texts: Sequence[str], reader: WordReader) -> Learned:
    """Return the words of the texts, and the texts as these."""
    pieces = in_threads(
        lambda first, last: _read_piece(texts[first:last], reader, len(texts)), _cut(texts)
    )
    sizes = starts_of([len(piece.held) for piece in pieces])
    letters = np.concatenate([piece.letters for piece in pieces] or [np.empty(0, np.uint8)])
    lengths = _join([np.diff(piece.start).astype(np.int32) for piece in pieces])
    start = starts_of(lengths)
    hashes = np.concatenate([piece.hashes for piece in pieces] or [np.empty(0, np.uint64)])
    held = np.concatenate([piece.held for piece in pieces] or [np.empty(0, np.int64)])
    new_ids, firsts, total = unite(letters, start, hashes, held)
    tasks = [(piece.ids, new_ids[a:]) for piece, a in zip(pieces, sizes.tolist(), strict=False)]
    in_threads(replace_ids, tasks)
    lexicon = Lexicon(letters, start, np.empty(0, np.int32)).take(firsts)
    starts = _join_starts([piece.counts for piece in pieces])
    return Learned(lexicon, total, starts, _join([piece.ids for piece in pieces]))


def learn_words_of_many(texts: Texts, reader: WordReader) -> Learned:
    """Do as `learn_words` does for texts that are larger than memory, some at a time."""
    known, held = Lexicon.of([]), np.empty(0, np.int64)
    ids, counts = ArrayWriter(np.int32), ArrayWriter(np.int64)
    for block in texts.blocks(READ_TOGETHER):
        read = learn_words(block, reader)
        known, new_ids = known.join(read.lexicon)
        held = np.concatenate((held, np.zeros(known.n_words - len(held), np.int64)))
        held[new_ids] += read.held
        replace_ids(read.ids, new_ids)
        ids.add(read.ids)
        counts.add(np.diff(read.starts))
    return Learned(known, held, starts_of(counts.map()), ids.map())


def _cut(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first text of each piece, and the one behind its last."""
    if len(texts) <= 1:
        return [(0, len(texts))] if texts else []
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    size = min(PIECE, int(ends[-1]) // n_threads() + 1)
    borders = np.searchsorted(ends, np.arange(0, ends[-1] + size, size)).tolist()
    return list(pairwise(sorted({0, *borders, len(texts)})))


def _join(parts: Sequence[WordIds]) -> WordIds:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def _join_starts(counts: Sequence[NDArray[np.int64]]) -> Starts:
    return starts_of(
        counts[0] if len(counts) == 1 else np.concatenate(counts or [np.empty(0, np.int64)])
    )


def starts_of(counts: Sequence[int] | NDArray[np.integer | np.bool_]) -> Starts:
    """Return where each of parts that follow one another begins, and the last one ends."""
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


# ---------------------------------------------------------------------------------- reading texts


def _read_piece(texts: Sequence[str], reader: WordReader, n_all: int) -> _Piece:
    """Read some of `n_all` texts."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    is_split = np.zeros(len(texts), np.bool_)
    letters = letters_of(reader, N_ASCII)
    others = [i for i, text in enumerate(texts) if not text.isascii()]
    if others:
        unsure = others
        if n_all >= MANY_TEXTS:
            letters = letters_of(reader)
            unsure = _list_unsure([encoded[i] for i in others], others, letters)
        for i in unsure:
            words = BETWEEN.join(reader.find(texts[i]))
            encoded[i] = words.encode("utf-8", "surrogatepass")
            is_split[i] = True
    kinds, folded, _, singles = letters
    limit = NO_LIMIT if reader.limit is None else min(reader.limit, NO_LIMIT)
    return _Piece(*_read(*_pack(encoded), is_split, kinds, folded, singles, limit, _SEED))


def _list_unsure(encoded: Sequence[bytes], places: Sequence[int], letters: Letters) -> list[int]:
    unsure = find_unsure(*_pack(encoded), letters.kinds, letters.order)
    return [places[i] for i in np.flatnonzero(unsure).tolist()]


def _pack(encoded: Sequence[bytes]) -> tuple[Bytes, NDArray[np.int64]]:
    """Return the bytes of texts in a row, and where each text ends."""
    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    # Of a bytearray, as compiled code is to meet one type: arrays that can be written.
    return np.frombuffer(bytearray().join(encoded), np.uint8), ends


@njit(nogil=True, cache=True)
def _read(
    text: Bytes,
    ends: NDArray[np.int64],
    is_split: NDArray[np.bool_],
    kinds: NDArray[np.uint8],
    folded: NDArray[np.int32],
    singles: bool,
    limit: int,
    seed: np.uint64,
) -> tuple[NDArray[np.int64], WordIds, Bytes, Starts, NDArray[np.uint64], NDArray[np.int64]]:
    """Return the fields of a `_Piece`."""
    most = len(text) // 2 + len(ends)  # words: something stands between two, or one is wide
    counts = np.zeros(len(ends), np.int64)
    ids = np.empty(most, np.int32)
    letters = np.empty(len(text) * 3 // 2 + 4, np.uint8)
    start = np.empty(most + 1, np.int64)
    hashes = np.empty(most, np.uint64)
    held = np.empty(most, np.int64)
    last = np.empty(most, np.int64)  # the text that a word was last seen in
    slots = np.full(256, -1, np.int32)
    start[0] = n_letters = n_ids = n_words = at = 0
    for i in range(len(ends)):
        end = ends[i]
        while at < end and counts[i] < limit:
            at, n = (
                copy_word(text, at, end, letters, n_letters)
                if is_split[i]
                else read_word(text, at, end, kinds, folded, singles, letters, n_letters)
            )
            if n == n_letters:
                break
            # What `_search` does: as a call it would cost a quarter of the time.
            code = hash_word(letters, n_letters, n, seed)
            mask = np.uint64(len(slots) - 1)
            slot = code & mask
            word = slots[slot]
            while word >= 0:
                is_same = hashes[word] == code and start[word + 1] - start[word] == n - n_letters
                begin, place = start[word], n_letters
                while is_same and place < n:
                    is_same = letters[begin] == letters[place]
                    begin += 1
                    place += 1
                if is_same:
                    break
                slot = (slot + np.uint64(1)) & mask
                word = slots[slot]
            if word < 0:
                word = slots[slot] = n_words
                hashes[word] = code
                held[word], last[word] = 0, -1
                n_words += 1
                start[n_words] = n_letters = n
                if 2 * n_words > len(slots):
                    slots = place_again(hashes, n_words, 4 * len(slots))
            if last[word] != i:
                last[word] = i
                held[word] += 1
            ids[n_ids] = word
            n_ids += 1
            counts[i] += 1
        at = end
    return (
        counts,
        ids[:n_ids].copy(),
        letters[:n_letters].copy(),
        start[: n_words + 1].copy(),
        hashes[:n_words].copy(),
        held[:n_words].copy(),
    )


@njit(nogil=True, cache=True)
def replace_ids(ids: WordIds, new_ids: WordIds) -> None:
    """Number words anew, in place."""
    for i in range(len(ids)):
        ids[i] = new_ids[ids[i]]
