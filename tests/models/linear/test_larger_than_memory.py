"""Documents in files: the same model where all fits, and one that still learns elsewhere."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.data import Splits, pack
from longtail.labels import tree
from longtail.labels.tree import build_label_vectors, build_tree, keep_largest
from longtail.models import get_model_class
from longtail.models.linear import training
from longtail.models.linear.training import plan_tasks, spread_upwards
from longtail.runtime.mapped import is_mapped, write_matrix
from longtail.runtime.rows import view_rows
from tests.planted import planted_dataset, planted_texts

Linear = get_model_class("linear")


def fit(data, **settings):
    return Linear(trees=1, flat=0, max_leaf=4, branching=3, **settings).fit(data)


@pytest.mark.parametrize("placed", [7, training.PLACED])
@pytest.mark.parametrize("make", [planted_dataset, planted_texts])
def test_the_same_model_as_in_memory(tmp_path: Path, monkeypatch, make, placed) -> None:
    monkeypatch.setattr(training, "PLACED", placed)
    data = make()
    packed = pack(Splits(data, None), tmp_path / "packed").train
    one, other = fit(data), fit(packed)
    assert is_mapped(other.trees_[0].code)
    expected, found = one.to_files().arrays, other.to_files().arrays
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)
    assert np.array_equal(one.predict(data).labels, other.predict(packed).labels)


def test_it_learns_from_samples(tmp_path: Path, monkeypatch) -> None:
    data = planted_dataset(n=1000)
    packed = pack(Splits(data, None), tmp_path / "packed").train
    monkeypatch.setattr(training, "MOST_TOGETHER", 60_000)
    monkeypatch.setattr(tree, "MOST_VALUES", 100)
    monkeypatch.setattr(tree, "AT_ONCE", 500)
    model = fit(packed)
    first = model.predict(data, k=1).labels[:, 0]
    hits = data.Y[np.arange(len(data)), first]
    assert hits.mean() > 0.9
    again = fit(packed)
    assert np.array_equal(again.trees_[0].code, model.trees_[0].code)


def test_label_vectors_keep_their_largest_values(tmp_path: Path, monkeypatch) -> None:
    data = planted_dataset()
    packed = pack(Splits(data, None), tmp_path / "packed").train
    whole = build_label_vectors(data.X, data.Y)
    assert (build_label_vectors(packed.X, packed.Y) != whole).nnz == 0
    few = keep_largest(view_rows(whole), 3)
    for i in range(whole.shape[0]):
        own = few.values[few.start[i] : few.start[i + 1]]
        assert sorted(own.tolist()) == sorted(whole[i].data.tolist())[-3:]


def test_which_nodes_have_a_document_lies_in_files() -> None:
    vectors = sp.random(60, 30, 0.2, format="csr", dtype=np.float32, random_state=1)
    built = build_tree(vectors, branching=4, max_leaf=5)
    X = sp.random(200, 30, 0.2, format="csr", dtype=np.float32, random_state=2)
    Y = sp.csr_matrix(sp.random(200, 60, 0.05, random_state=3) > 0, dtype=np.float32)
    here = spread_upwards(Y, built)
    in_files = spread_upwards(write_matrix(Y), built, in_files=True)
    for mine, other in zip(here, in_files, strict=True):
        assert is_mapped(other)
        for one, another in zip(view_rows(mine), view_rows(other), strict=True):
            np.testing.assert_array_equal(one, another)
    tasks = plan_tasks(X, built, here, 0)
    for task, other in zip(tasks, plan_tasks(write_matrix(X), built, in_files, 0), strict=True):
        assert (task.documents is None) == (other.documents is None)
        if task.documents is not None:
            np.testing.assert_array_equal(task.documents, other.documents)
        assert other.level == 0 or other.documents is None or is_mapped(other.documents)
