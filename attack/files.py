"""Attacks on what reads and writes data: damaged files, round trips, broken matrices."""

import bz2
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from attack.case import Attack, Attempt, Outcome
from longtail.data import Dataset, as_dataset, convert, load, read_batches, write_dataset
from longtail.data.describe import describe
from longtail.data.labels import NumberedNames
from longtail.errors import DataError, LongtailError
from longtail.models.linear.model import Linear

ENDINGS = ["jsonl", "csv", "tsv", "parquet", "txt", "jsonl.gz", "csv.gz", "tsv.gz", "txt.gz"]
EXACT = ["jsonl", "csv", "tsv", "parquet", "jsonl.gz", "csv.gz", "tsv.gz"]
# What numbers, formats and languages of data begin, end or break with.
PIECES = [
    "__label__x", "__label__", "text,labels", "text\tlabels", "3 4 5", "3 4", "{", "}", "[", "]",
    '"', "'", ",", ";", "|", ":", "\r\n", "\r", "\n", "\0", "\t", " ", "\x85", "\u2028", "\ufeff",
    "PAR1", "\x1f\x8b", "\\ud83c", "null", "NaN", "1e999", "-1", "0", "7" * 400, "2147483648", "a",
    "18446744073709551616", "\U0001f37a", "ß", "\u0663",
]  # fmt: skip


def _make_text(random: Random) -> str:
    if random.random() < 0.5:
        return "".join(random.choices(PIECES, k=random.randrange(6)))
    points = (random.randrange(0x20, 0x3000) for _ in range(random.randrange(12)))
    return "".join(map(chr, points))


def _make_texts(random: Random) -> Dataset:
    n = random.randrange(1, 8)
    names = [name for _ in range(5) if (name := _make_text(random)).strip()] or ["x"]
    labels = [random.sample(names, random.randrange(len(names))) for _ in range(n)]
    return as_dataset([_make_text(random) for _ in range(n)], labels)


def _make_rows(random: Random) -> Dataset:
    rng = np.random.default_rng(random.randrange(2**32))
    n, n_features, n_labels = rng.integers(1, 12, 3)
    X = sp.random(n, n_features, 0.3, "csr", np.float32, rng=rng)
    X.data *= np.float32(10.0 ** rng.integers(-40, 38))
    return as_dataset(X, sp.random(n, n_labels, 0.2, "csr", np.float32, rng=rng))


def _documents_of(data: Dataset) -> list[tuple[str, list[str]]]:
    names = [sorted(data.label_names[label] for label in row.indices) for row in data.Y]
    return list(zip(data.texts or (), names, strict=True))


def _check_sound(data: Dataset) -> None:
    """Raise if a data set that was read is not what a Dataset promises."""
    for matrix in (data.X, data.Y, data.exclude):
        if matrix is not None:
            matrix.check_format(full_check=True)
            if not (matrix.has_canonical_format and np.isfinite(matrix.data).all()):
                raise AssertionError("a matrix is not canonical or not finite")
    names = [data.label_names[label] for label in np.unique(data.Y.indices).tolist()]
    if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise AssertionError("labels without a name of their own")
    if data.texts is not None and not all(isinstance(text, str) for text in data.texts):
        raise AssertionError("a text that is no string")


# -- damaged files --------------------------------------------------------------------------------


def _prepare_damage(folder: Path) -> Attempt:
    seeds = _write_seeds(folder / "seeds")

    def attempt(random: Random) -> Outcome:
        case = folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        name = random.choice(sorted(seeds))
        whole = random.random() < 0.2  # a folder with what can lie beside the data
        target = case / name
        if whole:
            target = case / ("train" + "".join(Path(name).suffixes))
            beside = random.choice(
                ["label_names.txt", "label_names.tsv", "filter_labels_train.txt"]
            )
            (case / beside).write_bytes(_damage(seeds["names"], seeds, random))
        target.write_bytes(_damage(seeds[name], seeds, random))
        try:
            splits = load(case if whole else target)
            _check_sound(splits.train)
            describe(splits)
            for batch in read_batches(target):
                if batch.X is not None:
                    batch.X.check_format(full_check=True)
        except LongtailError as error:
            _check_one_line(error)
            return "refused"
        return "answered"

    return attempt


def _check_one_line(error: LongtailError) -> None:
    if not 0 < len(str(error)) < 2000:
        raise AssertionError(f"a message of {len(str(error))} characters") from error


def _write_seeds(folder: Path) -> dict[str, bytes]:
    """Return the bytes of sound files, by name: every format that is read, packed and plain."""
    folder.mkdir()
    random = Random(0)
    texts = as_dataset(
        [f"pale ale {random.random()}" for _ in range(40)],
        [random.sample(["beer", "wine", "ale", "12", "a b"], 2) for _ in range(40)],
    )
    plain = as_dataset(list(texts.texts or ()), [[str(i % 7)] for i in range(40)])
    for ending in ENDINGS:
        write_dataset(plain if "txt" in ending else texts, folder / f"texts.{ending}")
        if "txt" in ending:
            write_dataset(_make_rows(random), folder / f"rows.{ending}")
    labels = [["a", "b"]] * 20 + [[]] * 20
    for i, setting in enumerate(_PARQUET):
        columns = {"text": list(texts.texts or ()), "labels": labels}
        pq.write_table(pa.table(columns), folder / f"{i}.parquet", row_group_size=15, **setting)
    _write_others(folder, list(texts.texts or ()))
    seeds = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    seeds["names"] = b"".join(b"%d\tlabel %d\n" % (i, i % 5) for i in range(8))
    return seeds


def _write_others(folder: Path, texts: list[str]) -> None:
    """Write what we read but do not write: sheets, Annif's files, other encodings and packers."""
    book = openpyxl.Workbook()
    table = [("Nr", "Titel", "Thema"), *((i, text, "a|b") for i, text in enumerate(texts))]
    for row in table:
        book.active.append(row)
    book.save(folder / "sheet.xlsx")
    lines = "\n".join("\t".join(map(str, row)) for row in table).replace("ale", "Käse")
    for encoding in ("utf-16", "cp1252", "utf-32"):
        (folder / f"{encoding}.csv").write_bytes(lines.encode(encoding))
    annif = "".join(f"{text}\t<http://a/{i}> <http://a/0>\n" for i, text in enumerate(texts))
    (folder / "annif.tsv.bz2").write_bytes(bz2.compress(annif.encode()))
    (folder / "annif.tsv.xz").write_bytes(lzma.compress(annif.encode()))
    (folder / "annif.tsv.zst").write_bytes(pa.compress(annif.encode(), "zstd", asbytes=True))
    subjects = [{"uri": "http://a/1", "label": "a"}]
    objects = [{"_id": i, "text": text, "subjects": subjects} for i, text in enumerate(texts)]
    (folder / "annif.jsonl").write_text("\n".join(map(json.dumps, objects)))


_PARQUET: list[dict[str, Any]] = [
    {"compression": "snappy"},
    {"compression": "gzip", "use_dictionary": False},
    {"compression": "none", "data_page_version": "2.0"},
    {"compression": "brotli", "write_page_index": True},
    {
        "compression": "lz4",
        "column_encoding": {"text": "DELTA_BYTE_ARRAY"},
        "use_dictionary": False,
    },
]


def _damage(data: bytes, seeds: dict[str, bytes], random: Random) -> bytes:
    """Return `data` with one kind of damage, or with a few of them."""
    packed = data[:2] == b"\x1f\x8b" and random.random() < 0.7
    damaged = bytearray(gzip.decompress(data) if packed else data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        damaged = random.choice(_DAMAGES)(damaged, seeds, random)
    return gzip.compress(bytes(damaged), 1) if packed else bytes(damaged)


def _place(data: bytearray, random: Random) -> int:
    return random.randrange(len(data) + 1)


def _flip(data: bytearray, _: dict[str, bytes], random: Random) -> bytearray:
    for _ in range(random.choice((1, 2, 8))):
        if data:
            place = random.randrange(len(data))
            bit = data[place] ^ (1 << random.randrange(8))
            data[place] = random.choice((0, 127, 128, 255, random.randrange(256), bit))
    return data


def _cut(data: bytearray, _: dict[str, bytes], random: Random) -> bytearray:
    return data[: _place(data, random)]


def _remove(data: bytearray, _: dict[str, bytes], random: Random) -> bytearray:
    place = _place(data, random)
    return data[:place] + data[place + random.randrange(60) :]


def _insert(data: bytearray, _: dict[str, bytes], random: Random) -> bytearray:
    place = _place(data, random)
    piece = "".join(random.choices(PIECES, k=random.randrange(1, 4))).encode()
    return data[:place] + piece * random.choice((1, 1, 1, 50)) + data[place:]


def _splice(data: bytearray, seeds: dict[str, bytes], random: Random) -> bytearray:
    other = bytearray(random.choice(list(seeds.values())))
    return data[: _place(data, random)] + other[_place(other, random) :]


def _bomb(data: bytearray, _: dict[str, bytes], random: Random) -> bytearray:
    place = _place(data, random)
    return data[:place] + bytes([random.choice(b'0[{",:a \n')]) * 200_000 + data[place:]


_DAMAGES: list[Callable[[bytearray, dict[str, bytes], Random], bytearray]] = [
    _flip, _flip, _flip, _cut, _remove, _insert, _insert, _splice, _bomb,
]  # fmt: skip


# -- round trips ----------------------------------------------------------------------------------


def _prepare_round_trips(folder: Path) -> Attempt:
    def attempt(random: Random) -> Outcome:
        case = folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        if random.random() < 0.2:
            return _carry_rows(_make_rows(random), case, random)
        return _carry_texts(_make_texts(random), case, random)

    return attempt


def _carry_texts(data: Dataset, folder: Path, random: Random) -> Outcome:
    """Write texts in one format, convert them to another, and compare."""
    first, second = random.choice(ENDINGS), random.choice([*ENDINGS, ""])
    one, two = folder / f"a.{first}", folder / f"b.{second}".rstrip(".")
    for form, write in (
        (first, lambda: write_dataset(data, one)),
        (second, lambda: convert(one, two)),
    ):
        try:
            write()
        except DataError:
            if form in EXACT or list(folder.glob(".tmp*")):
                raise
            return "refused"
    for path in (one, two):
        if _documents_of(load(path).train) != _documents_of(data):
            raise AssertionError(f"{path.name} holds other documents")
    return "answered"


def _carry_rows(data: Dataset, folder: Path, random: Random) -> Outcome:
    out = folder / random.choice(["a.txt", "a.txt.gz", "a"])
    write_dataset(data, out)
    back = load(out).train
    for mine, theirs in ((data.X, back.X), (data.Y, back.Y)):
        if mine is None or theirs is None or mine.shape != theirs.shape or (mine != theirs).nnz:
            raise AssertionError("other rows")
    return "answered"


# -- matrices -------------------------------------------------------------------------------------


def _prepare_matrices(_: Path) -> Attempt:
    rng = np.random.default_rng(0)
    X = sp.random(30, 12, 0.4, "csr", np.float32, rng=rng)
    Y = sp.random(30, 6, 0.4, "csr", np.float32, rng=rng)
    model = Linear().fit(X, Y)

    def attempt(random: Random) -> Outcome:
        broken_X = _break(X, random) if random.random() < 0.7 else X.copy()
        broken_Y = _break(Y, random) if broken_X is X or random.random() < 0.5 else Y.copy()
        try:
            data = _hand_over(broken_X, broken_Y, random)
            _check_sound(data)
            top = model.predict(data if random.random() < 0.5 else broken_X, k=3)
            if not (np.isfinite(top.scores).all() and (top.labels < 6).all()):
                raise AssertionError("a prediction that is none")
        except LongtailError as error:
            _check_one_line(error)
            return "refused"
        return "answered"

    return attempt


def _hand_over(X: Any, Y: Any, random: Random) -> Dataset:
    if random.random() < 0.5:
        return as_dataset(X, Y)
    return as_dataset(Dataset(Y, NumberedNames(Y.shape[1]), X=X))


class _Liar(sp.csr_matrix):
    """A matrix that calls itself canonical."""

    has_canonical_format = True  # type: ignore[assignment]
    has_sorted_indices = True  # type: ignore[assignment]


def _break(matrix: sp.csr_matrix, random: Random) -> Any:
    """Return a matrix of any format of which one array is broken, or perhaps not."""
    form = random.choice(["csr", "csr", "csc", "coo", "bsr", "lil", "dok", "dia", "dense", "liar"])
    if form == "dense":
        values = matrix.toarray()
        values[random.randrange(len(values))] = random.choice([np.nan, np.inf, -1, 1e38, 2])
        return values.view(np.matrix) if random.random() < 0.5 else values
    broken = _Liar(matrix) if form == "liar" else matrix.asformat(form).copy()
    names = ["indptr", "indices", "data", "row", "col", "rows", "offsets"]
    held = [name for name in names if hasattr(broken, name)]
    if random.random() < 0.15:
        broken._shape = tuple(random.choice((0, 1, 5, 31, 2**31)) for _ in range(2))
    elif held:
        name = random.choice(held)
        array = np.array(getattr(broken, name), copy=True)
        setattr(broken, name, _spoil(array, random))
    return broken


def _spoil(array: Any, random: Random) -> Any:
    kind = random.choice(["value", "value", "value", "short", "long", "type", "order", "empty"])
    if kind == "value" and array.dtype.kind in "iuf" and array.size:
        wrong = random.choice([-1, 10**4, 2**31 - 1, -(2**31), 2**62, -(2**63), 2**63 - 1])
        array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
        array.flat[random.randrange(array.size)] = wrong
    elif kind == "type" and array.dtype != object:
        array = array.astype(
            random.choice([np.float64, np.int16, np.uint64, np.bool_, object, "c16"])
        )
    elif kind == "order":
        array = array[::-1]
    else:
        array = {"short": array[:-1], "long": np.concatenate([array, array])}.get(kind, array[:0])
    return array


ATTACKS = [
    Attack("damaged files", "a damaged data file is read soundly or refused", _prepare_damage),
    Attack("round trips", "what is written reads back as the same", _prepare_round_trips),
    Attack("matrices", "a broken matrix is refused before code trusts it", _prepare_matrices),
]
