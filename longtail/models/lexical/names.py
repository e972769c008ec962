"""Names: what labels are called, as sequences of stems.

A label has the name of the data set, shorter forms of it, and those of a file of other names:

    bass (fish)               also found as    bass
    implemented-in::python                     python

A stem is a word without its English endings, so that `farming` is found where a text has `farmers`.
Words of other languages match where they are written alike.
"""

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.errors import DataError, suggest
from longtail.runtime.mapped import ArrayWriter, Texts
from longtail.text.lexicon import READ_TOGETHER, learn_words, starts_of
from longtail.text.words import WordReader, check_texts

LONGEST_NAME = 30  # words; no more of a name are looked for
LEAST_COVERAGE = 0.5  # of a name, by the rarity of its words, to be looked at

_QUALIFIER = re.compile(r"[(\[][^()\[\]]*[)\]]")  # as in "bass (fish)"
_LEVELS = re.compile(r"::|--| > ")  # as in "implemented-in::python"
_PLURAL = re.compile(r"(?<=\w{3})(?:(?<=x)es|(?<=ss|ch|sh)es|(?<![sui])s)$")
_ENDING = re.compile(
    r"(?<=\w{4})(?:i[sz]ation|ations?|ically|ical|ment|ness|[ai]ble|ings?|ists?|isms?|[eo]rs?|ed|"
    r"ions?|ive|ally|al|ics?|ity|ly|ian|an|ous|es|[esy])$"
)
_GZIP = b"\x1f\x8b"


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return the word without a plural ending, then without up to two other endings."""
    is_plural = word.endswith("ies") and len(word) > 4
    word = word[:-3] + "y" if is_plural else _PLURAL.sub("", word)
    return _ENDING.sub("", _ENDING.sub("", word))


def find_forms(name: str) -> list[str]:
    """Return a name and its shorter forms: without what is in brackets, and its last level."""
    forms = [name, _QUALIFIER.sub("", name), _LEVELS.split(name)[-1]]
    return list(dict.fromkeys(form.strip() for form in forms))


def read_other_names(path: str | Path, label_names: Sequence[str]) -> list[tuple[int, str]]:
    """Return the labels and other names of a file with a line `label TAB name` for each.

    A label may have any number of lines; labels that the data lack are passed over.
    """
    known = {name: label for label, name in enumerate(label_names)}
    found = []
    for number, line in enumerate(_read_lines(Path(path)), 1):
        label, tab, name = line.partition("\t")
        if not tab:
            raise DataError(
                f"{path}, line {number}: a label, a tab and another name of it are expected. "
                f"Got {line[:60]!r} instead."
            )
        if label in known:
            found.append((known[label], name))
    if not found:
        first = line.partition("\t")[0] if label_names else ""
        raise DataError(
            f"{path}: none of its labels is one of the {len(label_names)} labels of the data, "
            f"such as '{label_names[0]}'{suggest(first, label_names)}; write labels as the data do"
        )
    return found


def _read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file that are not blank, each without its end."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig")
    except (OSError, EOFError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise DataError(f"{path}: other names of labels cannot be read: {reason}") from error
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if not lines:
        raise DataError(f"{path}: there is no line with another name of a label in it")
    yield from lines


class Names(NamedTuple):
    """The names of all labels, those of a label side by side.

    Attributes:
        start: (n_names + 1,) where the stems of each name begin.
        stems: (n_parts,) the stems.
        labels: (n_names,) whose name it is, rising.
        weights: (n_parts,) how much of its name a stem is: rare ones more; 1 in all.
        anchor_start: (n_stems + 1,) where the names of each stem begin in `anchors`.
        anchors: the names to look at where a stem is met. A name stands at its rarest stems only:
            without any of these, less than LEAST_COVERAGE of it is there.
    """

    start: NDArray[np.int64]
    stems: NDArray[np.int32]
    labels: NDArray[np.int32]
    weights: NDArray[np.float32]
    anchor_start: NDArray[np.int64]
    anchors: NDArray[np.int32]


class Spelling(NamedTuple):
    """The names as they are saved: `start`, `stems` and `labels` of `Names`."""

    start: NDArray[np.int64]
    stems: NDArray[np.int32]
    labels: NDArray[np.int32]


class Reader(NamedTuple):
    """Turns texts into the stems of names; −1 stands for any other word."""

    numbers: Mapping[str, int]
    max_length: int

    @classmethod
    def of(cls, stems: Sequence[str], max_length: int) -> "Reader":
        """Return what finds these stems; the number of each is its place."""
        return cls({each: number for number, each in enumerate(stems)}, max_length)

    def read(self, texts: Iterable[str]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return where the words of each text begin (n + 1,), and the stems of all in a row."""
        if isinstance(texts, Texts):
            return self._read_many(texts)
        read = learn_words(check_texts(texts), WordReader(limit=self.max_length))
        known = [self.numbers.get(stem(word), -1) for word in read.lexicon.words]
        return read.starts, np.array(known, np.int32)[read.ids]

    def _read_many(self, texts: Texts) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Do as `read` does for texts that are larger than memory, into a file."""
        stems, lengths = ArrayWriter(np.int32), ArrayWriter(np.int64)
        for block in texts.blocks(READ_TOGETHER):
            starts, found = self.read(block)
            stems.add(found)
            lengths.add(np.diff(starts))
        return starts_of(lengths.map()), stems.map()


def spell(
    label_names: Sequence[str], others: Iterable[tuple[int, str]]
) -> tuple[list[str], Spelling]:
    """Return all stems, and the labels' names and other names as sequences of them."""
    numbers: dict[str, int] = {}
    spelling = spell_forms([*enumerate(label_names), *others], numbers)
    return list(numbers), spelling


def spell_forms(named: Iterable[tuple[int, str]], numbers: dict[str, int]) -> Spelling:
    """Return the names of labels and their shorter forms; stems that are new get numbers."""
    forms = sorted({(label, form) for label, name in named for form in find_forms(name)})
    reader = WordReader(limit=LONGEST_NAME)
    seen: set[tuple[int, ...]] = set()
    ends, stems, labels = [0], [], []
    for label, form in forms:
        words = reader.find(form.replace("_", " "))
        spelled = [numbers.setdefault(stem(word), len(numbers)) for word in words]
        if spelled and (label, *spelled) not in seen:
            seen.add((label, *spelled))
            stems += spelled
            labels.append(label)
            ends.append(len(stems))
    return Spelling(np.array(ends, np.int64), np.array(stems, np.int32), np.array(labels, np.int32))


class Joined(NamedTuple):
    """Two spellings as one, and where its names and their parts stood in both, one after another.

    Attributes:
        spelling: with the names of each label side by side again.
        names: (n_names,) the place of each name.
        parts: (n_parts,) the place of each part.
    """

    spelling: Spelling
    names: NDArray[np.int64]
    parts: NDArray[np.int64]


def join_spellings(one: Spelling, other: Spelling) -> Joined:
    """Put the names of `other` to those of `one`."""
    labels = np.concatenate([one.labels, other.labels])
    stems = np.concatenate([one.stems, other.stems])
    start = np.concatenate([one.start, one.start[-1] + other.start[1:]])
    names = np.argsort(labels, kind="stable")
    lengths = np.diff(start)[names]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    parts = np.repeat(start[names] - ends[:-1], lengths) + np.arange(len(stems))
    return Joined(Spelling(ends, stems[parts], labels[names]), names, parts)


def weigh_names(spelling: Spelling, held: NDArray[np.int64], n_documents: int) -> Names:
    """Weigh the stems of names by their rarity; `held` is how many documents hold each stem."""
    start, stems, labels = spelling
    rarity = np.log1p(n_documents / (held + 1.0))[stems]
    lengths = np.diff(start)
    weights = (
        rarity / np.repeat(np.add.reduceat(rarity, start[:-1]), lengths) if len(stems) else rarity
    )
    names = np.repeat(np.arange(len(labels)), lengths)
    lightest = np.lexsort((weights, names))
    reach = np.cumsum(weights[lightest]) - names  # as each name before adds up to 1
    anchors = lightest[reach > LEAST_COVERAGE - 1e-6]  # lighter ones together are less than that
    anchors = anchors[np.lexsort((names[anchors], stems[anchors]))]
    counts = np.bincount(stems[anchors], minlength=len(held))
    return Names(
        start,
        stems,
        labels,
        weights.astype(np.float32),
        np.concatenate(([0], np.cumsum(counts))),
        names[anchors].astype(np.int32),
    )
