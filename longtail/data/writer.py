"""Writing data sets: the name of the output says the format.

| name                        | texts                     | feature rows                  |
|-----------------------------|---------------------------|-------------------------------|
| a folder (no ending)        | train.jsonl, test.jsonl   | train.txt, test.txt           |
| x.jsonl                     | JSON lines, with ids      | -                             |
| x.csv, x.tsv                | id, text, labels as JSON  | -                             |
| x.parquet                   | id, text, list of labels  | -                             |
| x.txt                       | fastText                  | sparse rows, `N D L` header   |

Each but Parquet also with `.gz`. A file holds one split, so data with a test split needs a folder.
A folder also keeps the names and order of all labels (`label_names.txt`), the names of features
(`feature_names.txt`) and the pairs that must not be predicted (`filter_labels_train.txt`,
`filter_labels_test.txt`). Everything is written under a temporary name first, and nothing that
exists is ever replaced.

What is written reads back as the same documents. A document that a format cannot hold, such as a
text with a line break in fastText, is named in an error, and nothing is written.
"""

import csv
import gzip
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import numpy as np
import scipy.sparse as sp

from longtail.data.coerce import as_dataset
from longtail.data.dataset import Dataset, Splits
from longtail.data.documents import FASTTEXT_MARK, Format, recognize
from longtail.data.folder import read_splits
from longtail.data.labels import MAX_FEATURES, MAX_LABELS, NumberedNames, find_fault
from longtail.data.packed import MANIFEST, FindWords, read_packed, write_packed
from longtail.data.parquet import VALUE_BYTES
from longtail.data.source import Source, is_bomb
from longtail.data.splits import FEATURE_NAMES
from longtail.errors import DataError, suggest
from longtail.reading import ANYTHING, ReadOptions
from longtail.runtime.mapped import scratch_in
from longtail.runtime.store import move_to
from longtail.runtime.store.cache import scratch_folder
from longtail.storage import RemotePath, as_place, is_there

_ROWS_AT_ONCE = 4096
_DOCUMENTS_AT_ONCE = 1 << 16
_INSTEAD = "write .jsonl, .csv or .parquet instead"


def convert(data: str | Path, out: str | Path, options: ReadOptions = ANYTHING) -> Splits:
    """Read the data set `data` and write it to `out`, whose name says the format."""
    _check_target(as_place(out))
    splits = read_splits(data, options)
    write_dataset(splits, out)
    return splits


def pack(
    data: Any,
    out: str | Path,
    options: ReadOptions = ANYTHING,
    *,
    find_words: FindWords | None = None,
) -> Splits:
    """Write a data set to the new folder `out` so that it is read at once, however large it is.

    Args:
        data: whatever `load` reads, or a Dataset, or the Splits of one. A path is read and written
            piece by piece, so that it may be larger than memory.
        out: a new folder, or its URL.
        options: how a path is to be read.
        find_words: `longtail.text.tokens.find_words`, to write the words of training texts as
            well, so that models which read texts need not find them again.

    Returns:
        The data set as it lies in `out`.
    """
    out = as_place(out)
    if is_there(out):
        raise DataError("exists already; choose another name or remove it", path=out)
    if isinstance(out, RemotePath):
        out.check_writable()
        with scratch_folder() as folder:
            pack(data, folder / out.name, options, find_words=find_words)
            return read_packed(move_to(folder / out.name, out, MANIFEST))
    if isinstance(data, Splits | Dataset):
        splits = _share_labels(data if isinstance(data, Splits) else Splits(data, None))
        write_packed(splits, out, find_words)
    else:
        with scratch_in(out.absolute().parent if out.absolute().parent.is_dir() else None):
            write_packed(read_splits(data, replace(options, in_files=True)), out, find_words)
    return read_packed(out)


def names_folder(out: str | Path) -> bool:
    """Whether `write_dataset` would make a folder of this name, not a file."""
    return not _check_target(as_place(out))


def write_dataset(splits: Splits | Dataset, out: str | Path, format: str | None = None) -> None:
    """Write a data set to `out`, whose name says the format unless `format` does.

    `format` is an ending from the table above without its dot, such as "jsonl" or "csv.gz". For a
    folder it is the format of the files in it.
    """
    splits = _share_labels(splits if isinstance(splits, Splits) else Splits(splits, None))
    out = as_place(out)
    ending = _check_target(out)
    form = ending or (format or ("jsonl" if splits.train.texts is not None else "txt"))
    write = _choose_writer(form, splits.train, out)
    if ending and splits.test is not None:
        raise DataError(
            "the data has a training and a test split, and a file holds only one; "
            "give a folder, or convert one file at a time",
            path=out,
        )
    if ending and splits.train.exclude is not None:
        raise DataError(
            "the data has pairs that must not be predicted, and only a folder holds them; "
            "give a folder",
            path=out,
        )
    with _whole_or_nothing(out) as temporary:
        if ending:
            _check_names(splits.train)
            write(splits.train, temporary)
        else:
            _write_folder(splits, temporary, form, write)


def _share_labels(splits: Splits) -> Splits:
    """Return checked splits that number their labels alike."""
    train, test = as_dataset(splits.train), splits.test
    for data in filter(None, (train, test)):
        if not isinstance(data.label_names, NumberedNames):
            name, n = max(Counter(data.label_names).items(), key=itemgetter(1), default=("", 0))
            if n > 1:
                raise DataError(f"{n} labels have the same name, {name!r:.40}")
    if test is not None:
        test = as_dataset(test).align(train.label_names)
        train = train.align(test.label_names)
    return Splits(train, test)


def _check_target(out: Path) -> str:
    """Return the ending that names a format, or an empty string for a folder."""
    if is_there(out):
        raise DataError("exists already; choose another name or remove it", path=out)
    ending = "".join(out.suffixes[-2:] if out.suffix == ".gz" else out.suffixes[-1:])[1:]
    # A folder may be called data-1.2.
    if ending in _WRITERS or ending.isdecimal() or not ending:
        return ending if ending in _WRITERS else ""
    raise DataError(
        f"no format has the ending '.{ending}'{suggest(ending, _WRITERS) or '.'} "
        f"Known are {', '.join('.' + known for known in _ENDINGS)}; a folder has no ending",
        path=out,
    )


def _choose_writer(form: str, data: Dataset, out: Path) -> Callable[[Dataset, Path], None]:
    if form not in _WRITERS:
        raise DataError(f"no format is called '{form}'{suggest(form, _WRITERS)}", path=out)
    for_texts, for_rows = _WRITERS[form]
    if data.texts is not None:
        return for_texts
    if for_rows is None:
        raise DataError(
            f"the data holds feature rows, and a .{form} file holds texts; "
            "write a .txt file or a folder instead",
            path=out,
        )
    return for_rows


def _check_names(data: Dataset) -> None:
    """Raise a DataError for labels that a single file cannot hold."""
    if data.X is not None:
        if data.label_names != NumberedNames(data.n_labels):
            raise DataError(
                "a sparse file holds the numbers of labels, and these have names; give a folder"
            )
        return
    for i, name in enumerate(data.label_names):
        _check_name(i, name)


def _check_name(i: int, name: str) -> None:
    fault = find_fault(name) or (None if _is_unicode(name) else "half a surrogate pair")
    if fault is not None:
        raise DataError(f"label {i} cannot be written: it is {fault}")


def _is_unicode(text: str) -> bool:
    """Return whether UTF-8 holds the text; halves of surrogate pairs it does not."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


@contextmanager
def _whole_or_nothing(out: Path) -> Iterator[Path]:
    """Give a temporary path that becomes `out` if all goes well and vanishes otherwise."""
    if isinstance(out, RemotePath):
        with TemporaryDirectory(prefix="longtail-") as folder:
            yield Path(folder) / out.name
            _upload(Path(folder) / out.name, out)
        return
    temporary = out.with_name(f".tmp.{os.getpid()}.{out.name}")  # keeps the ending
    try:
        yield temporary
        temporary.rename(out)
    except DataError as error:
        raise DataError(str(error), path=out) from None
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", path=out) from None
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def _upload(written: Path, out: RemotePath) -> None:
    """Copy a file or a folder to a URL; the training split last, without which it is no data."""
    if not written.is_dir():
        out.put(written)
        return
    files = (file for file in written.rglob("*") if file.is_file())
    for file in sorted(files, key=lambda file: ("train" in file.name, file)):
        RemotePath(out / file.relative_to(written)).put(file)


def _write_folder(
    splits: Splits, folder: Path, form: str, write: Callable[[Dataset, Path], None]
) -> None:
    folder.mkdir()
    names = splits.train.label_names
    # Rows whose labels have no names need no file of them, and an empty file cannot be read.
    if len(names) and (splits.train.X is None or names != NumberedNames(len(names))):
        for i, name in enumerate(names):
            _check_name(i, name)
        _write_lines(names, folder / "label_names.txt", "label")
    if splits.train.feature_names is not None:
        _write_lines(splits.train.feature_names, folder / FEATURE_NAMES, "feature")
    for role, data in (("train", splits.train), ("test", splits.test)):
        if data is None:
            continue
        write(data, folder / f"{role}.{form}")
        if data.exclude is not None:
            pairs = data.exclude.tocoo()
            with _open_text(folder / f"filter_labels_{role}.txt") as file:
                columns = zip(pairs.row.tolist(), pairs.col.tolist(), strict=True)
                file.writelines(f"{document} {label}\n" for document, label in columns)


def _write_lines(names: Sequence[str], path: Path, what: str) -> None:
    with _open_text(path) as file:
        for i, name in enumerate(names):
            # A reader drops a byte order mark, as it drops blanks.
            is_marked = i == 0 and name.startswith("\ufeff")
            if "\n" in name or "\r" in name or name != name.strip() or is_marked:
                raise DataError(f"{what} {i}, {name!r:.40}, does not fit on a line")
            file.write(f"{name}\n")


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    """Open a file for UTF-8 text with plain line ends, packed where the name ends in .gz."""
    with path.open("xb") as raw:
        # Without a name and a time in its header, the same data gives the same file.
        packed = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.suffix == ".gz" else None
        with io.TextIOWrapper(packed or raw, encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            unpacked = packed.tell() if packed else 0
    _check_packed(unpacked, path)


def _check_packed(unpacked: int, path: Path) -> None:
    """Raise a DataError for a file that would be refused as a decompression bomb."""
    if is_bomb(unpacked, path.stat().st_size):
        raise DataError(
            "the documents are so alike that the file would look like a decompression bomb; "
            "write .jsonl, .csv, .tsv or .txt without .gz"
        )


def _labelled(data: Dataset) -> Iterator[tuple[str, list[str]]]:
    """Yield each text with its label names."""
    names, indptr = data.label_names, data.Y.indptr
    for i, text in enumerate(data.texts or ()):
        if not _is_unicode(text):
            raise DataError(f"document {i + 1} holds half a surrogate pair, which is no character")
        labels = data.Y.indices[indptr[i] : indptr[i + 1]].tolist()
        yield text, [names[label] for label in labels]


def _with_ids(data: Dataset) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yield each text with its id, nothing where there are no ids, and its label names."""
    ids = data.ids
    for i, (text, labels) in enumerate(_labelled(data)):
        if ids is not None and not _is_unicode(ids[i]):
            raise DataError(f"the id of document {i + 1} holds half a surrogate pair")
        yield [] if ids is None else [ids[i]], text, labels


def _write_json_lines(data: Dataset, path: Path) -> None:
    _refuse_nothing(data)
    with _open_text(path) as file:
        for ids, text, labels in _with_ids(data):
            document: dict[str, Any] = dict(zip(_id_column(data), ids, strict=True))
            document |= {"text": text, "labels": labels}
            file.write(json.dumps(document, ensure_ascii=False) + "\n")


def _refuse_nothing(data: Dataset) -> None:
    """Raise a DataError if there are no documents, for formats in which the file would be empty."""
    if not len(data):
        raise DataError("there are no documents, and an empty file cannot be read")


def _write_table(data: Dataset, path: Path, delimiter: str) -> None:
    with _open_text(path) as file:
        plain = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        # A carriage return gets no quotes by itself, but cannot be read without them.
        quoted = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        plain.writerow([*_id_column(data), "text", "labels"])
        for ids, text, labels in _with_ids(data):
            rows = quoted if "\r" in text or any("\r" in id for id in ids) else plain
            rows.writerow([*ids, text, json.dumps(labels, ensure_ascii=False)])


def _id_column(data: Dataset) -> list[str]:
    return [] if data.ids is None else ["id"]


def _write_csv(data: Dataset, path: Path) -> None:
    _write_table(data, path, ",")


def _write_tsv(data: Dataset, path: Path) -> None:
    _write_table(data, path, "\t")


def _write_parquet(data: Dataset, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    named = [(name, pa.string()) for name in (*_id_column(data), "text")]
    schema = pa.schema([*named, ("labels", pa.list_(pa.string()))])
    unpacked = 0
    with path.open("xb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        documents = _with_ids(data)
        while batch := list(islice(documents, _DOCUMENTS_AT_ONCE)):
            rows = ((*ids, text, labels) for ids, text, labels in batch)
            table = pa.table(list(map(list, zip(*rows, strict=True))), schema=schema)
            n_labels = sum(len(labels) for _, _, labels in batch)
            unpacked += table.nbytes + VALUE_BYTES * (len(schema) * len(batch) + n_labels)
            writer.write_table(table)
    _check_packed(unpacked, path)


def _write_fasttext(data: Dataset, path: Path) -> None:
    """Write a document a line."""
    _refuse_nothing(data)
    for name in data.label_names:
        if name.split() != [name]:
            raise DataError(
                f"a fastText label cannot hold blanks, and {name!r:.40} does; {_INSTEAD}"
            )
    with _open_text(path) as file:
        for i, (text, labels) in enumerate(_labelled(data)):
            if fault := _find_fasttext_fault(text, is_first=i == 0 and not labels):
                raise DataError(
                    f"the text of document {i + 1} {fault}, which fastText cannot hold; {_INSTEAD}"
                )
            marked = "".join(f"{FASTTEXT_MARK}{label} " for label in labels)
            file.write(f"{marked}{text}\n")
    _check_recognized(path)


def _find_fasttext_fault(text: str, *, is_first: bool) -> str | None:
    if "\n" in text or "\r" in text:
        return "has a line break"
    if text.lstrip().startswith(FASTTEXT_MARK):
        return f"begins with {FASTTEXT_MARK}"
    return "begins with a byte order mark" if is_first and text.startswith("\ufeff") else None


def _check_recognized(path: Path) -> None:
    """Raise a DataError if the first documents without labels hide what the file is."""
    try:
        with Source(path) as source:
            recognized = recognize(source) is Format.FASTTEXT
    except DataError:
        recognized = False
    if not recognized:
        raise DataError(
            "document 1 has no labels, and too few of those after it have any for the file to be "
            f"recognized as fastText; {_INSTEAD}"
        )


def _write_sparse(data: Dataset, path: Path) -> None:
    X, Y = data.X, data.Y
    if X is None:
        raise DataError("the data holds no feature rows")
    for got, most, what in ((X, MAX_FEATURES, "features"), (Y, MAX_LABELS, "labels")):
        if got.shape[1] > most:
            raise DataError(f"a sparse file holds at most {most} {what}; got {got.shape[1]}")
    with _open_text(path) as file:
        file.write(f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}\n")
        for start in range(0, X.shape[0], _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            file.writelines(_sparse_lines(X[rows], Y[rows]))


def _sparse_lines(X: sp.csr_matrix, Y: sp.csr_matrix) -> Iterator[str]:
    labels = Y.indices.tolist()
    features = [
        f"{feature}:{value.removesuffix('.0')}"
        for feature, value in zip(
            X.indices.tolist(), X.data.astype(np.float32).astype("U").tolist(), strict=True
        )
    ]
    label_ends, feature_ends = Y.indptr.tolist(), X.indptr.tolist()
    for i in range(X.shape[0]):
        row_labels = ",".join(map(str, labels[label_ends[i] : label_ends[i + 1]]))
        row_features = " ".join(features[feature_ends[i] : feature_ends[i + 1]])
        yield f"{row_labels} {row_features}\n"


_Write = Callable[[Dataset, Path], None]
_ENDINGS: dict[str, tuple[_Write, _Write | None]] = {
    "jsonl": (_write_json_lines, None),
    "csv": (_write_csv, None),
    "tsv": (_write_tsv, None),
    "parquet": (_write_parquet, None),
    "txt": (_write_fasttext, _write_sparse),
}
_WRITERS = _ENDINGS | {f"{e}.gz": w for e, w in _ENDINGS.items() if e != "parquet"}
