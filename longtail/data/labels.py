"""Labels as words: numbering them, splitting cells of them, and the files that name them.

Names come from a file beside the data: `label_names.txt` (one a line, by id), `label_names.tsv`
(id, tab, name), or the `lbl.json` of the extreme classification repository. Where two ids share a
name, each gets its id in brackets, so that names stay unique.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data.source import Source, parse_object
from longtail.errors import DataError

SEPARATORS = "\t;|,"


class Numbering(dict[Any, int]):
    """Numbers labels in order of appearance; whole numbers are labels like their digits."""

    def __init__(self) -> None:
        """Start without labels."""
        super().__init__()
        self.names: list[str] = []

    def __missing__(self, label: Any) -> int:
        """Give a new label the next number."""
        if type(label) is str and label.strip():
            number = len(self.names)
            self.names.append(label)
        elif type(label) is int or isinstance(label, np.integer | np.str_):
            number = self[str(label)]
        else:
            raise TypeError(f"a label is a string that is not empty; got {label!r:.40}")
        self[label] = number
        return number


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
    """What the files of one data set share: the labels' numbers, and how a cell is split.

    A cell that holds several labels is split at the first of tab, semicolon, bar and comma that
    occurs in any cell of the file, at blanks when none of them does. The training file decides.
    """

    def __init__(self) -> None:
        """Start without labels."""
        self.numbering = Numbering()
        self.separator: str | None = None

    def split_cells(self, cells: Sequence[str | list[Any]]) -> LabelRows:
        """Split each cell into labels; a cell that is a list already stays as it is."""
        if self.separator is None:
            self.separator = choose_separator(cells)
        rows = LabelRows(self.numbering)
        for cell in cells:
            rows.add(split_cell(cell, self.separator) if isinstance(cell, str) else cell)
        return rows


def choose_separator(cells: Iterable[str | list[Any]]) -> str:
    """Return the first of `SEPARATORS` in any cell, or a blank."""
    missing = set(SEPARATORS)
    for cell in cells:
        if isinstance(cell, str):
            missing.difference_update(cell)
            if SEPARATORS[0] not in missing:
                break
    return next((mark for mark in SEPARATORS if mark not in missing), " ")


def split_cell(cell: str, separator: str) -> list[str]:
    """Split one cell into labels, without blanks around them and without empty ones."""
    if separator == " ":
        return cell.split()
    return [label for part in cell.split(separator) if (label := part.strip())]


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

    def of_columns(self, n_labels: int) -> list[str]:
        """Return the names of the columns 0 to n_labels - 1 of feature-row data."""
        if self.ids is None:
            if len(self.names) != n_labels:
                raise DataError(
                    f"{len(self.names)} names, but the data has {n_labels} labels; "
                    "the file must have one line for each label id",
                    path=self.path,
                )
            return self.names
        names = dict(zip(self.ids, self.names, strict=True))
        columns = [names.get(str(i), str(i)) for i in range(n_labels)]
        return make_unique(columns, [str(i) for i in range(n_labels)])

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
            label.isdecimal() and int(label) < len(self.names) and label not in known
            for label in labels
        )

    def _by_position(self, labels: list[str]) -> dict[str, str]:
        for label in labels:
            if not (label.isdecimal() and int(label) < len(self.names)):
                raise DataError(
                    f"names {len(self.names)} labels, 0 to {len(self.names) - 1}, "
                    f"but the data has the label id {label}",
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
    names, fixed = named.translate(labels) if named else ({}, [])
    known = set(fixed)
    rest = {names.get(label, label) for label in labels} - known
    by_value = all(name.isdecimal() for name in rest)
    ordered = [*fixed, *sorted(rest, key=lambda name: (int(name) if by_value else 0, name))]
    column = {name: i for i, name in enumerate(ordered)}
    columns = [column[names.get(label, label)] for label in labels]
    return np.array(columns, dtype=np.int32), ordered


def find_label_names(folder: Path) -> LabelNames | None:
    """Read the file that names the labels of the data in `folder`, if there is one."""
    for name, read in (
        ("label_names.txt", _read_list),
        ("label_names.tsv", _read_pairs),
        ("lbl.json", _read_objects),
    ):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                with Source(path) as source:
                    return read(source)
    return None


def make_unique(names: list[str], ids: Sequence[str]) -> list[str]:
    """Append ` [id]` to every name that several ids share."""
    counts = Counter(names)
    if len(counts) == len(names):
        return names
    unique = [
        f"{name} [{i}]" if counts[name] > 1 else name for name, i in zip(names, ids, strict=True)
    ]
    # A name may itself look like "x [3]"; another round settles that.
    return make_unique(unique, ids)


def _read_list(source: Source) -> LabelNames:
    names = [line.strip() for _, lines in source.lines() for line in lines]
    while names and not names[-1]:
        names.pop()
    names = [name or str(i) for i, name in enumerate(names)]
    return LabelNames(source.path, make_unique(names, [str(i) for i in range(len(names))]))


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
    return LabelNames(source.path, make_unique(list(names.values()), ids), ids)


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
    return LabelNames(source.path, make_unique(names, ids), by_id=True)
