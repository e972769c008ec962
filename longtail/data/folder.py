r"""Data sets on disk: a file, or a folder with a training split and perhaps a test split.

A folder that `longtail data pack` wrote is mapped as it is (see packed.py). Any other is looked at
in this order:

1. `*_data.txt` with `*_trSplit.txt` and `*_tstSplit.txt`: the repository's small sets, ten splits
   as columns of row numbers that count from 1;
2. `trn_X_Xf.txt` with `trn_X_Y.txt`, and the same with `tst`, unless `trn.json` lies there too;
3. `train_texts.txt` with `train_labels.txt`, and the same with `test`;
4. `NAME.txt` with `NAME.tsv` or `NAME.key`: a full text corpus of Annif (see annif.py);
5. the files named train, trn or training, and those named test or tst, in any format of a single
   file (`trn.json` of the repository's raw texts among them), or those in folders of such names; or
   else the only file that can be read at all. Files named valid, validation, val or dev are left
   alone: load them by themselves.

Files whose names differ only in numbers, or that all end in `.parquet`, are parts of one split; so
are the files that a pattern such as `data/*.csv` names. Every file may be packed and then ends in
`.gz`, `.bz2`, `.xz` or `.zst`. Names of labels are taken from the same folder (see labels.py).
There, `feature_names.txt` names the columns of feature rows, one a line, `filter_labels_train.txt`
and `filter_labels_test.txt` give the pairs of document and label that must never be predicted.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from longtail.data.annif import find_full_texts
from longtail.data.dataset import Dataset, Splits
from longtail.data.documents import choose_format, cut_documents, read_file
from longtail.data.frames import is_frame, read_frame, read_frames
from longtail.data.labels import LabelSpace
from longtail.data.layouts import (
    add_filters,
    is_layout,
    is_one_of_two,
    load_layout,
    load_pair,
    read_full_texts,
)
from longtail.data.packed import find_packed, packed_batches, read_packed, say_split
from longtail.data.roles import (
    find_role,
    find_roles,
    list_data_files,
    list_files,
    list_inside,
    look_like_parts,
    match,
)
from longtail.data.source import PACKED_ENDINGS, find_file
from longtail.data.splits import read_files
from longtail.errors import DataError
from longtail.reading import ANYTHING, ReadOptions
from longtail.storage import as_place

# How a folder holds a data set, for those who make one.
LAYOUTS = {
    "training and test files": "train.csv and test.csv, or train.jsonl, trn.json.gz, …; or folders "
    "train and test; several parts of a split are numbered: train-1.parquet, train-2.parquet",
    "parallel files": "train_texts.txt with train_labels.txt, and the same with test",
    "full texts of Annif": "NAME.txt with NAME.tsv (a URI, a tab and a label a line) or NAME.key "
    "(a label a line)",
    "XC matrices": "trn_X_Xf.txt with trn_X_Y.txt, and the same with tst",
    "XC small sets": "X_data.txt with X_trSplit.txt and X_tstSplit.txt",
    "XC raw texts": "trn.json.gz, tst.json.gz, lbl.json.gz, filter_labels_test.txt",
    "packed data": "what longtail data pack writes; FOLDER/train and FOLDER/test are its splits",
}
MEMORY_A_BYTE = 1.5  # bytes of memory that a byte of a file becomes, about
UNPACKED = 4  # bytes that a byte of a packed file becomes, about


def load(
    data: Any,
    *,
    text: str | Sequence[str] | None = None,
    labels: str | None = None,
    id: str | None = None,
    separator: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    format: str | None = None,
    keep: bool = False,
    split: int = 0,
) -> Splits:
    """Read a data set; its format is recognized, and which column is what is guessed by name.

    Args:
        data: a file, a folder, a pattern such as `data/*.csv`, the URL of any of them, `-` for
            standard input; or a frame of pandas or polars, a table of pyarrow, a data set of
            Hugging Face. A single file is the training split, and there is no test split.
        text: the column with the text, or several to be joined.
        labels: the column with the labels.
        id: the column with the documents' ids.
        separator: what stands between the labels of a cell, "none" if each is one label.
        delimiter: what stands between the cells of a CSV file.
        encoding: the encoding of the text.
        format: one of `documents.FORMATS`, where recognizing it does not do.
        keep: keep all columns in `Dataset.columns`.
        split: which of the ten divisions of the repository's small sets to take.
    """
    options = ReadOptions(text, labels, id, separator, delimiter, encoding, format, keep)
    return read_splits(data, options, split)


def read_splits(data: Any, options: ReadOptions = ANYTHING, split: int = 0) -> Splits:
    """Do what `load` does, with its options in one object."""
    if is_frame(data):
        return Splits(read_frame(data, options), None)
    if isinstance(data, Mapping):
        return Splits(*read_frames(data, options))
    form = choose_format(options.format)
    if str(data) == "-" or not isinstance(data, str | Path):
        return read_files(None, [[data]], options)
    path = as_place(data)
    if (packed := find_packed(path, options)) is not None:
        return read_packed(*packed)
    if not path.exists() and (files := match(path)):
        folder = files[0].parent
        return read_files(folder, find_roles(folder, files, options, are_parts=True), options)
    if not path.exists():
        raise DataError("no such file or folder", path=path)
    if not path.is_dir():
        pair = load_pair(path, options) if form is None else None
        return pair or read_files(path.parent, [[path]], options)
    files = list_files(path)
    found = load_layout(path, files, split, options) if form is None else None
    return found or add_filters(path, read_files(path, find_roles(path, files, options), options))


def find_evaluated(data: Any, options: ReadOptions) -> tuple[list[Path], Path]:
    """Return the files with the documents to evaluate on, and the folder that may name labels.

    They are the test split of a folder or pattern, or a single file, in a format of a single file.
    There are none where `data` is anything else, or has pairs that are excluded.
    """
    path = as_place(data) if isinstance(data, str | Path) and str(data) != "-" else Path()
    if find_packed(path, options) is not None:
        return [], path
    if path.is_file():
        is_half = options.format is None and is_one_of_two(path)
        return [] if is_half else [path], path.parent
    if path == Path() or not (path.is_dir() or (files := match(path))):
        return [], path
    if not path.is_dir():
        return find_roles(files[0].parent, files, options, are_parts=True)[-1], files[0].parent
    files = list_files(path)
    holds_layout = options.format is None and is_layout(path, files)
    if holds_layout or find_file(path, "filter_labels_test.txt"):
        return [], path
    return find_roles(path, files, options)[-1], path


def estimate_bytes(data: str | Path) -> int:
    """Return about how much memory the data at a path take once they are read; 0 if unknown."""
    path = as_place(data)
    if str(path) == "-" or find_packed(path, ANYTHING) is not None:
        return 0
    if path.is_dir():  # its files, and those in folders called train and test
        files = [*list_files(path), *chain.from_iterable(list_inside(path).values())]
    else:
        files = [path] if path.is_file() else match(path)
    total = 0
    for file in files:
        with suppress(OSError):  # whatever is wrong with it, reading will say
            size = file.stat().st_size if file.is_file() else 0
            total += size * (UNPACKED if file.suffix in PACKED_ENDINGS else 1)
    return int(MEMORY_A_BYTE * total)


def read_batches(data: str | Path | BinaryIO, options: ReadOptions = ANYTHING) -> Iterator[Dataset]:
    """Yield batches of documents to be labelled, from whatever `load` reads.

    Of a folder with several splits that is the test split; `Dataset.read_as` then says so. The
    labels of a batch, if it has any, are those of the documents; `documents.read_file` says what
    else is in it.
    """
    path = as_place(data) if isinstance(data, str | Path) else None
    packed = None if path is None else find_packed(path, options)
    if packed is not None:
        yield from packed_batches(*packed)
    elif path is None or str(path) == "-" or path.is_file():
        yield from read_file(data if path is None else path, options)
    elif path.is_dir():
        files = list_data_files(path)
        texts = find_full_texts(files)
        if texts:
            yield read_full_texts(texts, options, LabelSpace()).without_labels()
        elif _is_one_split(files):
            yield from _read_parts_in_turn(files, options)
        else:
            yield from _read_last_split(path, options)
    else:
        yield from _read_parts_in_turn(match(path) or [path], options)


def _read_parts_in_turn(files: list[Path], options: ReadOptions) -> Iterator[Dataset]:
    for file in files:
        yield from read_file(file, options)


def _is_one_split(files: list[Path]) -> bool:
    """Return whether these are one file, or numbered parts of one split."""
    return len(files) == 1 or (look_like_parts(files) and len({*map(find_role, files)}) == 1)


def _read_last_split(folder: Path, options: ReadOptions) -> Iterator[Dataset]:
    """Yield the test split, or the training split where there is no other."""
    files, _ = find_evaluated(folder, options)
    if files:
        is_inside = files[0].parent != folder  # in a folder called train or test
        is_test = find_role(files[0].parent if is_inside else files[0]) == "test"
        batches = _read_parts_in_turn(files, options)
    else:
        train, test = read_splits(folder, options)
        is_test = test is not None
        batches = cut_documents(train if test is None else test)
    for batch in batches:
        yield say_split(batch, folder) if is_test else batch
