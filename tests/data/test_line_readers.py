"""JSON lines that several processes read are what one process reads."""

import json
import sys

import numpy as np
import pytest

from longtail.data import line_readers, pack, source
from longtail.data.folder import load
from longtail.errors import DataError
from longtail.runtime.parallel import set_threads

N = 300


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(source, "HEAD", 2000)
    monkeypatch.setattr(source, "BLOCK", 2000)
    monkeypatch.setattr(line_readers, "READ_HERE", 1)
    yield
    set_threads(None)


def write(path, make_labels):
    lines = []
    for i in range(N):
        document = {"id": f"d{i}", "text": f"wörd{i} \ud83d 日本 {'x' * (i % 40)}"}
        lines.append(json.dumps(document | {"labels": make_labels(i)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path, n_threads):
    set_threads(n_threads)
    return load(path).train


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
