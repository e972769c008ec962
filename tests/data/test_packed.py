"""Packed data: the same documents as before, mapped; a stranger's folder is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longtail.data import Dataset, Splits, load, pack, read_batches
from longtail.data.describe import describe
from longtail.data.packed import MANIFEST, read_description
from longtail.errors import DataError
from longtail.reading import ANYTHING
from longtail.runtime.mapped import Texts, is_mapped
from longtail.text.tokens import Tokens, find_words

TEXTS = ["red wine", "", "dark beer\nand Käse", "🍺"]
LABELS = [["wine", "red"], [], ["beer", "cheese", "beer"], ["other"]]


def assert_same(one: Dataset, other: Dataset) -> None:
    assert list(one.label_names) == list(other.label_names)
    assert (one.Y != other.Y).nnz == 0
    assert one.Y.has_canonical_format
    if other.X is None:
        assert list(one.texts or ()) == list(other.texts or ())
    else:
        assert (one.X != other.X).nnz == 0
    assert (None if one.ids is None else list(one.ids)) == other.ids
    assert one.label_uris == other.label_uris
    assert one.read_as == other.read_as
    assert (one.exclude is None) == (other.exclude is None)
    if other.exclude is not None:
        assert (one.exclude != other.exclude).nnz == 0


def write_json_lines(path: Path, n: int = 4) -> Path:
    lines = [{"id": str(i), "text": TEXTS[i % 4], "labels": LABELS[i % 4]} for i in range(n)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def write_csv(path: Path) -> Path:
    path.write_text('id,text,labels\n1,red wine,wine;red\n2,"dark, beer",beer\n3,none,\n')
    return path


def write_sparse(path: Path) -> Path:
    path.write_text("3 4 3\n0,2 0:1 3:0.5\n 1:2\n1 2:1 2:1\n")
    return path


@pytest.mark.parametrize(
    ("name", "write"),
    [("x.jsonl", write_json_lines), ("x.csv", write_csv), ("x.txt", write_sparse)],
)
def test_holds_the_same_documents(tmp_path: Path, name: str, write) -> None:
    source = write(tmp_path / name)
    read = load(source)
    packed = pack(source, tmp_path / "packed")
    assert_same(packed.train, read.train)
    assert packed.test is None
    assert_same(load(tmp_path / "packed").train, read.train)


def test_holds_both_splits_with_excluded_pairs(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    write_sparse(source / "train.txt")
    write_sparse(source / "test.txt")
    (source / "filter_labels_test.txt").write_text("0 1\n2 0\n")
    (source / "label_names.txt").write_text("a\nb\nc\n")
    (source / "feature_names.txt").write_text("w\nx\ny\nz\n")
    read, packed = load(source), pack(source, tmp_path / "packed")
    assert packed.test is not None
    assert read.test is not None
    assert_same(packed.train, read.train)
    assert_same(packed.test, read.test)
    assert packed.train.feature_names == ["w", "x", "y", "z"]
    assert_same(load(tmp_path / "packed" / "test").train, read.test)


def test_parts_of_a_split_are_joined(tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    write_json_lines(source / "train-1.jsonl", 3)
    write_json_lines(source / "train-2.jsonl", 9)
    assert_same(pack(source, tmp_path / "packed").train, load(source).train)


def test_parallel_files_and_many_documents(tmp_path: Path, monkeypatch) -> None:
    """More documents than wait in memory at a time."""
    monkeypatch.setattr("longtail.runtime.mapped.BLOCK", 100)
    monkeypatch.setattr("longtail.data.spool.BLOCK", 7)
    monkeypatch.setattr("longtail.data.spool._MOST_WAITING", 9)
    source = tmp_path / "data"
    source.mkdir()
    (source / "train_texts.txt").write_text("".join(f"text {i}\n" for i in range(300)))
    (source / "train_labels.txt").write_text("".join(f"a{i % 7} b{i % 3} c\n" for i in range(300)))
    assert_same(pack(source, tmp_path / "packed").train, load(source).train)


def test_packs_what_is_in_memory(tmp_path: Path) -> None:
    read = load(write_json_lines(tmp_path / "x.jsonl"))
    packed = pack(Splits(read.train, read.train), tmp_path / "packed")
    assert packed.test is not None
    assert_same(packed.train, read.train)
    assert list(packed.test.texts or ()) == TEXTS


def test_is_mapped_and_stays_so_when_documents_are_taken(tmp_path: Path) -> None:
    rows = pack(write_sparse(tmp_path / "x.txt"), tmp_path / "rows").train
    texts = pack(write_json_lines(tmp_path / "x.jsonl"), tmp_path / "texts").train
    assert is_mapped(rows.X)
    assert is_mapped(rows.Y)
    taken = rows.take(np.array([2, 0]))
    assert is_mapped(taken.X)
    assert taken.X.toarray().tolist() == [[0, 0, 2, 0], [1, 0, 0, 0.5]]
    few = texts.take(np.array([3, 0])).take(np.array([1]))
    assert isinstance(few.texts, Texts)
    assert list(few.texts) == ["red wine"]


def test_description_is_there_at_once(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "x.jsonl", 9)
    pack(source, tmp_path / "packed")
    assert read_description(tmp_path / "packed", ANYTHING) == describe(load(source))
    assert read_description(source, ANYTHING) is None


def test_other_columns_are_not_kept(tmp_path: Path) -> None:
    pack(load(write_json_lines(tmp_path / "x.jsonl")), tmp_path / "packed")
    expected = "without the other columns of its source; leave out --keep, or give the source"
    with pytest.raises(DataError, match=expected):
        list(read_batches(tmp_path / "packed", replace(ANYTHING, keep=True)))


def test_batches_to_predict_for(tmp_path: Path) -> None:
    read = load(write_json_lines(tmp_path / "x.jsonl"))
    pack(read, tmp_path / "both" if read.test else tmp_path / "one")
    (batch,) = read_batches(tmp_path / "one")
    assert batch.texts == TEXTS
    pack(Splits(read.train, read.train), tmp_path / "two")
    (batch,) = read_batches(tmp_path / "two")
    assert batch.texts == TEXTS
    assert batch.read_as.startswith(f"these are the documents of the test split of {tmp_path}/two")
    (batch,) = read_batches(tmp_path / "two" / "test")
    assert batch.ids == ["0", "1", "2", "3"]


# -- what is wrong ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pack(write_json_lines(tmp_path / "x.jsonl", 40), tmp_path / "packed")
    return tmp_path / "packed"


def change(folder: Path, **changes: object) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_every_truncated_or_missing_file_is_refused(folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        held = file.read_bytes()
        file.write_bytes(held[: len(held) // 2])
        with pytest.raises(DataError, match="is no sound packed data"):
            load(folder)
        file.unlink()
        if file.name != MANIFEST:
            with pytest.raises(DataError, match=f"{file.name} is missing"):
                load(folder)
        file.write_bytes(held)
    assert len(load(folder).train) == 40


@pytest.mark.parametrize("name", ["train.Y.start", "train.Y.columns", "train.texts.start"])
@pytest.mark.parametrize("value", [-1, 1 << 30, 5])
def test_numbers_of_a_stranger_are_checked(folder: Path, name: str, value: int) -> None:
    path = folder / f"{name}.bin"
    kind = np.int32 if name.endswith("columns") else np.int64
    held = np.fromfile(path, kind)
    held[[0, len(held) // 2]] = value
    held.tofile(path)
    with pytest.raises(DataError, match="is no sound packed data"):
        load(folder)


def test_other_faults_are_named(folder: Path) -> None:
    change(folder, version=9)
    with pytest.raises(DataError, match="the version 9, and this longtail reads version 1"):
        load(folder)
    change(folder, version=1, labels=10**12)
    with pytest.raises(DataError, match="it has 1000000000000 labels"):
        load(folder)
    change(folder, labels=7)
    with pytest.raises(DataError, match="label_names"):
        load(folder)
    change(folder, labels=5, arrays={"train.Y.start": -3})
    with pytest.raises(DataError, match="has the length -3"):
        load(folder)
    change(folder, arrays={"train.Y.start": 0, "train.Y.columns": 0})
    for name in ("train.Y.start", "train.Y.columns"):
        (folder / f"{name}.bin").write_bytes(b"")
    change(folder, labels=0)
    with pytest.raises(DataError, match="does not lead through"):
        load(folder)
    (folder / MANIFEST).write_text("[]")
    with pytest.raises(DataError, match="does not say 'format'"):
        load(folder)


def test_a_link_is_not_followed(folder: Path) -> None:
    target = folder / "train.texts.text.bin"
    moved = folder.parent / "elsewhere"
    target.rename(moved)
    target.symlink_to(moved)
    with pytest.raises(DataError, match=r"train.texts.text.bin cannot be read"):
        load(folder)


def test_a_text_that_is_not_utf8_is_named_when_it_is_read(folder: Path) -> None:
    path = folder / "train.texts.text.bin"
    held = bytearray(path.read_bytes())
    held[0] = 0xFF
    path.write_bytes(held)
    texts = load(folder).train.texts or ()
    assert texts[2] == TEXTS[2]
    with pytest.raises(DataError, match="text 0, counted from 0, is not UTF-8"):
        texts[0]


def test_a_description_of_a_stranger_is_checked(folder: Path) -> None:
    change(folder, description={"n_labels": "many"})
    with pytest.raises(DataError, match="its description is not one"):
        read_description(folder, ANYTHING)


def test_nothing_is_left_where_packing_fails(tmp_path: Path) -> None:
    source = tmp_path / "x.jsonl"
    source.write_text('{"text": "a", "labels": ["b"]}\nnonsense\n')
    with pytest.raises(DataError, match="not valid JSON"):
        pack(source, tmp_path / "packed")
    assert sorted(tmp_path.iterdir()) == [source]
    (tmp_path / "packed").mkdir()
    with pytest.raises(DataError, match="exists already"):
        pack(source, tmp_path / "packed")


@pytest.mark.parametrize(
    "options", [{"format": "jsonl"}, {"id": "key"}, {"separator": ";"}, {"encoding": "cp1252"}]
)
def test_options_are_for_packing(folder: Path, options) -> None:
    with pytest.raises(DataError, match=f"leave out --{next(iter(options))}"):
        load(folder, **options)


@pytest.mark.parametrize("settings", [{}, {"min_documents": 2}, {"max_length": 2, "max_words": 3}])
def test_words_that_were_packed_give_the_same_tokens(tmp_path: Path, settings) -> None:
    source = write_json_lines(tmp_path / "x.jsonl", 9)
    plain = pack(source, tmp_path / "plain").train
    packed = pack(source, tmp_path / "packed", find_words=find_words).train
    some = np.array([5, 2, 7, 3, 0])
    for rows in (np.arange(9), some):
        expected, found = Tokens(**settings), Tokens(**settings)
        want = expected.fit_encode(plain.take(rows).texts)
        texts = packed.take(rows).texts
        texts.letters = np.zeros_like(texts.letters)  # nobody looks there
        got = found.fit_encode(texts, tmp_path / "unused")
        assert found.words_ == expected.words_
        np.testing.assert_array_equal(got.start, want.start)
        np.testing.assert_array_equal(got.tokens, want.tokens)
    assert_same(packed, plain)


def test_packed_words_of_another_rule_are_not_taken(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "x.jsonl", 9)
    texts = pack(source, tmp_path / "packed", find_words=find_words).train.texts
    texts.words = texts.words._replace(rule="older", ids=texts.words.ids * 0)
    assert Tokens().fit(texts).words_ == Tokens().fit(list(texts)).words_


@pytest.mark.parametrize("number", [-1, 99])
def test_packed_words_of_a_stranger_are_checked(tmp_path: Path, number: int) -> None:
    source = write_json_lines(tmp_path / "x.jsonl", 9)
    pack(source, tmp_path / "packed", find_words=find_words)
    file = tmp_path / "packed" / "train.tokens.columns.bin"
    ids = np.frombuffer(file.read_bytes(), "<i4").copy()
    ids[3] = number
    file.write_bytes(ids.tobytes())
    with pytest.raises(DataError, match="the words of packed texts are damaged"):
        Tokens().fit(load(tmp_path / "packed").train.texts)


@pytest.mark.parametrize("names", [["a", "", "bcd"], ["a", "Käse", "日本"], []])
def test_short_texts_are_read_together(names) -> None:
    assert Texts.of(names).as_list() == names


def test_a_description_needs_no_names(folder: Path) -> None:
    (folder / "label_names.text.bin").unlink()
    assert read_description(folder, ANYTHING) is not None
    with pytest.raises(DataError, match="label_names"):
        load(folder)
