"""Sheets of spreadsheet programs."""

import io
import subprocess
import sys
import zipfile

import openpyxl
import pytest
from planted import pairs

from longtail.data import ReadOptions, load, read_batches
from longtail.errors import DataError

ROWS = [
    ("Nr", "Titel", "Thema"),
    (1, "pale ale of the house", "Billing Question"),
    (None, None, None),
    (2, "red\nwine", "Refund Request"),
    (3, 12, None),
]


def write(path, rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("notes").append(("not", "read"))
    book.save(path)
    return path


def test_the_first_sheet_is_read(tmp_path):
    path = write(tmp_path / "x.xlsx", ROWS)
    data = load(path, id="Nr", keep=True).train
    expected = [
        ("pale ale of the house", ["Billing Question"]),
        ("red\nwine", ["Refund Request"]),
        ("12", []),
    ]
    assert pairs(data) == expected
    assert data.ids == ["1", "2", "3"]
    assert data.columns["Titel"] == ["pale ale of the house", "red\nwine", 12]
    (batch,) = read_batches(io.BytesIO(path.read_bytes()), ReadOptions(text="Titel"))
    assert batch.texts == [text for text, _ in expected]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the first row of the first sheet must name the columns"),
        ([("a", "b"), (1, 2)], "no column is recognized as text; the columns are 'a', 'b'; "
         "name it with --text COLUMN (in Python text='COLUMN')"),
    ],
)  # fmt: skip
def test_a_sheet_without_names(tmp_path, rows, message):
    path = write(tmp_path / "x.xlsx", rows)
    with pytest.raises(DataError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {message}"


def test_what_is_no_sheet(tmp_path, monkeypatch):
    path = tmp_path / "x.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(DataError, match=r"a zip archive, but no \.xlsx file; unpack it first"):
        load(path)
    whole = write(tmp_path / "y.xlsx", ROWS).read_bytes()
    path.write_bytes(whole[:2000])
    with pytest.raises(DataError, match=r"not a readable \.xlsx file"):
        load(path)
    monkeypatch.setattr("longtail.data.source.BOMB_BYTES", 1 << 10)
    monkeypatch.setattr("longtail.data.source.BOMB_RATIO", 1)
    with pytest.raises(DataError, match="this looks like a decompression bomb"):
        load(tmp_path / "y.xlsx")


def test_without_openpyxl_the_message_says_what_to_do(tmp_path):
    path = write(tmp_path / "x.xlsx", ROWS)
    code = (
        f"import sys; sys.modules['openpyxl'] = None; import longtail; longtail.load({str(path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "longtail.errors.MissingExtraError: reading .xlsx files needs openpyxl: "
        "pip install openpyxl, or save the sheet as CSV"
    )


def test_rows_beyond_the_size_that_a_sheet_states(tmp_path):
    path = write(tmp_path / "x.xlsx", [("text", "labels"), ("ale", "beer"), ("claret", "wine")])
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "y.xlsx", "w") as other:
        for name in whole.namelist():
            stated = whole.read(name).replace(b'ref="A1:B3"', b'ref="A1:B2"')
            other.writestr(name, stated)
    assert pairs(load(tmp_path / "y.xlsx").train) == [("ale", ["beer"]), ("claret", ["wine"])]


def test_columns_of_one_name_are_all_kept(tmp_path):
    rows = [("text", "labels", "note", "note"), ("red wine", "a", 1, 2), ("pale ale", "b", 3, 4)]
    kept = load(write(tmp_path / "x.xlsx", rows), keep=True).train.columns
    assert (kept["note"], kept["note (2)"]) == ([1, 3], [2, 4])
