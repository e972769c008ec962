import importlib
import json
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from longtail.data import load
from longtail.data.dataset import Dataset, build_label_matrix
from longtail.data.describe import HEAD, TAIL, TORSO, UNSEEN, Spread, assign_bands, describe

# By name, since the package may offer the function `describe` under the same name.
describe_module = importlib.import_module("longtail.data.describe")

SHARED = Path(__file__).parents[3] / "shared" / "data"


def make_texts(texts: list[str], labels: list[list[str]], names: list[str] | None = None):
    Y, label_names = build_label_matrix(labels, names)
    return Dataset(Y, label_names, texts=texts)


def make_rows(X: list[list[float]], labels: list[list[str]]) -> Dataset:
    Y, label_names = build_label_matrix(labels)
    return Dataset(Y, label_names, X=sp.csr_matrix(np.array(X, dtype=np.float32)))


# --- bands ----------------------------------------------------------------------------------


def test_bands_by_hand():
    # 100 pairs: label 0 holds 50 (head), 1 and 2 lead to 85 (torso), 3 is rare, 4 unseen.
    counts = np.array([50, 25, 10, 5, 0, 10])
    # 10 occurs twice, and equals stay together.
    assert assign_bands(counts).tolist() == [HEAD, TORSO, TORSO, TAIL, UNSEEN, TORSO]


def test_labels_of_one_frequency_share_a_band():
    assert assign_bands(np.array([7, 7, 7, 7])).tolist() == [HEAD] * 4


def test_bands_without_any_training_pair():
    assert assign_bands(np.zeros(3, dtype=np.int64)).tolist() == [UNSEEN] * 3
    assert assign_bands(np.zeros(0, dtype=np.int64)).tolist() == []


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_bands_follow_their_rule(counts):
    array = np.array(counts, dtype=np.int64)
    band = assign_bands(array)
    assert ((band == UNSEEN) == (array == 0)).all()
    total = sum(counts)
    for border, inside in ((50, band == HEAD), (80, band <= TORSO)):
        inside &= array > 0
        if total:
            held = array[inside].sum()
            assert 100 * held >= border * total
            # Without its rarest labels the group would hold less than its share.
            rarest = array[inside].min()
            assert 100 * array[inside & (array > rarest)].sum() < border * total
            assert rarest > array[~inside].max(initial=0)


# --- describe -------------------------------------------------------------------------------


def test_texts_by_hand():
    train = make_texts(
        ["red wine", "pale ale", " ", "red wine ", "green tea"],
        [["wine", "red"], ["beer"], ["wine"], ["wine"], []],
    )
    test = make_texts(["pale ale", "black tea", "mead"], [["beer"], ["tea", "black"], []])
    found = describe((train, test))

    assert found.document_type == "texts"
    assert found.n_features is None
    assert found.n_labels == 5
    assert found.train.n_documents == 5
    assert found.train.n_pairs == 5
    assert found.train.n_labels_used == 3
    assert found.train.labels_per_document == Spread(mean=1.0, median=1.0, max=2)
    assert found.train.documents_per_label == Spread(mean=5 / 3, median=1.0, max=3)
    assert found.train.n_empty == 1
    assert found.train.n_without_labels == 1
    assert found.train.n_duplicates == 1
    assert found.test is not None
    assert found.test.n_labels_used == 3
    assert found.n_in_both == 1
    assert (found.n_unseen_labels, found.n_unseen_pairs) == (2, 2)
    assert [(b.name, b.n_labels, b.min_documents, b.max_documents) for b in found.bands] == [
        ("head", 1, 3, 3),
        ("torso", 2, 1, 1),
        ("tail", 0, 0, 0),
    ]
    assert [b.share for b in found.bands] == pytest.approx([60.0, 40.0, 0.0])


def test_problems_are_plain_sentences():
    train = make_texts(
        ["red wine", "pale ale", "", "red wine", "green tea"],
        [["wine"], ["beer"], ["wine"], ["wine"], []],
        names=["beer", "wine", "mead"],
    )
    test = make_texts(["pale ale", "black tea"], [["beer"], ["tea"]])
    assert describe((train, test)).problems == [
        "1 training document (20.0 %) has no text: "
        "such documents can only get the most frequent labels.",
        "1 training document (20.0 %) has no labels: such documents teach nothing.",
        "1 training document (20.0 %) repeats an earlier one.",
        "1 test document (50.0 %) stands in the training split as well: "
        "results will look too good.",
        "1 test label is never seen in training (50.0 % of the test pairs): "
        "no model can predict them.",
        "1 label is on no document at all.",
    ]


def test_clean_data_has_no_problems():
    train = make_texts(["a", "b"], [["x"], ["y"]])
    assert describe((train, None)).problems == []
    assert describe((train, make_texts(["c", "d"], [["y"], ["x"]]))).problems == []


def test_several_documents_take_the_plural():
    train = make_texts(["a", "a", "a"], [["x"], [], []])
    assert describe((train, None)).problems == [
        "2 training documents (66.7 %) have no labels: such documents teach nothing.",
        "2 training documents (66.7 %) repeat an earlier one.",
    ]


def test_rows_by_hand():
    train = make_rows([[1, 0, 2], [0, 0, 0], [1, 0, 2], [2, 0, 1]], [["x"], ["x"], ["y"], ["y"]])
    test = make_rows([[0, 0, 0], [2, 0, 1], [0, 2, 1]], [["x"], [], ["y"]])
    found = describe((train, test))
    assert found.document_type == "features"
    assert found.n_features == 3
    assert found.train.n_empty == 1
    assert found.train.n_duplicates == 1
    assert found.n_in_both == 1
    assert found.problems[0] == (
        "1 training document (25.0 %) has no features: "
        "such documents can only get the most frequent labels."
    )


def test_empty_training_part_is_a_problem():
    found = describe((make_texts([], []), None))
    assert found.train.labels_per_document == Spread(0.0, 0.0, 0)
    assert found.problems == ["The training split holds no documents."]


def test_as_dict_goes_through_json():
    train = make_texts(["a", "b"], [["x"], ["y"]])
    plain = describe((train, None)).as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["test"] is None
    assert plain["train"]["labels_per_document"] == {"mean": 1.0, "median": 1.0, "max": 1}


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=30))
def test_row_duplicates_equal_a_literal_count(rows):
    found = describe((make_rows(rows, [["x"]] * len(rows)), None)).train
    filled = [tuple(row) for row in rows if any(row)]
    assert found.n_empty == len(rows) - len(filled)
    assert found.n_duplicates == len(filled) - len(set(filled))


def test_row_hashes_do_not_depend_on_the_block_size(monkeypatch):
    X = sp.random(200, 30, density=0.2, format="csr", dtype=np.float32, random_state=0)
    whole = describe_module._hash_rows(X)
    monkeypatch.setattr(describe_module, "_BLOCK", 4)  # below the size of many rows
    assert describe_module._hash_rows(X).tolist() == whole.tolist()
    assert len(set(whole.tolist())) == len({tuple(row) for row in X.toarray().tolist()})


def test_half_a_million_documents_take_seconds():
    rng = np.random.default_rng(0)
    texts = [f"a title of some length, number {i}" for i in rng.integers(0, 400_000, 500_000)]
    indices = rng.integers(0, 1000, 500_000).astype(np.int32)
    Y = sp.csr_matrix((np.ones(500_000, dtype=np.float32), indices, np.arange(500_001)))
    train = Dataset(Y, [str(i) for i in range(1000)], texts=texts)
    start = time.process_time()
    found = describe((train, None))
    assert found.train.n_duplicates == 500_000 - len(set(texts))
    assert time.process_time() - start < 5


@pytest.mark.skipif(not (SHARED / "bibtex").exists(), reason="needs ../shared/data/bibtex")
def test_bibtex():
    from longtail.data import load

    found = describe(load(SHARED / "bibtex"))
    assert found.test is not None
    assert (found.train.n_documents, found.test.n_documents) == (4880, 2515)
    assert (found.n_features, found.n_labels) == (1836, 159)
    assert found.train.n_pairs == 11616


def test_a_header_costs_memory_only_for_what_occurs(tmp_path):
    content = "2 2147483647 20000000\n5,19999999 3:1 2147483646:2\n7 1:1\n"
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text(content)
    (tmp_path / "test.txt").write_text(
        content.replace("20000000", "19999999", 1).replace(",19999999", "")
    )
    load(tmp_path)  # compiles the parser
    tracemalloc.start()
    found = describe(load(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.n_labels, found.n_features) == (20_000_000, 2_147_483_647)
    assert (found.train.n_labels_used, found.n_unseen_labels) == (3, 0)
    assert peak < 30 << 20  # two blocks of the files; the labels alone would take a gigabyte
