"""`longtail.train`, the recipe of the command line, called from Python."""

from pathlib import Path

import numpy as np
import pytest
from planted import planted_dataset, planted_texts, write_planted_texts

from longtail import load_model, train
from longtail.data import Splits, write_dataset
from longtail.errors import DataError, ParameterError, TrainingError
from longtail.evaluation.metrics import TrainingCounts
from longtail.models import KNN, Linear
from longtail.progress import Silent
from longtail.recipe import RunFolder, measure_held_out

QUICK = {"trees": 1}


class Heard(Silent):
    """A Progress that keeps the lines it is told."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def without_choices(heard):
    """Return what was said, but for what a model chose from the data."""
    return [line for line in heard.lines if not line.startswith("Chosen: ")]


@pytest.fixture(scope="module")
def trained():
    return train(planted_texts(), model="linear", settings=QUICK)


# -- hold out, measure, calibrate, train on everything --------------------------------------------


def test_the_model_is_trained_on_all_documents_and_measured_on_some(trained):
    assert trained.model.name == "linear"
    assert trained.model.training_counts_.n_documents == 300
    assert trained.report["P@1"] > 90
    assert {"nDCG@5", "PSP@1", "ECE", "threshold"} <= trained.report.keys()
    assert trained.seconds > 0
    assert (trained.problem, trained.test) == (None, None)


def test_it_has_probabilities(trained):
    test = planted_texts(seed=1)
    chosen = trained.model.predict(test, threshold="auto")
    assert trained.model.calibration_ is not None
    assert abs((chosen.labels >= 0).sum() - test.Y.nnz) < 0.1 * test.Y.nnz


@pytest.mark.parametrize("calibration", ["isotonic", "logistic", "none"])
def test_the_calibration_is_the_one_asked_for(calibration):
    found = train(planted_dataset(), model="linear", settings=QUICK, calibration=calibration)
    learned = found.model.calibration_
    assert (learned is None) == (calibration == "none")
    assert learned is None or learned.method == calibration
    assert ("threshold" in found.report) == (calibration != "none")


def test_it_is_the_plain_step_that_trains(trained):
    plain = Linear(trees=1).fit(planted_texts())
    test = planted_texts(seed=1)
    found = trained.model.predict(test, calibrated=False)
    np.testing.assert_array_equal(found.scores, plain.predict(test).scores)


def test_the_seed_and_the_settings_reach_the_model():
    settings = {"trees": "2", "tfidf.ngrams": "1"}
    model = train(planted_texts(120), model="linear", settings=settings, seed=7, valid=0).model
    assert (model.seed, model.trees, model.tfidf.ngrams) == (7, 2, 1)


def test_a_class_in_place_of_a_name():
    assert type(train(planted_dataset(120), model=KNN, valid=0).model) is KNN


def test_fusion_measures_what_it_held_out_itself():
    found = train(planted_dataset(), settings={"members": "linear,knn"})
    assert found.model.name == "fusion"
    report, _ = measure_held_out(found.model, planted_dataset())
    assert report == found.report
    assert found.report["P@1"] > 90
    assert (
        measure_held_out(Linear(trees=1).fit(planted_dataset()), planted_dataset()) == (None,) * 2
    )


# -- nothing to measure ---------------------------------------------------------------------------


def test_nothing_is_held_out_if_not_wanted():
    heard = Heard()
    found = train(planted_dataset(), model="linear", settings=QUICK, valid=0, progress=heard)
    assert found.report is None
    assert found.model.calibration_ is None
    assert not any("Measuring" in line for line in heard.lines)


def test_too_few_documents_to_hold_some_out():
    heard = Heard()
    found = train(planted_dataset(99), model="linear", settings=QUICK, progress=heard)
    assert (found.report, found.model.calibration_) == (None, None)
    assert without_choices(heard) == [
        "Note: 99 documents are too few to hold some out for measuring (at least 100 are needed)."
    ]


def test_what_is_done_is_said():
    heard = Heard()
    train(planted_dataset(200), model="linear", settings=QUICK, valid=0.25, progress=heard)
    first, second = without_choices(heard)
    assert first.startswith("Measuring: training on 150 of 200 documents, testing on 50")
    assert second.startswith("Measured: P@1 ")


# -- data -----------------------------------------------------------------------------------------


def test_texts_with_lists_of_labels():
    data = planted_texts(120)
    labels = [[data.label_names[label] for label in data.Y[i].indices] for i in range(120)]
    found = train(data.texts, labels, model="linear", settings=QUICK, valid=0)
    assert sorted(found.model.label_names_) == sorted(data.label_names)


def test_rows_with_a_matrix_of_labels():
    data = planted_dataset(120)
    found = train(data.X, labels=data.Y, model="linear", settings=QUICK, valid=0)
    assert found.model.trained_on == "rows"


@pytest.mark.parametrize("as_type", [str, Path])
def test_a_path_whose_test_split_is_returned(as_type, tmp_path):
    write_dataset(Splits(planted_texts(120), planted_texts(40, seed=1)), tmp_path / "data")
    path = as_type(tmp_path / "data")
    found = train(path, model="linear", settings=QUICK, valid=0)
    assert found.model.training_counts_.n_documents == 120
    assert len(found.test) == 40


def test_a_path_without_a_test_split(tmp_path):
    path = write_planted_texts(tmp_path / "data.jsonl", 120)
    assert train(path, model="linear", settings=QUICK, valid=0).test is None


# -- the folder of the model ----------------------------------------------------------------------


def test_the_model_is_saved_with_its_probabilities(tmp_path):
    out = tmp_path / "model"
    found = train(planted_dataset(), model="linear", settings=QUICK, out=out)
    loaded, test = load_model(out), planted_dataset(seed=1)
    np.testing.assert_array_equal(loaded.predict(test).scores, found.model.predict(test).scores)
    assert loaded.calibration_ is not None
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_that_is_there_stays_unless_it_may_be_replaced(tmp_path):
    out = str(tmp_path / "model")
    options = {"model": "linear", "settings": QUICK, "valid": 0, "out": out}
    train(planted_dataset(120), **options)
    with pytest.raises(ParameterError, match="already exists; choose another --out, or add --over"):
        train(planted_dataset(130), **options)
    assert load_model(out).training_counts_.n_documents == 120
    train(planted_dataset(130), **options, overwrite=True)
    assert load_model(out).training_counts_.n_documents == 130


def test_nothing_to_resume_is_noted(tmp_path):
    heard = Heard()
    options = {"model": "linear", "settings": QUICK, "valid": 0, "progress": heard}
    train(planted_dataset(120), **options, out=tmp_path / "model", resume=True)
    run_folder = tmp_path / "model.run"
    assert without_choices(heard) == [
        f"Note: there is no checkpoint in {run_folder}; training begins anew."
    ]


def test_checkpoints_of_a_stopped_run_are_not_lost(tmp_path):
    step = tmp_path / "model.run" / "training" / "step-00000004"
    step.mkdir(parents=True)
    with pytest.raises(ParameterError, match="holds checkpoints of a run that was stopped; add"):
        train(planted_dataset(120), model="linear", valid=0, out=tmp_path / "model")
    assert step.exists()
    assert "with --resume goes on" in RunFolder(tmp_path / "model").say_what_is_kept()


def test_a_folder_without_a_whole_member_is_nothing_to_resume(tmp_path):
    folder = RunFolder(tmp_path / "model")
    members = tmp_path / "model.run" / "training" / "members"
    (members / "linear-all").mkdir(parents=True)
    assert folder.find_checkpoints() == []
    assert "--resume" not in folder.say_what_is_kept()
    (members / "linear-all" / "manifest.json").write_text("{}")
    assert folder.find_checkpoints() == [members]


def test_of_several_processes_only_the_first_saves(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    options = {"model": "linear", "settings": QUICK, "valid": 0, "out": tmp_path / "model"}
    train(planted_dataset(120), **options)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("RANK", "0")
    train(planted_dataset(120), **options)
    assert (tmp_path / "model").exists()


# -- mistakes, told before anything is read -------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"valid": 1.0},
            "'valid' parameter of train must be at least 0 and below 1. Got 1 instead",
        ),
        ({"valid": -0.1}, "must be at least 0 and below 1. Got -0.1 instead"),
        ({"valid": float("nan")}, "must be at least 0 and below 1. Got nan instead"),
        ({"model": "linaer"}, "there is no model 'linaer'; did you mean 'linear'"),
        ({"settings": {"tree": 3}}, "Linear has no parameter 'tree'; did you mean 'trees'"),
        ({"settings": {"trees": 0}}, "'trees' parameter of Linear must be from 1 to 1000. Got 0"),
        ({"device": "cuda"}, "linear is trained on the CPU only; leave out the device cuda"),
        ({"budget": "1m"}, "linear does not plan its time; leave out the budget, or train fusion"),
        ({"seed": -1}, "'seed' parameter of Linear must be from 0 to"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ParameterError) as caught:
        train("no/such/data", **{"model": "linear", **options})
    assert message in str(caught.value)


def test_labels_that_are_missing():
    with pytest.raises(DataError, match="of 2 documents, none carries a label"):
        train(["a text", "another"], model="linear")


# -- training that stops early --------------------------------------------------------------------


class Stopped(Linear):
    """Learns as Linear does, then says why it had to stop."""

    def fit_documents(self, dataset, progress):
        super().fit_documents(dataset, progress)
        self.trained_on, self.label_names_ = "rows", list(dataset.label_names)
        self.training_counts_ = TrainingCounts.of(dataset)
        raise TrainingError("the loss became nan")


class Lost(Linear):
    """Has nothing to show when it stops."""

    def fit_documents(self, dataset, progress):
        raise TrainingError("the loss became nan at the first step")


def test_the_last_good_weights_are_kept_and_the_problem_is_told(tmp_path):
    found = train(planted_dataset(), model=Stopped, settings=QUICK, out=tmp_path / "model")
    assert found.problem == "the loss became nan"
    assert found.report["P@1"] > 90
    assert load_model(tmp_path / "model").is_fitted


def test_training_that_leaves_nothing_is_an_error(tmp_path):
    with pytest.raises(TrainingError, match="at the first step"):
        train(planted_dataset(), model=Lost, settings=QUICK, out=tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_resuming_needs_a_folder():
    with pytest.raises(ParameterError, match="there is nothing to resume without out"):
        train(["a", "b"], [["x"], ["y"]], model="linear", resume=True)


# -- data larger than memory ----------------------------------------------------------------------


def test_data_that_would_fill_memory_are_packed_and_the_model_is_the_same(tmp_path, monkeypatch):
    source = tmp_path / "train.jsonl"
    write_planted_texts(source, 300)
    usual = train(source, model="linear", settings=QUICK, valid=0).model
    monkeypatch.setattr("longtail.recipe.free_ram", lambda: 10_000)
    heard = Heard()
    out = tmp_path / "model"
    packed = train(source, model="linear", settings=QUICK, valid=0, out=out, progress=heard).model
    assert any("so they are packed into files" in line for line in heard.lines)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "train.jsonl"]
    expected = usual.to_files().arrays
    found = packed.to_files().arrays
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


def test_one_document_is_spoken_of_as_one(tmp_path):
    heard = Heard()
    trained = train(["hops and malt"], [["beer"]], model="knn", out=tmp_path / "m", progress=heard)
    assert any("1 document is too few to hold some out" in line for line in heard.lines)
    trained.model.partial_fit(["rook and malt"], [["chess"]])
    assert trained.model.card_.history[-1].endswith("1 document added")
