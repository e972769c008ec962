"""Models trained on data in files are those trained in memory, and hold no copy of the data."""

import numpy as np
import pytest
from planted import planted_dataset

from longtail.data import Dataset, pack
from longtail.models import load_model
from longtail.models.forest.model import Forest
from longtail.models.knn.model import KNN
from longtail.models.lexical import names as lexical_names
from longtail.models.lexical.model import Lexical
from longtail.runtime.mapped import Extent, Texts, is_mapped
from longtail.search import sparse


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return planted_dataset(n_labels=12)


@pytest.fixture(scope="module")
def texts(rows) -> Dataset:
    words = [" ".join(f"w{i}" for i in rows.X[row].indices) for row in range(len(rows))]
    names = [f"w{3 * i}" for i in range(rows.n_labels)]
    return Dataset(rows.Y, names, texts=words)


def assert_same(model, other, data) -> None:
    ours, theirs = model.predict(data, k=5), other.predict(data, k=5)
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    np.testing.assert_array_equal(ours.scores, theirs.scores)


def test_knn_keeps_its_index_in_files(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse, "AT_ONCE", 500)
    packed = pack(rows, tmp_path / "packed").train
    model, other = KNN().fit(packed), KNN().fit(rows)
    assert_same(model, other, rows)
    index = model.voters_.index
    assert is_mapped(index.vectors)
    assert is_mapped(index.lists.columns)
    model.save(tmp_path / "model")
    assert_same(load_model(tmp_path / "model"), other, rows)


def test_forest_grows_on_rows_in_files_and_keeps_none(rows, tmp_path):
    packed = pack(rows, tmp_path / "packed").train
    model, other = Forest(n_trees=5).fit(packed), Forest(n_trees=5).fit(rows)
    assert_same(model, other, rows)
    assert not is_mapped(model.Y_)


def test_knn_keeps_snippets_in_a_file(texts, tmp_path):
    packed = pack(texts, tmp_path / "packed").train
    model, other = KNN().fit(packed), KNN().fit(texts)
    assert isinstance(model.snippets_, Texts)
    assert model.snippets_ == other.snippets_
    model.save(tmp_path / "model")
    assert list(load_model(tmp_path / "model").snippets_) == list(other.snippets_)


def test_lexical_reads_some_texts_at_a_time(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(lexical_names, "READ_TOGETHER", 2000)
    packed = pack(texts, tmp_path / "packed").train
    model, other = Lexical().fit(packed), Lexical().fit(texts)
    assert_same(model, other, texts)
    _, stems = model.reader_.read(packed.texts)
    assert is_mapped(stems)


@pytest.mark.parametrize("model", [KNN(), Lexical()])
def test_plans_of_data_in_files_do_not_grow_with_values(model):
    def plan(n_values):
        X, Y = Extent((10**7, 10**5), n_values, 100), Extent((10**7, 10**5), 10**7, 10)
        (stage,) = model.needs_of(X, Y, "cpu")
        return sum(stage.ram.values())

    assert plan(10**9) == plan(2 * 10**9)
