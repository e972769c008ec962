"""Frames of pandas, polars and pyarrow, and whatever else holds columns by name."""

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from planted import pairs, planted_texts

import longtail
from longtail.data import as_dataset, load
from longtail.data.frames import is_frame
from longtail.errors import DataError

COLUMNS = {
    "ticket": [7, 8, 9],
    "message": ["pale ale and more", None, "red wine, white wine"],
    "label": ["Billing Question", None, "Refund Request"],
}
EXPECTED = [
    ("pale ale and more", ["Billing Question"]),
    ("", []),
    ("red wine, white wine", ["Refund Request"]),
]


class Column(list):
    """A column of a Hugging Face data set: a sequence without any method of its own."""


class HuggingFace:
    """What duck typing sees of a Hugging Face data set."""

    def __init__(self, columns, features=None):
        self._columns, self.features = columns, features or {}

    @property
    def column_names(self):
        return list(self._columns)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name):
        return Column(self._columns[name])


class ClassLabel:
    names = ("ham", "spam")


FRAMES = {
    "pandas": pd.DataFrame(COLUMNS),
    "polars": pl.DataFrame(COLUMNS),
    "pyarrow": pa.table(COLUMNS),
    "hugging face": HuggingFace(COLUMNS),
    "dictionary": COLUMNS,
    "records": pl.DataFrame(COLUMNS).to_dicts(),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_frames_are_read_like_tables(frame):
    data = load(frame, keep=True).train
    assert pairs(data) == EXPECTED
    assert data.ids == ["7", "8", "9"]
    assert data.columns == COLUMNS
    assert data.read_as == (
        "text: message; labels: label, one a document, e.g. 'Billing Question' "
        "(--separator blank splits it); id: ticket"
    )
    assert pairs(as_dataset(frame, "label", text="message")) == EXPECTED
    assert pairs(as_dataset(frame, ["x", [], "y"])) == [
        (text, labels) for (text, _), labels in zip(EXPECTED, (["x"], [], ["y"]), strict=True)
    ]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, HuggingFace, dict])
def test_models_take_frames(make):
    data = planted_texts(n=200, n_labels=4)
    labels = [data.label_names[data.Y[i].indices[0]] for i in range(200)]
    frame = make({"words": list(data.texts), "what": labels})
    model = longtail.Linear(trees=1).fit(frame, labels="what", text="words")
    top = model.predict(frame, k=2, text="words")
    assert longtail.evaluate(top, frame, labels="what", text="words")["P@1"] > 60
    assert longtail.evaluate(top, data.texts, labels)["P@1"] > 60
    trained = longtail.train(frame, "what", text="words", model="linear")
    assert trained.report["P@1"] > 60


def test_series_and_arrays_of_texts_and_labels():
    texts, labels = ["a", "b", "c"], ["x y", "z", "x y"]
    expected = [("a", ["x y"]), ("b", ["z"]), ("c", ["x y"])]
    for given in (
        (texts, labels),
        (pd.Series(texts), pd.Series(labels)),
        (pl.Series(texts), pl.Series(labels)),
        (pa.array(texts), pa.chunked_array([labels])),
        (np.array(texts), np.array(labels)),
    ):
        assert pairs(as_dataset(*given)) == expected


def test_one_number_a_document():
    for X in (sp.csr_matrix(np.eye(3)), sp.csr_array(np.eye(3)), np.eye(3)):
        for labels in ([2, 0, 2], np.array([2, 0, 2])):
            data = as_dataset(X, labels)
            assert data.Y.toarray().tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]


def test_class_labels_of_hugging_face_get_their_names():
    columns = {"text": ["a", "b"], "label": [1, 0]}
    assert pairs(load(HuggingFace(columns, {"label": ClassLabel()})).train) == [
        ("a", ["spam"]),
        ("b", ["ham"]),
    ]
    several = {"text": ["a", "b"], "labels": [[1, 0], []]}

    class Several:
        feature = ClassLabel()

    assert pairs(load(HuggingFace(several, {"labels": Several()})).train) == [
        ("a", ["ham", "spam"]),
        ("b", []),
    ]


def test_frames_called_train_and_test_share_their_labels():
    train, test = load({"train": FRAMES["pandas"], "test": FRAMES["polars"][:1]})
    assert train.label_names == test.label_names == ["Billing Question", "Refund Request"]
    assert pairs(test) == EXPECTED[:1]
    with pytest.raises(DataError, match="none of these frames is called 'train': 'dev'"):
        load({"dev": FRAMES["pandas"]})


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (FRAMES["pandas"], {"text": "mesage"}, "there is no column 'mesage' (--text); did you mean "
         "'message'; the columns are 'ticket', 'message', 'label'"),
        (FRAMES["polars"][["ticket"]], {}, "no column is recognized as text; the columns are "
         "'ticket'; name it with --text COLUMN (in Python text='COLUMN')"),
        (FRAMES["polars"].lazy(), {}, "this frame is lazy; give it collected: frame.collect()"),
        (pd.DataFrame([[1, 2]], columns=["text", "text"]), {}, "the column 'text' stands there "
         "twice"),
        ({"text": [["a"]], "labels": ["x"]}, {}, "the text of row 0 is a list; it must be a "
         "string"),
        ({"text": ["a", b"b"], "labels": ["x", "y"]}, {}, "the text of row 1 is bytes; it must be "
         "a string"),
        (pd.DataFrame({"text": [{"a": 1}], "labels": ["x"]}), {}, "the text of row 0 is a "
         "dictionary; it must be a string"),
        ({"text": ["a"], "labels": np.array([b"x"])}, {}, "the frame: document 1: a label must be "
         "a string; got b'x'"),
        ({"text": ["a", "b"], "labels": ["x"]}, {}, "the column 'labels' has 1 values, and 'text' "
         "has 2"),
        ({"text": ["a"], "labels": ["x"], "more": []}, {"keep": True}, "the column 'more' has 0 "
         "values, and 'text' has 1"),
    ],
)  # fmt: skip
def test_frames_that_cannot_be_read(frame, options, message):
    with pytest.raises(DataError) as caught:
        load(frame, **options)
    assert str(caught.value) == message


def test_columns_of_what_has_none():
    with pytest.raises(DataError, match="text='x' names a column, and these documents have none"):
        as_dataset(["a"], [["y"]], text="x")


def test_no_package_of_frames_is_imported():
    code = (
        "import sys, longtail; longtail.load({'text': ['a'], 'labels': ['x']});"
        "print({'pandas', 'polars', 'datasets', 'openpyxl'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_sparse_matrix_that_is_a_mapping_is_no_frame():
    assert not is_frame(sp.dok_matrix((3, 2)))
