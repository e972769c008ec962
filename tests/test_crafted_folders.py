"""Crafted model folders that once crashed, hung or lied: each is refused with one sentence.

`attack/folders.py` makes thousands of others from the models' schemas.
"""

from functools import cache

import numpy as np
import pytest
from planted import planted_dataset, planted_texts

from longtail import load_model
from longtail.errors import ModelFileError
from longtail.models import get_model_class
from longtail.runtime.store import write_folder

QUICK = {
    "linear": {"flat": 0, "branching": 3, "max_leaf": 4},
    "glas": {"dim": 8, "epochs": 1},
    "mnn": {"dim": 8, "epochs": 1},
    "dxml": {"dim": 8, "epochs": 1, "walks": 2},
    "rank-ae": {"dim": 8, "word_dim": 8, "epochs": 1},
    "attention-xml": {
        **{"hidden": 4, "head": 4, "word_dim": 4, "levels": 1, "branching": 4, "epochs": 1},
        **{"batch_size": 64},
    },
    "forest": {"cuts": "features", "n_trees": 10},
    "forest of clusters": {"cuts": "clusters", "n_trees": 10},
    "fusion": {"members": "linear,knn"},
}
NEURAL = ["glas", "mnn", "dxml", "rank-ae"]


@cache
def trained(name, document_type):
    data = planted_texts() if document_type == "texts" else planted_dataset()
    model_class = get_model_class(name.partition(" of ")[0])
    if model_class.needs_torch:
        pytest.importorskip("torch")
    model = model_class.from_settings(QUICK.get(name, {})).fit(data)
    return model.calibrate(data)


def refuse(tmp_path, name, craft, document_type="rows"):
    """Change a valid folder and return why it is not opened."""
    files = trained(name, document_type).to_files()
    craft(files)
    write_folder(tmp_path / "model", files)
    with pytest.raises(ModelFileError) as caught:
        load_model(tmp_path / "model")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'model'}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", ["linear", "knn", "forest", "fusion", *NEURAL])
def test_a_vocabulary_longer_than_the_rows(name, tmp_path):
    def craft(files):
        files.texts["vocabulary"] = [*files.texts["vocabulary"], "zzz"]
        start, idf = files.arrays["features.pairs.start"], files.arrays["features.idf"]
        files.arrays["features.pairs.start"] = np.append(start, start[-1])
        files.arrays["features.idf"] = np.ones(len(idf) + 1, np.float32)

    assert "n_features" in refuse(tmp_path, name, craft, "texts")


@pytest.mark.parametrize(
    "change",
    [
        lambda coded: coded.astype(np.uint64),
        lambda coded: coded.astype(np.int8),
        lambda coded: np.full(len(coded), np.nan),
        lambda coded: coded[:-1],
        lambda coded: np.append(coded, coded[-1:]),
        lambda coded: np.full(len(coded), 255, np.uint8),  # no number ever ends
        lambda coded: np.append(coded[:-1], np.array([255, 255, 255, 255, 127], np.uint8)),
    ],
)
@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("knn", "voters.index.lengths"),
        ("knn", "voters.labels.lengths"),
        ("knn", "voters.labels.columns"),
        ("forest", "trees.features"),
        ("forest", "trees.left"),
        ("forest of clusters", "trees.below"),
        ("forest of clusters", "trees.spans"),
        ("forest", "leaves.lengths"),
        ("forest", "leaves.columns"),
        ("linear", "tree.0.rows"),
        ("linear", "tree.0.nodes"),
        ("linear", "tree.0.lengths"),
        ("linear", "tree.0.children"),
    ],
)
def test_bytes_that_are_no_numbers(name, array, change, tmp_path):
    def craft(files):
        files.arrays[array] = change(files.arrays[array])

    refuse(tmp_path, name, craft)


def test_children_that_wrap_around(tmp_path):
    def craft(files):
        name = "tree0.level1.children"
        children = files.arrays[name].copy()
        children[1], children[2] = 2**31 - 1, -(2**31)
        files.arrays[name] = children

    message = refuse(tmp_path, "attention-xml", craft, "texts")
    assert "tree0.level1.children must hold rising" in message


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [("linear", "beam", 0), ("linear", "power", 10**12), ("linear", "trees", 10**6)],
)
def test_parameters_out_of_range(name, parameter, value, tmp_path):
    def craft(files):
        files.config["parameters"][parameter] = value

    assert parameter in refuse(tmp_path, name, craft)


def test_a_calibration_without_depth(tmp_path):
    def craft(files):
        files.config["calibration"]["depth"] = 0

    assert "calibration.depth must be at least 1" in refuse(tmp_path, "linear", craft)


@pytest.mark.parametrize("name", ["label_counts", "inner.linear.label_counts"])
@pytest.mark.parametrize("n", [3, 10_000])
def test_label_counts_of_another_length_in_a_fusion(name, n, tmp_path):
    def craft(files):
        files.arrays[name] = np.ones(n, np.int64)

    assert "n_labels" in refuse(tmp_path, "fusion", craft)


@pytest.mark.parametrize("times", [2, 2_000, 200_000])
def test_a_member_that_is_listed_many_times(times, tmp_path):
    def craft(files):
        files.config["members"] = ["linear"] * times

    assert "members" in refuse(tmp_path, "fusion", craft)


def test_a_member_of_rows_that_claims_to_read_texts(tmp_path):
    def craft(files):
        files.config["inner"]["linear"]["trained_on"] = "texts"

    for document_type in ("rows", "texts"):
        folder = tmp_path / document_type
        folder.mkdir()
        assert "features" in refuse(folder, "fusion", craft, document_type)


def test_a_fusion_in_a_fusion(tmp_path):
    def craft(files):
        files.config["inner"]["linear"]["model"] = "fusion"

    assert "a fusion cannot be a member of a fusion" in refuse(tmp_path, "fusion", craft)


@pytest.mark.parametrize("value", [-1, np.nan])
@pytest.mark.parametrize("name", ["reader.feature_weight", "reader.words.scale", "reader.decode"])
def test_weights_that_are_negative_or_no_numbers(name, value, tmp_path):
    def craft(files):
        files.arrays[name] = np.full_like(files.arrays[name], value)

    if value == -1 and name != "reader.feature_weight":
        pytest.skip("other weights may be negative")
    assert f"{name} must hold numbers" in refuse(tmp_path, "rank-ae", craft)


@pytest.mark.parametrize("name", ["linear", "knn", "forest", "fusion"])
@pytest.mark.parametrize("n", [0, -1, True, 1.5, "many", None])
def test_a_number_of_documents_that_is_none(name, n, tmp_path):
    def craft(files):
        files.config["n_documents"] = n

    assert "n_documents must be" in refuse(tmp_path, name, craft)


@pytest.mark.parametrize("value", [[], {}, None, 3, True, "../linear", "nothing"])
@pytest.mark.parametrize("where", ["model", "package"])
def test_a_model_that_does_not_exist(value, where, tmp_path):
    def craft(files):
        files.config["model"] = "nothing"
        files.config[where] = value

    assert "holds a model" in refuse(tmp_path, "linear", craft)


@pytest.mark.parametrize(
    "key", ["parameters", "trained_on", "n_features", "calibration", "package"]
)
@pytest.mark.parametrize("value", [[], {}, None, 3, True, "texts", [[[]]]])
def test_values_of_another_type(key, value, tmp_path):
    if (key, value) in (("parameters", {}), ("package", "texts"), ("n_features", 3)):
        pytest.skip("of the right type")

    def craft(files):
        files.config[key] = value

    refuse(tmp_path, "linear", craft)
