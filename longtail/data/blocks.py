"""Documents with their labels, block by block: a test split of any size in little memory.

Texts in files of a single-file format are read as they are needed. Where the separator of labels is
to be guessed, such files are passed twice, as all cells count. What has to be seen as a whole is
read at once and cut: feature rows, layouts of several files, streams, labels that a list may name,
pairs that are excluded.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from longtail.data.dataset import Dataset
from longtail.data.documents import (
    BATCH,
    Format,
    TextFile,
    collect,
    collect_cells,
    cut_documents,
    describe_reading,
    open_texts,
)
from longtail.data.folder import find_evaluated, read_splits
from longtail.data.labels import (
    LabelNames,
    LabelSpace,
    find_label_names,
    is_uri,
)
from longtail.data.roles import recognize_labelled
from longtail.data.source import Source
from longtail.data.splits import naming_first
from longtail.data.table import Opened
from longtail.reading import ANYTHING, ReadOptions


def read_blocks(data: str | Path | BinaryIO, options: ReadOptions = ANYTHING) -> Iterator[Dataset]:
    """Yield the test split of `data`, or all its documents where it has no other split.

    Labels keep their columns from block to block; the names of later ones come behind.
    """
    files, folder = find_evaluated(data, options)
    named = find_label_names(folder) if files else None
    # Whether labels are names or places in a list of names takes all of them to see.
    is_list = named is not None and named.ids is None and not named.by_id
    if files and not is_list and _find_format(files[0], options) is not Format.SPARSE:
        yield from _TextFiles(files, options, named).blocks()
        return
    splits = read_splits(data, options)
    yield from cut_documents(splits.train if splits.test is None else splits.test, BATCH)


def _find_format(file: Path, options: ReadOptions) -> Format:
    with Source(file, options.encoding) as source:
        return recognize_labelled(source, options)


@dataclass
class _TextFiles:
    """The files of one split; the first decides which column is what."""

    files: list[Path]
    options: ReadOptions
    named: LabelNames | None
    # By name, and of each label: a label and an id may stand for the same name.
    _columns: dict[str, int] = field(default_factory=dict)
    _column_of: "array[int]" = field(default_factory=lambda: array("i"))
    _uris: dict[str, str] = field(default_factory=dict)

    def blocks(self) -> Iterator[Dataset]:
        """Yield the documents with their labels."""
        space = LabelSpace(self.options.separator)
        for source, form, opened in self._open(space):
            if opened.has_cells and space.separator is None:
                known = None if opened.columns is None else opened.columns.separator
                space.guess(self._cells() if known is None else [], known)
            collected = collect_cells if opened.has_cells else collect
            documents = chain.from_iterable(opened.batches)
            with naming_first(self.files[0], source.path):
                while batch := list(islice(documents, BATCH)):
                    block = collected(batch, source.path, space)
                    block.read_as = describe_reading(form, opened.columns, source, space.said)
                    yield self._build(block, space)

    def _open(self, space: LabelSpace) -> Iterator[tuple[Source, Format, Opened]]:
        """Open each file in turn."""
        options = self.options
        for file in self.files:
            with naming_first(self.files[0], file), Source(file, options.encoding) as source:
                form = recognize_labelled(source, options)
                opened = open_texts(source, form, options, space)
                yield source, form, opened
            if opened.columns is not None and file is self.files[0]:
                options = opened.columns.pin(options)

    def _cells(self) -> Iterator[Any]:
        """Yield what all documents hold in place of labels."""
        for _, _, opened in self._open(LabelSpace()):
            for _, _, labels, _, _ in chain.from_iterable(opened.batches):
                yield labels or ""

    def _build(self, block: TextFile, space: LabelSpace) -> Dataset:
        """Return the documents with the names of all labels so far."""
        new = space.numbering.names[len(self._column_of) :]
        names = {} if self.named is None else self.named.translate(new)[0]
        uris = ({} if self.named is None else self.named.uris) | space.uris
        for label in new:
            name = names.get(label, label)
            self._column_of.append(self._columns.setdefault(name, len(self._columns)))
            if name in uris or is_uri(name):
                self._uris[name] = uris.get(name, name)
        columns = np.array(self._column_of, np.int32)
        return block.as_dataset(columns, list(self._columns), self._uris or None)
