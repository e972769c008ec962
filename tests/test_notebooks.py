"""The notebooks run from top to bottom, and are kept without output."""

import os
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def read(path):
    return nbformat.read(path, as_version=4)


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["comparing", "own-model", "quickstart"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_has_no_output(path):
    book = read(path)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what runs notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    from nbclient import NotebookClient

    bin_folder = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", os.pathsep.join([bin_folder, os.environ["PATH"]]))
    book = read(path)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    said = "".join(output.get("text", "") for output in outputs)
    assert "Error: " not in said  # of a command
    assert "Debian package descriptions are in packages" in said
