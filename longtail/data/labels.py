"""Labels as words: numbering them, splitting cells of them, and the files that name them.

Names come from a file beside the data: `label_names.txt` (one a line, by id), `label_names.tsv`
(id, tab, name), or the `lbl.json` of the extreme classification repository. Where two ids share a
name, each gets its id in brackets, so that names stay unique.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from pathlib import Path
from typing import Any, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.source import Source, find_file, parse_object
from longtail.errors import DataError
from longtail.reading import NEVER

SEPARATORS = "\t;|,"
_MARK_NAMES = {"\t": "tabs", " ": "blanks"}
_MOST_JUDGED = 20_000  # cells that tell tags from names
_FEW_NAMES = 0.1  # share of cells with a capitalized word, among tags
MAX_FEATURES = 2**31 - 1
MAX_LABELS = 20_000_000
MAX_DIGITS = 4300  # of a label that is a number; Python converts no more of them
MOST_ROUNDS = 8  # in which names are made unique
_TOO_LARGE = 10**MAX_DIGITS
NO_LABELS = "rows without labels; a data file starts with 'N D L'"


def find_fault(label: Any) -> str | None:
    """Return what is wrong with a label, in words that follow "got", or None."""
    if type(label) is int:
        return None if abs(label) < _TOO_LARGE else f"a number of over {MAX_DIGITS} digits"
    if not isinstance(label, str):
        return None if isinstance(label, np.integer) else f"{label!r:.40}"
    if not label.strip():
        return "an empty string"
    if len(label) > MAX_DIGITS and label.isdecimal():
        return f"a number of {len(label):,} digits, and at most {MAX_DIGITS:,} are possible"
    return None


class Numbering(dict[Any, int]):
    """Numbers labels in order of appearance; whole numbers are labels like their digits."""

    def __init__(self) -> None:
        """Start without labels."""
        super().__init__()
        self.names: list[str] = []

    def __missing__(self, label: Any) -> int:
        """Give a new label the next number."""
        fault = find_fault(label)
        if fault is not None:
            raise TypeError(f"a label must be a string; got {fault}")
        if type(label) is not str:  # not remembered: true and 1.0 would be found as 1
            return self[str(label)]
        number = self[label] = len(self.names)
        self.names.append(label)
        return number

    def number(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of labels that were found to be sound already."""
        numbers, find = [], self.get
        for name in names:
            number = find(name)
            if number is None:
                number = self[name] = len(self.names)
                self.names.append(name)
            numbers.append(number)
        return numbers


class NumberedNames(Sequence[str]):
    """The names of labels that are numbers, 0 to n - 1, but for some that are `given`.

    A name is made when it is asked for, so that labels which never occur take no memory.
    """

    def __init__(self, n: int, given: Mapping[int, str] | None = None) -> None:
        """Name `n` labels."""
        self._n, self._given = n, dict(given or {})

    def __len__(self) -> int:
        """Return the number of labels."""
        return self._n

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return the name of a label, or a list of names."""
        found = range(self._n)[index]
        return self._name(found) if isinstance(found, int) else list(map(self._name, found))

    def __iter__(self) -> Iterator[str]:
        """Yield all names."""
        return map(self._name, range(self._n)) if self._given else map(str, range(self._n))

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of names, as lists do."""
        if isinstance(other, NumberedNames):
            return (self._n, self._given) == (other._n, other._given)
        if not isinstance(other, Sequence) or len(other) != self._n:
            return False
        return all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        """Show how many there are."""
        return f"NumberedNames({self._n}, {len(self._given)} given)"

    @property
    def are_numbers(self) -> bool:
        """Whether no name is given."""
        return not self._given

    def _name(self, label: int) -> str:
        return self._given.get(label) or str(label)


class LabelRows:
    """The labels of documents, one row after another, as numbers."""

    def __init__(self, numbering: Numbering) -> None:
        """Start without rows; new labels go into `numbering`."""
        self.numbering = numbering
        self._number_of = numbering.__getitem__
        self._numbers = array("i")
        self._counts = array("i")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._counts)

    def add(self, labels: Iterable[Any]) -> None:
        """Append the labels of one document."""
        before = len(self._numbers)
        self._numbers.extend(map(self._number_of, labels))
        self._counts.append(len(self._numbers) - before)

    def add_numbered(
        self, names: Iterable[str], numbers: NDArray[np.int32], counts: NDArray[np.int32]
    ) -> None:
        """Append the labels of documents, given as places in `names`."""
        own = np.array(self.numbering.number(names), np.int32)
        self._numbers.frombytes(own[numbers].tobytes())
        self._counts.frombytes(counts.tobytes())

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the labels' numbers in a row, and how many of them each document has."""
        return np.frombuffer(self._numbers, np.int32), np.frombuffer(self._counts, np.int32)

    def extend(self, other: "LabelRows") -> None:
        """Append the rows of another file of the same numbering."""
        self._numbers.extend(other._numbers)
        self._counts.extend(other._counts)

    def matrix(self, columns: NDArray[np.int32], n_columns: int) -> sp.csr_matrix:
        """Return Y, with number i in column columns[i]."""
        indptr = np.zeros(len(self._counts) + 1, dtype=np.int64)
        np.cumsum(np.frombuffer(self._counts, dtype=np.int32), out=indptr[1:])
        indices = columns[np.frombuffer(self._numbers, dtype=np.int32)]
        if len(indices) < 2**31:
            indptr = indptr.astype(np.int32)
        ones = np.ones(len(indices), dtype=np.float32)
        Y = sp.csr_matrix((ones, indices, indptr), shape=(len(self._counts), n_columns))
        Y.sum_duplicates()
        Y.data.fill(1)
        return Y


class LabelSpace:
    """What the files of one data set share: the labels' numbers, their URIs, how cells are split.

    The training file decides what separates the labels of a cell, unless the user says it, and
    which columns there are.
    """

    def __init__(self, separator: str | None = None) -> None:
        """Start without labels."""
        self.numbering = Numbering()
        self.uris: dict[str, str] = {}
        self.separator = separator
        self.columns: Any = None  # columns.Columns
        self.said = ""
        # What readers fill; `spool` has others, which lie in files.
        self.new_texts: Callable[[], Any] = list
        self.new_cells: Callable[[], Any] = list
        self.new_rows: Callable[[Numbering], LabelRows] = LabelRows
        self._is_guess = False

    def choose(self, cells: Sequence[str | list[Any]], in_doubt: str = NEVER) -> str:
        """Return what separates the labels of cells, and be able to say it."""
        if self.separator is None:
            self.guess(cells, None, in_doubt)
        separator = self.separator or NEVER
        self.said = _describe_split(cells, separator, is_guess=self._is_guess)
        return separator

    def guess(
        self, cells: Iterable[str | list[Any]], known: str | None, in_doubt: str = NEVER
    ) -> None:
        """Take a separator that is known, or find out by the cells which it is."""
        self._is_guess = known is None
        self.separator = choose_separator(cells, in_doubt) if known is None else known

    def name_concept(self, uri: str | None, label: str | None) -> str:
        """Return the name of a label that has a URI, or a name, or both; the URI is remembered."""
        if not uri or not label:
            return label or uri or ""
        if self.uris.setdefault(label, uri) == uri:
            return label
        told_apart = f"{label} <{uri}>"
        self.uris[told_apart] = uri
        return told_apart


def choose_separator(cells: Iterable[str | list[Any]], in_doubt: str = NEVER) -> str:
    """Return what separates the labels of a cell: the first of `SEPARATORS` in any cell, or blanks.

    Blanks separate URIs, numbers and tags, but never the words of names such as "Billing Question".
    Where words could be either, `in_doubt` decides.
    """
    missing = set(SEPARATORS)
    spaced: list[str] = []
    alone: set[str] = set()
    for cell in cells:
        if not isinstance(cell, str):
            continue
        missing.difference_update(cell)
        if SEPARATORS[0] not in missing:
            break
        if " " in cell and len(spaced) < _MOST_JUDGED:
            spaced.append(cell)
        elif len(alone) < _MOST_JUDGED:
            alone.add(cell)
    if spaced and all(is_uri(word) for cell in spaced for word in cell.split()):
        return " "  # and a URI may hold any of the others
    mark = next((mark for mark in SEPARATORS if mark not in missing), None)
    return mark or _judge_blanks(spaced, alone, in_doubt)


def _judge_blanks(spaced: list[str], alone: set[str], in_doubt: str) -> str:
    """Tell tags with blanks between them from names of several words.

    Tags come in ever new combinations, so there are more of these than tags, and most tags also
    stand alone somewhere. A word with a capital letter is a part of a name.
    """
    if not spaced:
        return NEVER
    combinations = set(spaced)
    words = {word for cell in combinations for word in cell.split()}
    n_named = sum(any(map(_is_capitalized, cell.split())) for cell in combinations)
    if n_named > _FEW_NAMES * len(combinations):
        return NEVER
    n_alone = len(words & alone)
    if all(map(is_number, words)) or len(combinations) > len(words) or 2 * n_alone >= len(words):
        return " "
    return in_doubt


def _is_capitalized(word: str) -> bool:
    return word[0].isupper() and not word.isupper()


def split_cell(cell: str, separator: str) -> list[str]:
    """Split one cell into labels, without blanks around them and without empty ones."""
    if separator == " ":
        return [strip_uri(word) for word in cell.split()]
    parts = cell.split(separator) if separator else [cell]
    return [label for part in parts if (label := part.strip())]


def is_uri(word: str) -> bool:
    """Return whether a word is a URI, with or without the angle brackets around it."""
    return word.startswith(("<http://", "<https://", "<urn:", "http://", "https://", "urn:"))


def strip_uri(word: str) -> str:
    """Return a URI without the angle brackets around it, and other words as they are."""
    return word[1:-1] if word.endswith(">") and is_uri(word) else word


def _describe_split(cells: Sequence[str | list[Any]], separator: str, *, is_guess: bool) -> str:
    """Say how cells are split, with the labels of one that shows it."""
    first = spaced = None
    for cell in cells:
        if not isinstance(cell, str) or not cell:
            continue
        if separator and separator in cell:
            return _say_separated(cell, separator)
        first = first or cell
        spaced = spaced or (cell if " " in cell else None)
    if first is None:
        return ""
    if separator and is_guess:  # then it stands in a cell, of this block or of another
        return _say_separated(first, separator)
    said = f"one a document, e.g. '{spaced or first:.40}'"
    return f"{said} (--separator blank splits it)" if is_guess and spaced else said


def _say_separated(cell: str, separator: str) -> str:
    labels = ", ".join(f"'{label:.40}'" for label in split_cell(cell, separator)[:3])
    mark = _MARK_NAMES.get(separator, f"'{separator}'")
    return f"separated by {mark}, e.g. {labels}"


@dataclass(frozen=True)
class LabelNames:
    """The content of a file that names labels.

    Attributes:
        path: the file.
        names: unique names.
        ids: the ids that the data uses for them, or None where they count from 0.
        by_id: whether the data can only mean ids (the repository's raw texts).
    """

    path: Path
    names: list[str]
    ids: list[str] | None = None
    by_id: bool = False

    @property
    def uris(self) -> dict[str, str]:
        """The URI of each name whose id is one."""
        ids = zip(self.names, self.ids or (), strict=False)
        return {name: strip_uri(label) for name, label in ids if is_uri(label)}

    def of_columns(self, n_labels: int) -> Sequence[str]:
        """Return the names of the columns 0 to n_labels - 1 of feature-row data."""
        if self.ids is None:
            if len(self.names) != n_labels:
                raise DataError(
                    f"{len(self.names)} names, but the data has {n_labels} labels; "
                    "the file must have one line for each label id",
                    path=self.path,
                )
            return self.names
        given = {
            int(label): name
            for label, name in zip(self.ids, self.names, strict=True)
            if is_number(label) and str(int(label)) == label and int(label) < n_labels
        }
        return NumberedNames(n_labels, _without_doubles(given, n_labels, self.path))

    def translate(self, labels: list[str]) -> tuple[dict[str, str], list[str]]:
        """Return the name of each label of the data, and the names whose order is fixed.

        A `.tsv` names the labels that occur; a list of names is the whole label set, and labels
        of the data that are all whole numbers, none of them a name, are positions in it.
        """
        if self.ids is not None:
            names = dict(zip(self.ids, self.names, strict=True))
            used = {names.get(label, label) for label in labels}
            return names, [name for name in self.names if name in used]
        if self.by_id or self._are_positions(labels):
            return self._by_position(labels), self.names
        return {}, self.names

    def _are_positions(self, labels: list[str]) -> bool:
        known = set(self.names)
        return all(
            is_number(label) and int(label) < len(self.names) and label not in known
            for label in labels
        )

    def _by_position(self, labels: list[str]) -> dict[str, str]:
        for label in labels:
            if not (is_number(label) and int(label) < len(self.names)):
                raise DataError(
                    f"names {len(self.names)} labels, 0 to {len(self.names) - 1}, "
                    f"but the data has the label id {label:.40}",
                    path=self.path,
                )
        return {label: self.names[int(label)] for label in labels}


def order_labels(
    labels: list[str], named: LabelNames | None
) -> tuple[NDArray[np.int32], list[str]]:
    """Return the column of each label and the names of all columns.

    Names that a file fixes come first and in its order; others follow, sorted (by value when all
    of them are whole numbers).
    """
    fixed, called = list[str](), labels
    if named is not None:
        names, fixed = named.translate(labels)
        called = [names.get(label, label) for label in labels]
    rest = set(called).difference(fixed)
    by_value = all(map(is_number, rest))
    ordered = [*fixed, *sorted(sorted(rest), key=int if by_value else None)]
    column = dict(zip(ordered, range(len(ordered)), strict=True))
    columns = list(map(column.__getitem__, called))
    return np.array(columns, dtype=np.int32), ordered


def find_label_names(folder: Path) -> LabelNames | None:
    """Read the file that names the labels of the data in `folder`, if there is one."""
    for name, read in (
        ("label_names.txt", _read_list),
        ("label_names.tsv", _read_pairs),
        ("lbl.json", _read_objects),
    ):
        path = find_file(folder, name)
        if path is not None:
            with Source(path) as source:
                return read(source)
    return None


def is_number(label: str) -> bool:
    """Return whether a label can be compared by its value."""
    return label.isdecimal() and len(label) <= MAX_DIGITS


def make_unique(names: list[str], ids: Sequence[str], path: Path) -> list[str]:
    """Append ` [id]` to every name that several ids share."""
    # A name may itself look like "x [3]"; another round settles that.
    for _ in range(MOST_ROUNDS):
        counts = Counter(names)
        if len(counts) == len(names):
            return names
        names = [
            f"{name} [{i}]" if counts[name] > 1 else name
            for name, i in zip(names, ids, strict=True)
        ]
    raise _too_alike(names[0] if names else "", path)


def _without_doubles(given: dict[int, str], n_labels: int, path: Path) -> dict[int, str]:
    """Do for the names of some columns what `make_unique` does; the others have numbers."""
    for _ in range(MOST_ROUNDS):
        counts = Counter(given.values())
        # A name may be the number of a column that has no name.
        numbers = {
            number: name
            for name in counts
            if is_number(name) and str(number := int(name)) == name
            if number < n_labels and number not in given
        }
        if len(counts) == len(given) and not numbers:
            return given
        doubles = {name for name, n in counts.items() if n > 1} | set(numbers.values())
        given = {
            i: f"{name} [{i}]" if name in doubles else name for i, name in (given | numbers).items()
        }
    raise _too_alike(next(iter(given.values())), path)


def _too_alike(name: str, path: Path) -> DataError:
    return DataError(
        f"names collide again and again, even with their ids ('{name:.40}'); "
        "give each label a name of its own",
        path=path,
    )


def _read_list(source: Source) -> LabelNames:
    names = [line.strip() for _, lines in source.lines() for line in lines]
    while names and not names[-1]:
        names.pop()
    names = [name or str(i) for i, name in enumerate(names)]
    ids = NumberedNames(len(names))
    return LabelNames(source.path, make_unique(names, ids, source.path))


def _read_pairs(source: Source) -> LabelNames:
    names: dict[str, str] = {}
    for first, lines in source.lines():
        for number, line in enumerate(lines, first):
            label, tab, name = line.partition("\t")
            if not line.strip():
                continue
            if not tab or not label.strip():
                raise DataError(
                    f"a line is 'id<TAB>name'; got '{line:.40}'", path=source.path, line=number
                )
            if label.strip() in names:
                raise DataError(
                    f"the id '{label.strip()}' stands here a second time",
                    path=source.path,
                    line=number,
                )
            names[label.strip()] = name.strip() or label.strip()
    ids = list(names)
    return LabelNames(source.path, make_unique(list(names.values()), ids, source.path), ids)


def _read_objects(source: Source) -> LabelNames:
    names: list[str] = []
    ids: list[str] = []
    for first, lines in source.lines():
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            label = parse_object(line, source.path, number)
            uid = str(label.get("uid", len(names)))
            names.append(str(label.get("title") or uid).strip())
            ids.append(uid)
    # Identifiers may repeat as well; positions never do.
    ids = ids if len(set(ids)) == len(ids) else [str(i) for i in range(len(ids))]
    return LabelNames(source.path, make_unique(names, ids, source.path), by_id=True)
