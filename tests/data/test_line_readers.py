"""Lines that several processes read are what one process reads."""

import csv
import json
import sys

import numpy as np
import pytest

from longtail.data import cell_readers, documents, line_readers, pack, source, table
from longtail.data.folder import load
from longtail.errors import DataError
from longtail.runtime.parallel import set_threads

N = 300


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(source, "HEAD", 2000)
    monkeypatch.setattr(source, "BLOCK", 2000)
    monkeypatch.setattr(line_readers, "READ_HERE", 1)
    monkeypatch.setattr(documents, "READ_HERE", 1)
    monkeypatch.setattr(cell_readers, "BLOCK", 40)
    monkeypatch.setattr(cell_readers, "SPLIT_HERE", 40)
    yield
    set_threads(None)


def write(path, make_labels):
    lines = []
    for i in range(N):
        document = {"id": f"d{i}", "text": f"wörd{i} \ud83d 日本 {'x' * (i % 40)}"}
        lines.append(json.dumps(document | {"labels": make_labels(i)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path, n_threads, **options):
    set_threads(n_threads)
    return load(path, **options).train


FORMS = {
    "lists": lambda i: [f"l{i % 37}", i % 11],
    "cells": lambda i: f"a{i % 37};b {i % 11}",
    "concepts": lambda i: [{"label": f"c{i % 7}", "uri": f"http://x/{i % 70}"}],
    "late concepts": lambda i: [f"c{i % 7}"] if i < 250 else [{"label": "c1", "uri": "http://x/1"}],
}


@pytest.mark.parametrize("form", FORMS)
def test_documents_are_those_that_one_process_reads(form, tmp_path):
    path = write(tmp_path / "train.jsonl", FORMS[form])
    alone, together = (read(path, n) for n in (1, 2))
    assert together.texts == alone.texts
    assert together.ids == alone.ids
    assert together.label_names == alone.label_names
    assert together.label_uris == alone.label_uris
    assert together.read_as == alone.read_as
    assert (together.Y != alone.Y).nnz == 0


def write_table(path, make_cell, delimiter=","):
    with path.open("w", newline="") as file:
        table = csv.writer(file, delimiter=delimiter)
        table.writerow(["id", "title", "text", "labels"])
        for i in range(N):
            text = f'wörd{i} "{i}" 日本, ' + "x\n" * (i % 7) + "y" * (i % 40)
            table.writerow([f"d{i}", f'5" {i}' if i % 3 else "", text, make_cell(i)])
    return path


CELLS = {
    "separated": lambda i: f"a{i % 37};b {i % 11}",
    "arrays": lambda i: json.dumps([f"a{i % 37}", i % 11]),
    "blanks": lambda i: f"a{i % 37} b{i % 11}",
}


@pytest.mark.parametrize(
    ("cells", "delimiter"), [("separated", ","), ("arrays", ","), ("blanks", "¦")]
)
def test_rows_of_a_table_are_those_that_one_process_reads(cells, delimiter, tmp_path):
    path = write_table(tmp_path / "train.csv", CELLS[cells], delimiter)
    alone, together = (read(path, n, delimiter=delimiter) for n in (1, 2))
    assert alone.texts[8].endswith('wörd8 "8" 日本, x\n' + "y" * 8)
    assert len(together.texts) == N
    assert together.texts == alone.texts
    assert together.ids == alone.ids
    assert together.label_names == alone.label_names
    assert together.read_as == alone.read_as
    assert (together.Y != alone.Y).nnz == 0


@pytest.mark.parametrize("row", ['x,y,"z"z,a', 'x,y,"z,a', 'x,y,z,"[null]"'])
def test_the_first_wrong_row_is_named(row, tmp_path):
    path = write_table(tmp_path / "train.csv", CELLS["arrays"])
    with path.open(newline="") as file:
        rows = file.read().split("\r\n")
    rows[200] = rows[260] = row
    path.write_text("\r\n".join(rows), newline="")
    said = []
    for n in (1, 2):
        with pytest.raises(DataError) as caught:
            read(path, n)
        said.append((str(caught.value), caught.value.line))
    assert said[0] == said[1]
    assert said[0][1] == 2 + "\n".join(rows[:200]).count("\n")


def test_a_row_without_an_end_is_refused_before_all_is_in_memory(tmp_path, monkeypatch):
    path = write_table(tmp_path / "train.csv", CELLS["arrays"])
    monkeypatch.setattr(table, "MAX_LINE", 5000)
    path.write_text(path.read_text() + '"' + "z\n" * 9000)
    with pytest.raises(DataError, match=r"csv:\d+: the row is longer than 0 MiB; a quote may"):
        read(path, 2)


def test_packs_have_the_same_bytes(tmp_path):
    path = write(tmp_path / "train.jsonl", FORMS["lists"])
    for n in (1, 2):
        set_threads(n)
        pack(path, tmp_path / f"pack{n}")
    for file in sorted((tmp_path / "pack1").iterdir()):
        assert file.read_bytes() == (tmp_path / "pack2" / file.name).read_bytes(), file.name


@pytest.mark.parametrize("line", ['{"text": "a", "labels": [null]}', "{", '{"labels": ["x"]}'])
def test_the_first_error_names_its_line(line, tmp_path):
    path = write(tmp_path / "train.jsonl", FORMS["lists"])
    lines = path.read_text().split("\n")
    lines[200] = lines[260] = line
    path.write_text("\n".join(lines))
    said = []
    for n in (1, 2):
        with pytest.raises(DataError) as caught:
            read(path, n)
        said.append((str(caught.value), caught.value.path, caught.value.line))
    assert said[0] == said[1]
    assert said[0][2] == 201


def test_blocks_of_a_process_that_dies_are_read_here(tmp_path, monkeypatch):
    path = write(tmp_path / "train.jsonl", FORMS["lists"])
    alone = read(path, 1)
    monkeypatch.setattr(sys, "executable", "false")
    together = read(path, 2)
    assert together.texts == alone.texts
    np.testing.assert_array_equal(together.Y.indices, alone.Y.indices)
