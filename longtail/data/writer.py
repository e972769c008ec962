"""Writing data sets: the name of the output says the format.

| name                        | texts                     | feature rows                  |
|-----------------------------|---------------------------|-------------------------------|
| a folder (no ending)        | train.jsonl, test.jsonl   | train.txt, test.txt           |
| x.jsonl                     | JSON lines                | -                             |
| x.csv, x.tsv                | a table, labels as JSON   | -                             |
| x.parquet                   | text, list of labels      | -                             |
| x.txt                       | fastText                  | sparse rows, `N D L` header   |

Each but Parquet also with `.gz`. A file holds one split, so data with a test split needs a folder.
A folder also keeps the names and order of all labels (`label_names.txt`) and the pairs that must
not be predicted (`filter_labels_train.txt`, `filter_labels_test.txt`). Everything is written under
a temporary name first, and nothing that exists is ever replaced.
"""

import csv
import gzip
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
import scipy.sparse as sp

from longtail.data.dataset import Dataset, Splits
from longtail.data.documents import FASTTEXT_MARK
from longtail.data.folder import load
from longtail.errors import DataError, suggest

_ROWS_AT_ONCE = 4096
_DOCUMENTS_AT_ONCE = 1 << 16


def convert(data: str | Path, out: str | Path) -> Splits:
    """Read the data set `data` and write it to `out`, whose name says the format."""
    _check_target(Path(out))
    splits = load(data)
    write_dataset(splits, out)
    return splits


def write_dataset(splits: Splits | Dataset, out: str | Path, format: str | None = None) -> None:
    """Write a data set to `out`, whose name says the format unless `format` does.

    `format` is an ending from the table above without its dot, such as "jsonl" or "csv.gz". For a
    folder it is the format of the files in it.
    """
    splits = splits if isinstance(splits, Splits) else Splits(splits, None)
    out = Path(out)
    ending = _check_target(out)
    form = ending or (format or ("jsonl" if splits.train.texts is not None else "txt"))
    write = _choose_writer(form, splits.train, out)
    if ending and splits.test is not None:
        raise DataError(
            "the data has a training and a test split, and a file holds only one; "
            "give a folder, or convert one file at a time",
            path=out,
        )
    with _whole_or_nothing(out) as temporary:
        if ending:
            write(splits.train, temporary)
        else:
            _write_folder(splits, temporary, form, write)


def _check_target(out: Path) -> str:
    """Return the ending that names a format, or an empty string for a folder."""
    if os.path.lexists(out):
        raise DataError("exists already; choose another name or remove it", path=out)
    ending = "".join(out.suffixes[-2:] if out.suffix == ".gz" else out.suffixes[-1:])[1:]
    # A folder may be called data-1.2.
    if ending in _WRITERS or ending.isdecimal() or not ending:
        return ending if ending in _WRITERS else ""
    raise DataError(
        f"no format has the ending '.{ending}'{suggest(ending, _WRITERS)} "
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


@contextmanager
def _whole_or_nothing(out: Path) -> Iterator[Path]:
    """Give a temporary path that becomes `out` if all goes well and vanishes otherwise."""
    temporary = out.with_name(f".tmp.{os.getpid()}.{out.name}")
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


def _write_folder(
    splits: Splits, folder: Path, form: str, write: Callable[[Dataset, Path], None]
) -> None:
    folder.mkdir()
    _write_names(splits.train, folder / "label_names.txt")
    for role, data in (("train", splits.train), ("test", splits.test)):
        if data is None:
            continue
        write(data, folder / f"{role}.{form}")
        if data.exclude is not None:
            pairs = data.exclude.tocoo()
            with _open_text(folder / f"filter_labels_{role}.txt") as file:
                columns = zip(pairs.row.tolist(), pairs.col.tolist(), strict=True)
                file.writelines(f"{document} {label}\n" for document, label in columns)


def _write_names(data: Dataset, path: Path) -> None:
    with _open_text(path) as file:
        for i, name in enumerate(data.label_names):
            if "\n" in name or "\r" in name or name != name.strip():
                raise DataError(f"label {i}, {name!r:.40}, does not fit on a line")
            file.write(f"{name}\n")


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    """Open a file for UTF-8 text with plain line ends, packed where the name ends in .gz."""
    with path.open("xb") as raw:
        # Without a name and a time in its header, the same data gives the same file.
        packed = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.suffix == ".gz" else None
        with io.TextIOWrapper(packed or raw, encoding="utf-8", newline="") as file:
            yield file


def _labelled(data: Dataset) -> Iterator[tuple[str, list[str]]]:
    """Yield each text with its label names."""
    names, indptr = data.label_names, data.Y.indptr
    for i, text in enumerate(data.texts or ()):
        labels = data.Y.indices[indptr[i] : indptr[i + 1]].tolist()
        yield text, [names[label] for label in labels]


def _write_json_lines(data: Dataset, path: Path) -> None:
    with _open_text(path) as file:
        for text, labels in _labelled(data):
            document = {"text": text, "labels": labels}
            file.write(json.dumps(document, ensure_ascii=False) + "\n")


def _write_table(data: Dataset, path: Path, delimiter: str) -> None:
    with _open_text(path) as file:
        rows = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        rows.writerow(["text", "labels"])
        rows.writerows(
            [text, json.dumps(labels, ensure_ascii=False)] for text, labels in _labelled(data)
        )


def _write_csv(data: Dataset, path: Path) -> None:
    _write_table(data, path, ",")


def _write_tsv(data: Dataset, path: Path) -> None:
    _write_table(data, path, "\t")


def _write_parquet(data: Dataset, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("text", pa.string()), ("labels", pa.list_(pa.string()))])
    with path.open("xb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        documents = _labelled(data)
        while batch := list(islice(documents, _DOCUMENTS_AT_ONCE)):
            texts, labels = zip(*batch, strict=True)
            writer.write_table(pa.table([list(texts), list(labels)], schema=schema))


def _write_fasttext(data: Dataset, path: Path) -> None:
    """Write a document a line; line breaks in a text become blanks."""
    for name in data.label_names:
        if name.split() != [name]:
            raise DataError(
                f"a fastText label cannot hold blanks, and '{name:.40}' does; "
                "write .jsonl, .csv or .parquet instead"
            )
    with _open_text(path) as file:
        for text, labels in _labelled(data):
            if text.lstrip().startswith(FASTTEXT_MARK):
                raise DataError(
                    f"a text starts with {FASTTEXT_MARK}, so fastText would take it for a label; "
                    "write .jsonl, .csv or .parquet instead"
                )
            marked = [f"{FASTTEXT_MARK}{label}" for label in labels]
            file.write(" ".join([*marked, *text.splitlines()]) + "\n")


def _write_sparse(data: Dataset, path: Path) -> None:
    X, Y = data.X, data.Y
    if X is None:
        raise DataError("the data holds no feature rows")
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
