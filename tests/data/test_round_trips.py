"""Whatever is written reads back as the same documents, through any two formats.

`pytest --hypothesis-profile thorough` tries 10,000 cases of each test.
"""

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planted import pairs

from longtail.data import Dataset, Splits, as_dataset, convert, load, write_dataset
from longtail.errors import DataError

EXACT = ["jsonl", "csv", "tsv", "parquet", "jsonl.gz", "csv.gz", "tsv.gz"]
ENDINGS = [*EXACT, "txt", "txt.gz", ""]
LOOKALIKES = [
    "__label__x", "text,labels", "text\tlabels", "3 4 5", "3 4", "{", "PAR1", "\x1f\x8b", "\ufeff",
    '["a"]', '"', ",", "\r\n", "\r", "\n", "\0", "\t", " ", "\x85", "\u2028", "\ud83c\udf7a", "7",
    "\\ud83c", "null", "a",
]  # fmt: skip
texts = st.one_of(st.text(), st.lists(st.sampled_from(LOOKALIKES), max_size=6).map("".join)).filter(
    lambda text: not any(0xD800 <= ord(character) < 0xE000 for character in text)
)
labels = st.lists(texts.filter(str.strip), max_size=4)
documents = st.lists(st.tuples(texts, labels), min_size=1, max_size=8)


@contextmanager
def new_folder():
    """Hypothesis runs many cases within one test, which has only one `tmp_path`."""
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def documents_of(data):
    return [(text, sorted(names)) for text, names in pairs(data)]


def try_writing(write, out):
    """Return whether `write` wrote `out`; if it did not, it said why and left nothing behind."""
    try:
        write()
        return True
    except DataError as error:
        message = str(error)
    assert message.startswith(f"{out}: ")
    assert "document" in message or "label" in message
    assert len(message.splitlines()) == 1
    assert list(out.parent.glob(".tmp*")) == []
    return False


@given(documents, st.sampled_from(ENDINGS), st.sampled_from(ENDINGS))
@settings(deadline=None)
def test_texts_through_two_formats(given_documents, first, second):
    data = as_dataset(*map(list, zip(*given_documents, strict=True)))
    with new_folder() as folder:
        one, two = (
            folder / f"{name}.{form}".rstrip(".") for name, form in (("a", first), ("b", second))
        )
        wrote = try_writing(lambda: write_dataset(data, one), one)
        assert wrote or first not in EXACT
        assume(wrote)
        assert documents_of(load(one).train) == documents_of(data)
        wrote = try_writing(lambda: convert(one, two), two)
        assert wrote or second not in EXACT
        assume(wrote)
        assert documents_of(load(two).train) == documents_of(data)


values = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(bool)


@st.composite
def rows(draw):
    n, n_features, n_labels = (draw(st.integers(0, 6)) for _ in range(3))
    cells = st.tuples(st.integers(0, max(n - 1, 0)), st.integers(0, max(n_features - 1, 0)))
    X, Y = sp.lil_matrix((n, n_features), dtype=np.float32), sp.lil_matrix((n, n_labels))
    if n and n_features:
        for row, column in draw(st.lists(cells, max_size=12)):
            X[row, column] = draw(values)
    if n and n_labels:
        for row in range(n):
            Y[row, draw(st.integers(0, n_labels - 1))] = draw(st.integers(0, 1))
    named = draw(st.booleans())
    data = as_dataset(X, Y)
    return Dataset(data.Y, [f"label {i}" for i in range(n_labels)], X=data.X) if named else data


@given(rows(), st.booleans(), st.sampled_from(["", "txt", "txt.gz"]))
@settings(deadline=None)
def test_rows_through_files_and_folders(data, has_test, ending):
    splits = Splits(data, data if has_test and not ending else None)
    with new_folder() as folder:
        out = folder / f"a.{ending}".rstrip(".")
        wrote = try_writing(lambda: write_dataset(splits, out), out)
        has_names = bool(data.n_labels) and data.label_names[0] != "0"
        assert wrote == (not (ending and has_names))
        assume(wrote)
        for written, read in zip(splits, load(out), strict=True):
            assert (written is None) == (read is None)
            if written is not None:
                assert list(read.label_names) == list(written.label_names)
                for mine, theirs in ((written.X, read.X), (written.Y, read.Y)):
                    assert mine.shape == theirs.shape
                    assert mine.indptr.tolist() == theirs.indptr.tolist()
                    assert mine.indices.tolist() == theirs.indices.tolist()
                    assert mine.data.tobytes() == theirs.data.tobytes()


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_no_character_is_named(tmp_path, ending):
    out = tmp_path / f"x.{ending}".rstrip(".")
    with pytest.raises(DataError, match="document 2 holds half a surrogate pair"):
        write_dataset(as_dataset(["a", "b \ud83c"], [["x"], ["y"]]), out)
    with pytest.raises(DataError, match="label 1 cannot be written: it is half a surrogate pair"):
        write_dataset(as_dataset(["a"], [["x", "y\udf7a"]]), out)
    assert list(tmp_path.iterdir()) == []
