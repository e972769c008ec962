"""Predictions in files of every format, batch by batch."""

import csv
import io
import json
import math
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal

import numpy as np
import openpyxl
import pyarrow.parquet as pq
import pytest

from longtail.data import ReadOptions, as_dataset, read_batches
from longtail.data import results as module
from longtail.data.results import WRITERS, choose_results, open_results, write_json_lines
from longtail.errors import DataError, MissingExtraError, ParameterError
from longtail.topk import NO_LABEL, TopK

NAMES = ["beer", "wine", "tea"]


def make_top(names=NAMES):
    labels = np.array([[2, 0], [1, NO_LABEL], [NO_LABEL, NO_LABEL]], np.int32)
    scores = np.array([[0.9, 0.25], [0.5, 0], [0, 0]], np.float32)
    return TopK(labels, scores, names)


def make_batch(ids=("a", "b", "c"), columns=None):
    batch = as_dataset(["x", "y", "z"])
    return replace(batch, ids=None if ids is None else list(ids), columns=columns)


def write(path, *batches, long=False, names=NAMES):
    """Write each batch with the same predictions."""
    with open_results(path, choose_results(path), names, long=long) as results:
        for batch in batches:
            results.write(batch, make_top(names))
    return path


def read(path):
    """Return the rows of any of the formats."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".xlsx":
        header, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
        return [dict(zip(header, row, strict=True)) for row in rows]
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_json_lines_hold_ids_and_labels(tmp_path):
    assert read(write(tmp_path / "x.jsonl", make_batch()))[:2] == [
        {"id": "a", "labels": [{"label": "tea", "score": 0.9}, {"label": "beer", "score": 0.25}]},
        {"id": "b", "labels": [{"label": "wine", "score": 0.5}]},
    ]
    assert read(write(tmp_path / "y.jsonl", make_batch(None)))[2] == {"labels": []}


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".xlsx"])
def test_sheets_hold_labels_side_by_side(tmp_path, ending):
    rows = read(write(tmp_path / f"x{ending}", make_batch()))
    empty = None if ending == ".xlsx" else ""
    assert rows == [
        {"id": "a", "labels": "tea;beer", "scores": "0.9;0.25"},
        {"id": "b", "labels": "wine", "scores": "0.5"},
        {"id": "c", "labels": empty, "scores": empty},
    ]


def test_parquet_holds_lists(tmp_path):
    assert read(write(tmp_path / "x.parquet", make_batch(), make_batch())) == 2 * [
        {"id": "a", "labels": ["tea", "beer"], "scores": [0.9, 0.25]},
        {"id": "b", "labels": ["wine"], "scores": [0.5]},
        {"id": "c", "labels": [], "scores": []},
    ]


@pytest.mark.parametrize("ending", WRITERS)
def test_long_rows_are_one_for_each_label(tmp_path, ending):
    rows = read(write(tmp_path / f"x{ending}", make_batch(), long=True))
    found = [(row["id"], int(row["rank"]), row["label"], float(row["score"])) for row in rows]
    assert found == [("a", 1, "tea", 0.9), ("a", 2, "beer", 0.25), ("b", 1, "wine", 0.5)]


def test_long_rows_without_ids_count_documents(tmp_path):
    rows = read(write(tmp_path / "x.csv", make_batch(None), make_batch(None), long=True))
    assert [row["document"] for row in rows] == ["1", "1", "2", "4", "4", "5"]


@pytest.mark.parametrize("ending", WRITERS)
def test_columns_of_the_input_go_along(tmp_path, ending):
    columns = {"labels": ["old", "", "x;y"], "n": [1, None, 3], "deep": [["a"], {}, True]}
    rows = read(write(tmp_path / f"x{ending}", make_batch(columns=columns)))
    assert list(rows[0]) == [
        "id", "input_labels", "n", "deep", "labels", *(["scores"] if ending != ".jsonl" else [])
    ]  # fmt: skip
    assert rows[0]["input_labels"] == "old"
    assert str(rows[2]["n"]) == "3"
    deep = rows[0]["deep"]
    assert (deep if ending == ".jsonl" else json.loads(deep)) == ["a"]


@pytest.mark.parametrize("ending", WRITERS)
def test_dates_and_other_values_that_json_has_not_are_spelled_out(tmp_path, ending):
    columns = {"day": [date(2024, 5, 1), None, date(2024, 5, 2)], "price": [Decimal("1.50")] * 3}
    columns |= {"lists": [[date(2024, 5, 1)]] * 3, "part": [math.nan, 0.5, 1.5]}
    rows = read(write(tmp_path / f"x{ending}", make_batch(columns=columns)))
    assert [row["day"] or None for row in rows] == ["2024-05-01", None, "2024-05-02"]
    assert rows[0]["price"] == "1.50"
    lists = rows[0]["lists"]
    assert (lists if ending == ".jsonl" else json.loads(lists)) == ["2024-05-01"]
    assert rows[0]["part"] in (None, "")


def test_columns_called_like_ours_keep_apart(tmp_path):
    columns = {"labels": ["a"] * 3, "input_labels": ["b"] * 3}
    rows = read(write(tmp_path / "x.jsonl", make_batch(columns=columns)))
    assert (rows[0]["input_labels"], rows[0]["input_input_labels"]) == ("b", "a")
    stream, uris = io.StringIO(), ["http://beer", None, None]
    results = write_json_lines(stream, NAMES, uris, long=True)
    results.write(make_batch(columns={"uri": ["mine"] * 3}), replace(make_top(), label_uris=uris))
    tea, beer, wine = map(json.loads, stream.getvalue().splitlines())
    assert [row["input_uri"] for row in (tea, beer, wine)] == ["mine"] * 3
    assert (beer["uri"], "uri" in wine) == ("http://beer", False)


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_carriage_return_in_a_cell_is_read_again(tmp_path, ending):
    path = write(tmp_path / f"x{ending}", make_batch(columns={"note": ["a\rb", "c", "d"]}))
    (batch,) = read_batches(path, ReadOptions(text="note"))
    assert list(batch.texts) == ["a\rb", "c", "d"]


def test_an_id_column_of_the_input_is_not_written_twice(tmp_path):
    rows = read(write(tmp_path / "x.csv", make_batch(columns={"id": ["1", "2", "3"]})))
    assert list(rows[0]) == ["id", "labels", "scores"]


def test_parquet_keeps_the_types_of_columns(tmp_path):
    columns = {"n": [1, 2, None], "x": [1, 2.5, 3], "b": [True, False, None], "o": [None] * 3}
    table = pq.read_table(write(tmp_path / "x.parquet", make_batch(columns=columns)))
    types = [str(table.schema.field(name).type) for name in columns]
    assert types == ["int64", "double", "bool", "string"]


def test_parquet_spells_out_numbers_that_it_cannot_hold(tmp_path):
    columns = {"long": [1 << 64, 2, None], "mixed": [1 << 60, 0.5, 1]}
    rows = read(write(tmp_path / "x.parquet", make_batch(columns=columns)))
    assert [row["long"] for row in rows] == [str(1 << 64), "2", None]
    assert [row["mixed"] for row in rows] == [str(1 << 60), "0.5", "1"]


def test_a_number_that_comes_late_and_does_not_fit_is_an_error_in_parquet(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 1)
    batches = [make_batch(columns={"n": [value] * 3}) for value in (1, 1 << 64)]
    with pytest.raises(DataError, match="the column 'n' does not go on as it began, with values"):
        write(tmp_path / "x.parquet", *batches)


def test_a_column_that_changes_its_type_is_an_error_in_parquet(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 1)
    batches = [make_batch(columns={"n": [value] * 3}) for value in (1, "many")]
    with pytest.raises(DataError, match="the column 'n' does not go on as it began, with values"):
        write(tmp_path / "x.parquet", *batches)


def test_a_column_that_comes_late_is_an_error_in_tables(tmp_path):
    batches = [make_batch(columns={"a": [1, 2, 3]}), make_batch(columns={"b": [1, 2, 3]})]
    with pytest.raises(DataError, match="the column 'b' is not among those of the first documents"):
        write(tmp_path / "x.csv", *batches)
    assert len(read(write(tmp_path / "x.jsonl", *batches))) == 6


@pytest.mark.parametrize(
    ("name", "cell"),
    [("a;b", "tea|a;b"), ("a;b|c", "tea,a;b|c"), ("a;|,\tb", '["tea", "a;|,\\tb"]')],
)
def test_labels_that_contain_a_separator_get_another(tmp_path, name, cell):
    rows = read(write(tmp_path / "x.csv", make_batch(), names=[name, "wine", "tea"]))
    assert rows[0]["labels"] == cell


@pytest.mark.parametrize("ending", WRITERS)
def test_no_documents_make_a_file_without_rows(tmp_path, ending):
    assert read(write(tmp_path / f"x{ending}")) == []
    if ending == ".csv":
        assert (tmp_path / "x.csv").read_text() == "labels,scores\n"


def test_a_cell_that_looks_like_a_formula_is_a_text(tmp_path):
    columns = {"note": ["=1+1", "a\x07b", "ok"]}
    path = write(tmp_path / "x.xlsx", make_batch(columns=columns))
    cell = openpyxl.load_workbook(path).active["B2"]
    assert (cell.value, cell.data_type) == ("=1+1", "s")
    assert read(path)[1]["note"] == r"a\x07b"
    with pytest.raises(
        DataError, match=r"holds 32,767 characters at most\. Got 40,000; write a \.csv"
    ):
        write(tmp_path / "y.xlsx", make_batch(columns={"note": ["x" * 40_000, "", ""]}))


def test_a_sheet_has_no_more_rows_than_it_can_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHEET_ROWS", 4)
    write(tmp_path / "x.xlsx", make_batch())
    with pytest.raises(DataError, match=r"a sheet holds 4 rows at most; write a \.csv"):
        write(tmp_path / "y.xlsx", make_batch(), make_batch())


def test_the_name_says_what_to_write(tmp_path):
    assert choose_results(tmp_path / "A.CSV") == ".csv"
    with pytest.raises(ParameterError) as caught:
        choose_results(tmp_path / "x.cvs")
    assert str(caught.value) == (
        f"{tmp_path / 'x.cvs'}: the name must say what to write: .jsonl, .csv, .tsv, .parquet, "
        ".xlsx. Got '.cvs' instead; did you mean '.csv'?"
    )


def test_sheets_need_openpyxl(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtraError, match="need openpyxl: pip install openpyxl; or write a"):
        choose_results(tmp_path / "x.xlsx")
