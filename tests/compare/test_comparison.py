"""Comparisons: who takes part, what they are given, how runs end, and what is more than chance."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from made_up_comparison import (
    LINEAR,
    comparison_of,
    made_up_run,
    make_split,
    open_folder,
    results_of,
)
from planted import planted_dataset, planted_texts

from longtail.cluster.tasks import WorkerError
from longtail.compare import ours
from longtail.compare.bootstrap import (
    choose_n_draws,
    correct,
    draw_metrics,
)
from longtail.compare.contenders import (
    Home,
    Missing,
    find_entrants,
    find_home,
    parse_models,
    text_settings,
)
from longtail.compare.disagreement import (
    count_agreement,
    cut,
    find_disagreements,
    show_document,
)
from longtail.compare.folder import ReportFolder, as_file_name, read_top, write_whole
from longtail.compare.machine import describe
from longtail.compare.process import Job, describe_failure, run
from longtail.compare.recipe import prepare
from longtail.compare.run import Failure, Run, run_all, run_together
from longtail.compare.split import TrainTestSplit, checksum, read_split, write_given
from longtail.compare.spread import run_on_cluster, take_place
from longtail.compare.table import escape, join, markdown, summarize, write_table
from longtail.data import Dataset
from longtail.errors import (
    DataError,
    LongtailError,
    MemoryPlanError,
    MissingExtraError,
    ParameterError,
)
from longtail.evaluation.metrics import PerDocument, evaluate, evaluate_documents
from longtail.models import get_model_class
from longtail.peers import OURS, PEERS, Contender
from longtail.peers.measure import choose_cores
from longtail.progress import SILENT
from longtail.topk import TopK


def names_and_settings(text, pairs=None, options=None):
    return [(c.name, c.setting) for c in parse_models(text, pairs or {}, options or {})]


# ------------------------------------------------------------------------------------- contenders


def test_models_are_names_with_settings_behind_a_colon():
    assert names_and_settings("linear, linear:preset=fast,trees=2,linear:trees=3") == [
        ("linear", LINEAR),
        ("linear:preset=fast,trees=2", {**LINEAR, "preset": "fast", "trees": "2"}),
        ("linear:trees=3", {**LINEAR, "trees": "3"}),
    ]


def test_set_and_options_reach_the_models_that_have_them():
    pairs = {"linear.trees": "2", "tfidf.ngrams": "1"}
    found = names_and_settings("linear,glas", pairs, {"device": "cpu", "budget": None})
    assert found == [
        ("linear", {**LINEAR, "trees": "2", "tfidf.ngrams": "1"}),
        ("glas", {"model": "glas", "device": "cpu", "tfidf.ngrams": "1"}),
    ]
    assert text_settings(pairs) == {"ngrams": "1"}


def test_a_setting_of_its_own_wins_over_one_for_all():
    assert names_and_settings("linear:trees=1", {"linear.trees": "2"})[0][1]["trees"] == "1"


def test_a_peer_can_be_named():
    assert parse_models("omikuji bonsai", {}, {})[0].package == "omikuji"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linaer", r"there is no model 'linaer'; did you mean 'linear'\? \(known: linear, "),
        ("linear:tree=3", "Linear has no parameter 'tree'; did you mean 'trees'?"),
        ("linear:trees=x", "The 'trees' parameter of Linear must be a whole number"),
        ("linear:trees=0", "The 'trees' parameter of Linear must be"),
        ("linear:fast", "--models needs key=value behind 'linear:', such as linear:preset=fast"),
        ("linear:seed=1", "--seeds gives the seed to all methods; leave out that of linear"),
        ("trees=3", "--models must begin with a name. Got 'trees=3' instead."),
        (" , ", "--models names no model"),
        ("linear,linear", "--models names 'linear' twice"),
        ("linear:trees=1,trees=2", "--models gives 'trees' of linear twice"),
        ("omikuji bonsai:x=1", "'omikuji bonsai' is a peer and takes no settings here"),
    ],
)
def test_wrong_models(text, message):
    with pytest.raises(ParameterError, match=message):
        parse_models(text, {}, {})


@pytest.mark.parametrize("pair", ["trees", "glas.dim", ".x", "linear."])
def test_set_must_name_one_of_the_models(pair):
    with pytest.raises(ParameterError, match=r"--set needs MODEL.key=value with one of linear"):
        parse_models("linear", {pair: "1"}, {})


def test_missing_peers_are_named_with_what_installs_them(tmp_path):
    nowhere = Contender("no such", "no-such-package", "longtail.peers.none")
    assert find_home(nowhere, tmp_path) == Missing("no-such-package", "pip install no-such-package")
    with pytest.raises(MissingExtraError, match="install it with: pip install no-such-package"):
        find_entrants([nowhere], peers=False, environments=None)


def test_peers_are_found_in_an_environment_of_their_own(tmp_path):
    python = tmp_path / "omikuji" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 9.8.7\n")
    python.chmod(0o755)
    home = find_home(next(peer for peer in PEERS if peer.package == "omikuji"), tmp_path)
    assert home == Home(python, "9.8.7")


# ------------------------------------------------------------------------------------------ split


def test_data_without_a_test_split_are_divided(tmp_path):
    lines = [json.dumps({"text": f"word{i % 3} x", "labels": [f"l{i % 3}"]}) for i in range(20)]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines))
    split = read_split(path, None)
    assert (len(split.train), len(split.test)) == (16, 4)
    assert "20% of the training documents" in split.origin
    assert len(read_split(path, 0.5).test) == 10
    assert read_split(path, None).describe() == split.describe()


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([("a", ["x"])], "1 document cannot be divided into a training and a test split"),
        ([("a", []), ("b", [])], "of 1 training document, none carries a label"),
    ],
)
def test_data_that_cannot_be_compared_on(tmp_path, documents, message):
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps({"text": t, "labels": ls}) for t, ls in documents))
    with pytest.raises(DataError, match=message):
        read_split(path, None)


def test_methods_never_get_the_test_labels(tmp_path):
    split = make_split(plant=planted_texts)
    made = write_given(split, tmp_path / "given", with_rows=True, tfidf={"ngrams": "1"})
    assert sorted(path.name for path in (tmp_path / "given").glob("**/*") if path.is_file()) == [
        "label_names.json",
        "test_X.npz",
        "test_texts.json",
        "train_X.npz",
        "train_Y.npz",
        "train_Y.npz",
        "train_texts.json",
    ]
    X = sp.csr_matrix(sp.load_npz(tmp_path / "given" / "rows" / "train_X.npz"))
    np.testing.assert_allclose(np.sqrt(X.multiply(X).sum(axis=1)), 1, rtol=1e-5)
    assert made.n_empty == 0
    assert made.train_seconds > 0


def test_checksum_changes_with_documents_labels_and_names():
    data = planted_texts(20)
    other_texts = Dataset(data.Y, data.label_names, texts=["x", *data.texts[1:]])
    other_labels = Dataset(data.Y[::-1], data.label_names, texts=data.texts)
    other_names = Dataset(data.Y, ["x", *data.label_names[1:]], texts=data.texts)
    sums = {checksum(each) for each in (data, other_texts, other_labels, other_names)}
    assert len(sums) == 4
    assert checksum(planted_texts(20)) == checksum(data)


def test_excluded_pairs_leave_the_predictions(tmp_path, unruly):
    split = make_split(8)
    exclude = sp.csr_matrix(([1.0], ([0], [3])), shape=split.test.Y.shape)
    split = replace(split, test=replace(split.test, exclude=exclude))
    comparison = comparison_of(split, [unruly("work")])
    (found,) = run_all(comparison, open_folder(tmp_path / "out"), SILENT)
    assert comparison.depth == 11
    assert found.top.labels.tolist() == [[0, 1, 2, *range(4, 11)], list(range(10))]


# -------------------------------------------------------------------------------------- bootstrap


def test_holms_correction_by_hand():
    assert correct([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert correct([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert correct([]) == []


def per_document(values):
    values = np.asarray(values, float)
    return {"P@1": PerDocument(values, np.ones(len(values)))}


def test_an_interval_holds_what_theory_says():
    rng = np.random.default_rng(3)
    hits = per_document(rng.random(1000) < 0.4)
    spread = draw_metrics([[hits]], 4000)["P@1"].spread(0)
    value = hits["P@1"].percent()
    half = 1.96 * np.sqrt(value * (100 - value) / 1000)
    assert spread.value == value
    assert spread.low == pytest.approx(value - half, abs=0.3)
    assert spread.high == pytest.approx(value + half, abs=0.3)


def test_paired_differences_tell_a_lead_from_chance():
    rng = np.random.default_rng(5)
    base = rng.random(500) < 0.5
    better = base | (rng.random(500) < 0.1)  # never worse on any document
    shuffled = rng.permutation(base)
    draws = draw_metrics([[per_document(each)] for each in (base, better, base, shuffled)], 2000)
    found = {(d.one, d.other): d for d in draws["P@1"].differences()}
    assert found[0, 1].is_significant
    assert found[0, 1].value < 0
    assert found[0, 1].high < 0
    assert found[0, 2].p == 1
    assert found[0, 2].low == found[0, 2].high == 0
    assert not found[0, 3].is_significant


def test_false_alarms_are_rare():
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(60):
        methods = [[per_document(rng.random(200) < 0.5)] for _ in range(4)]
        found = draw_metrics(methods, 500)["P@1"].differences()
        alarms += any(each.is_significant for each in found)
    assert alarms <= 9  # 5 % of 60 are 3


def test_draws_fit_the_ratio_of_sums():
    reached, possible = np.array([1.0, 0.0, 3.0]), np.array([2.0, 0.0, 4.0])
    draws = draw_metrics([[{"PSP@1": PerDocument(reached, possible)}]], 50)["PSP@1"]
    assert draws.values[0] == pytest.approx(100 * 4 / 6)
    assert draws.drawn.shape == (50, 1)
    assert (draws.drawn <= 75 + 1e-9).all()


def test_number_of_draws_lets_the_correction_leave_a_chance():
    assert choose_n_draws(100, 2) == 10_000
    assert choose_n_draws(10**7, 2) == 2_000
    assert choose_n_draws(10**7, 20) / 190 > 1 / 0.05


def test_the_value_of_several_seeds_is_their_mean():
    seeds = [per_document([1, 0, 1]), per_document([0, 0, 1])]
    draws = draw_metrics([seeds, seeds[:1]], 10)["P@1"]
    assert draws.values == pytest.approx([50, 200 / 3])


def test_an_interval_covers_the_seeds_as_theory_says():
    """Seeds that lie far apart, all documents of one alike: only the seeds are uncertain."""
    levels = [0.3, 0.4, 0.5, 0.6]
    seeds = [per_document(np.full(50, level)) for level in levels]
    drawn = draw_metrics([seeds, seeds[:1]], 10_000)["P@1"].drawn
    assert drawn[:, 0].mean() == pytest.approx(45, abs=0.2)
    error = 100 * np.std(levels, ddof=1) / np.sqrt(len(levels))
    assert drawn[:, 0].std() == pytest.approx(error, rel=0.03)
    assert drawn[:, 1].std() == pytest.approx(0)


def test_a_lead_that_the_seeds_do_not_bear_out_may_be_chance():
    rng = np.random.default_rng(1)
    documents = rng.random(4000)
    one = [per_document(documents < level) for level in (0.50, 0.58, 0.54)]
    other = [per_document(documents < level) for level in (0.50, 0.56, 0.53)]
    (alone,) = draw_metrics([one[2:], other[2:]], 2000)["P@1"].differences()
    (together,) = draw_metrics([one, other], 2000)["P@1"].differences()
    assert alone.is_significant
    assert not together.is_significant


# ----------------------------------------------------------------------------------- disagreement


def tops_and_test():
    Y = sp.csr_matrix(np.eye(3, 4, dtype=np.float32))
    test = Dataset(Y, ["a", "b", "c", "d"], texts=["one", "two", "three"])
    one = TopK(np.array([[0, 1], [1, 0], [2, 0]], np.int32), np.full((3, 2), 0.5, np.float32))
    other = TopK(np.array([[0, 1], [3, 2], [2, 1]], np.int32), np.full((3, 2), 0.5, np.float32))
    return [one, other], test


def test_agreement_by_hand():
    tops, test = tops_and_test()
    found = count_agreement(tops, test)
    assert found["same_first"][0] == pytest.approx([100, 200 / 3])
    assert found["only_right"] == pytest.approx([100 / 3, 0])
    assert found["any_right"] == 100
    assert found["all_right"] == pytest.approx(200 / 3)


def test_documents_are_ordered_by_who_is_right_then_by_the_lists():
    tops, test = tops_and_test()
    rows = find_disagreements(tops, [np.array([1.0, 1, 1]), np.array([1.0, 0, 1])])
    assert rows == [1, 2]  # document 0 has the same list twice
    shown = show_document(1, tops, test)
    assert shown["text"] == "two"
    assert shown["true"] == ["b"]
    assert [[each["label"] for each in labels] for labels in shown["predicted"]] == [
        ["b", "a"],
        ["d", "c"],
    ]
    assert shown["predicted"][0][0]["right"]
    assert find_disagreements(tops[:1], [np.ones(3)]) == []
    assert cut("abcdef", 4) == "abc…"


# ------------------------------------------------------------------------------------------- runs

# Stands for a peer: what it does is in its setting.
UNRULY = """
import os, signal, sys, time
from longtail.peers.measure import Method, run
import numpy as np
class Unruly(Method):
    def train(self, data):
        does = self.setting["does"]
        if does == "die": os.kill(os.getpid(), signal.SIGKILL)
        if does == "crash": os.kill(os.getpid(), signal.SIGSEGV)
        if does == "hang": time.sleep(60)
        if does == "raise": raise ValueError("no good\\nsecond line")
        if does == "memory": raise MemoryError
        if does == "refuse" and (np.diff(data[0].indptr) == 0).any(): raise ValueError("empty row")
    def save(self): (self.folder / "weights").write_bytes(b"x" * 1000)
    def load(self): pass
    def predict(self, rows):
        n = rows.shape[0]
        return np.tile(np.arange(self.k, dtype=np.int32), (n, 1)), np.full((n, self.k), 0.5, "f4")
run(Unruly)
"""


@pytest.fixture
def unruly(tmp_path, monkeypatch):
    """Return a function that makes an entrant which behaves as it is told."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "unruly.py").write_text(UNRULY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))

    def make(does):
        return Contender(does, OURS, "unruly", {"does": does})

    return make


class Said:
    def __init__(self):
        self.lines, self.stages = [], []

    def stage(self, name, total):
        self.stages.append(name)

    def advance(self, amount):
        pass

    def note(self, text):
        pass

    def say(self, text):
        self.lines.append(text)


def test_whatever_a_method_does_is_a_line(tmp_path, unruly):
    ways = ["work", "die", "crash", "raise", "memory"]
    comparison = comparison_of(make_split(40), [unruly(way) for way in ways])
    said = Said()
    runs = list(run_all(comparison, open_folder(tmp_path / "out"), said))
    errors = [run.error if isinstance(run, Failure) else None for run in runs]
    assert errors[:2] == [None, "killed (signal 9), most likely because memory ran out"]
    assert errors[2].startswith("crashed (SIGSEGV)")
    assert errors[3:] == ["ValueError: no good", "out of memory"]
    assert runs[0].measured["model_mb"] == 0.001
    assert "2/5 die: failed: killed (signal 9), most likely because memory ran out" in said.lines
    assert not list((tmp_path / "out").glob("**/model"))
    assert not (tmp_path / "out" / "scratch").exists()


def test_a_method_that_takes_too_long_is_stopped(tmp_path, unruly):
    comparison = comparison_of(make_split(40), [unruly("hang")], timeout=2)
    (result,) = run_all(comparison, open_folder(tmp_path / "out"), SILENT)
    assert isinstance(result, Failure)
    assert result.error == "stopped after 2 s"


def test_finished_runs_are_kept_and_failed_ones_repeated(tmp_path, unruly):
    split = make_split(40)
    comparison = comparison_of(split, [unruly("work"), unruly("raise")])
    list(run_all(comparison, open_folder(tmp_path / "out"), SILENT))
    said = Said()
    longer = comparison_of(split, [unruly("work"), unruly("raise"), unruly("memory")])
    list(run_all(longer, open_folder(tmp_path / "out", resume=True), said))
    assert said.lines == [
        "1/3 work: already finished",
        "2/3 raise: failed: ValueError: no good",
        "3/3 memory: failed: out of memory",
    ]
    said = Said()
    list(
        run_all(
            comparison_of(split, [unruly("work")], threads=2), ReportFolder(tmp_path / "out"), said
        )
    )
    assert said.lines[0].startswith("1/1 work: trained in")


@pytest.fixture
def unruly_peer(tmp_path, unruly, monkeypatch):
    """Return a function that makes such an entrant of another package."""
    # a peer gets our adapters alone, so that the stand-in has to lie beside them
    monkeypatch.setattr(
        "longtail.compare.process.write_library",
        lambda folder: _copy_library(folder, tmp_path / "modules" / "unruly.py"),
    )
    return lambda does: Contender(does, "numpy", "unruly", {"does": does})


def with_an_empty_row():
    data = planted_dataset(40)
    X = data.X.tolil()
    X[0] = 0
    train = Dataset(data.Y, data.label_names, X=sp.csr_matrix(X))
    return TrainTestSplit(train, data, "")


def test_a_peer_that_refuses_empty_rows_is_tried_without_them(tmp_path, unruly_peer):
    (result,) = run_all(
        comparison_of(with_an_empty_row(), [unruly_peer("refuse")]),
        open_folder(tmp_path / "out"),
        SILENT,
    )
    assert isinstance(result, Run), result
    assert result.measured["note"] == "trained without the 1 empty row, which it refuses"
    assert result.version == np.__version__


@pytest.mark.parametrize(
    ("does", "timeout", "error"),
    [("hang", 2, "stopped after 2 s"), ("die", 60, "killed (signal 9), most likely")],
)
def test_a_peer_that_is_stopped_is_not_tried_again_without_empty_rows(
    tmp_path, unruly_peer, does, timeout, error
):
    started = []
    comparison = comparison_of(with_an_empty_row(), [unruly_peer(does)], timeout=timeout)
    folder = open_folder(tmp_path / "out")

    def run_here(job, library):
        started.append(job)
        return run(job, SILENT, "", library)

    (result,) = run_all(comparison, folder, SILENT, run_elsewhere=run_here)
    assert isinstance(result, Failure)
    assert result.error.startswith(error)
    assert len(started) == 1


class _Nodes:
    """Stands for a cluster: what a method does is in its setting."""

    def check_fits(self, needs):
        if needs.gpus:
            raise MemoryPlanError("a task needs 1 GPU, and no node has it")

    def submit(self, function, job, library, needs):
        return function, job, library

    def wait(self, tickets):
        return tickets

    def get(self, ticket):
        function, job, library = ticket
        if job.contender.setting["does"] == "lose":
            raise WorkerError("the worker of a task died 3 times")
        return function(job, library)

    def cancel(self, tickets):
        pass


def test_a_method_that_no_node_can_run_leaves_the_others(tmp_path, unruly):
    ways = [unruly(way) for way in ("lose", "work", "raise")]
    needy = replace(unruly("need"), setting={"does": "work", "device": "cuda"})
    runs = run_all(
        comparison_of(make_split(40), [needy, *ways]),
        open_folder(tmp_path / "out"),
        SILENT,
        run_elsewhere=partial(run_on_cluster, _Nodes()),
    )
    assert [run.error if isinstance(run, Failure) else None for run in runs] == [
        "a task needs 1 GPU, and no node has it",
        "the worker of a task died 3 times",
        None,
        "ValueError: no good",
    ]


def _copy_library(folder, module, copy=None):
    from shutil import copytree

    from longtail import peers

    (folder / "longtail").mkdir(parents=True)
    (folder / "longtail" / "__init__.py").touch()
    copytree(Path(peers.__file__).parent, folder / "longtail" / "peers")
    (folder / module.name).write_text(module.read_text())


def test_models_are_kept_if_asked_for(tmp_path, unruly):
    comparison = comparison_of(make_split(40), [unruly("work")], keep_models=True)
    list(run_all(comparison, open_folder(tmp_path / "out"), SILENT))
    assert (tmp_path / "out" / "models" / "work" / "seed-0" / "weights").exists()


def test_runs_at_once_are_in_order_and_share_the_threads(tmp_path, unruly):
    ways = ["work", "raise", "memory", "work2"]
    split = make_split(40)
    options = {"seeds": [3, 4], "threads": 2, "jobs": 2}
    comparison = comparison_of(split, [unruly(way) for way in ways], **options)
    said, n_finished = Said(), []
    folder = open_folder(tmp_path / "out")
    found = run_all(comparison, folder, said, lambda: n_finished.append(1))
    assert [(run.contender.name, run.seed) for run in found] == [
        (way, seed) for seed in (3, 4) for way in ways
    ]
    assert [isinstance(run, Run) for run in found] == [True, False, False, True] * 2
    assert len(n_finished) == 8
    assert said.stages == ["2 methods at once"]
    assert not folder.scratch.exists()
    job = json.loads((tmp_path / "out" / "runs" / "work" / "seed-3" / "job.json").read_text())
    assert job["threads"] == 1


def test_no_more_run_at_once_than_allowed_and_each_has_a_place():
    begun, running, most = [], set(), []

    def attempt(number, place):
        assert place not in running
        running.add(place)
        begun.append((number, place))
        for _ in range(3 - number):  # the later, the shorter
            most.append(len(running))
            yield
        running.remove(place)
        return f"result {number}"

    assert run_together(attempt, 3, 2, lambda: None) == ["result 0", "result 1", "result 2"]
    assert begun == [(0, 0), (1, 1), (2, 1)]
    assert max(most) == 2
    assert run_together(attempt, 0, 2, lambda: None) == []
    assert run_together(attempt, 2, 10**12, lambda: None) == ["result 0", "result 1"]


def test_an_interruption_ends_all_that_run_at_once():
    ended = []

    def attempt(number, place):
        try:
            yield
            if number == 1:
                raise KeyboardInterrupt
            yield
        finally:
            ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        run_together(attempt, 5, 3, lambda: None)
    assert sorted(ended) == [0, 1, 2]


def test_those_that_run_at_once_have_cores_of_their_own():
    cores = [0, 1, 2, 3, 8]
    assert [choose_cores(cores, 2, place) for place in range(3)] == [[0, 1], [2, 3], [8, 0]]
    assert choose_cores(cores, 9, 1) == [8, 0, 1, 2, 3]
    assert choose_cores([5], 1, 7) == [5]


def test_those_that_run_on_one_node_have_places_of_their_own_there(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    job = Job(Contender("x", OURS, "x"), Path("python"), tmp_path, tmp_path, 0, 5, 2, None)
    with take_place(replace(job, place=2)) as first:
        with take_place(replace(job, place=4)) as second:
            assert [first.place, second.place] == [0, 1]
            with take_place(replace(job, place=7)) as third:  # more than there are cores for
                assert third.place == 7
        with take_place(replace(job, place=5)) as fourth:
            assert fourth.place == 1


def test_nothing_goes_on_after_a_run_was_left(tmp_path, unruly):
    job = Job(unruly("hang"), Path(sys.executable), tmp_path / "g", tmp_path / "o", 0, 5, 1, None)
    write_given(make_split(40), tmp_path / "g", with_rows=False, tfidf={})

    class Impatient(Said):
        def stage(self, name, total):
            if "training" in name:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run(job, Impatient(), "", tmp_path))
    assert not _is_running("unruly")
    running = run(job, SILENT, "", tmp_path)
    next(running)
    assert _is_running("unruly")
    running.close()  # because another one that runs at the same time was interrupted
    assert not _is_running("unruly")


def _is_running(word):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                return True
        except OSError:
            continue
    return False


def test_failures_in_words(tmp_path):
    (tmp_path / "output.txt").write_text("thread panicked at x\nnote: more\n")
    assert describe_failure(tmp_path, -signal.SIGABRT) == "crashed (SIGABRT): thread panicked at x"
    assert describe_failure(tmp_path, 3) == "thread panicked at x"
    (tmp_path / "failed.json").write_text('{"error": "DataError", "message": "bad row; mend it"}')
    assert describe_failure(tmp_path, 1) == "bad row; mend it"


def test_the_memory_of_a_machine_that_does_not_tell(monkeypatch):
    assert describe(1)["memory_gb"] > 0
    monkeypatch.delattr(os, "sysconf")
    assert describe(1)["memory_gb"] is None


def test_windows_gets_one_clear_sentence(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "killpg")
    with pytest.raises(LongtailError, match="run it on Linux, on macOS, or in the Windows"):
        prepare(tmp_path / "nowhere", "linear")


def test_the_recipe_can_be_imported_where_there_is_no_resource_module():
    code = "import sys; sys.modules['resource'] = None\n"
    code += "import longtail.compare.recipe"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# ----------------------------------------------------------------------------------------- folder


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ParameterError, match="already exists and holds no comparison"):
        open_folder(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ParameterError, match="is not a folder"):
        open_folder(tmp_path / "file")


def test_a_comparison_is_gone_on_with_only_if_asked_and_on_the_same_data(tmp_path):
    open_folder(tmp_path / "out")
    with pytest.raises(ParameterError, match="add --resume to continue it"):
        open_folder(tmp_path / "out")
    open_folder(tmp_path / "out", resume=True)
    with pytest.raises(ParameterError, match="holds a comparison on other documents"):
        ReportFolder(tmp_path / "out").open({"data": 2}, resume=True, overwrite=False)
    (tmp_path / "out" / "old").touch()
    open_folder(tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "old").exists()


def test_small_things_of_the_folder(tmp_path):
    assert as_file_name("glas:preset=fast,dim=64") == "glas-preset=fast,dim=64"
    assert as_file_name("omikuji bonsai") == "omikuji-bonsai"
    assert as_file_name("../../x").startswith("x-")
    assert as_file_name("::").startswith("method-")
    numbers = [as_file_name(f"linear:C={number}") for number in ("1e-3", "1e+3", "1e 3", "1e/3")]
    assert len(set(numbers)) == 4
    write_whole(tmp_path / "x", "half a pair: \ud800")
    assert (tmp_path / "x").read_text() == "half a pair: \\ud800"
    assert read_top(tmp_path) is None
    (tmp_path / "top.npz").write_bytes(b"PK broken")
    assert read_top(tmp_path) is None


# ---------------------------------------------------------------------------------------- results


def test_results_agree_with_the_metrics_and_name_the_best():
    split = make_split(600)
    good, bad = made_up_run("good", split, 0.1), made_up_run("bad", split, 0.6)
    failed = Failure(Contender("gone", OURS, "x"), "1.0", 0, "no | memory")
    results = results_of(good, bad, failed, split=split)
    method = results["methods"][0]
    expected = evaluate(good.top, split.test, train=split.train)
    each = evaluate_documents(good.top, split.test, train=split.train)
    assert all(spread["sd"] is None for spread in method["metrics"].values())
    assert {name: spread["value"] for name, spread in method["metrics"].items()} == pytest.approx(
        {name: expected[name] for name in each}
    )
    assert results["compared"] == ["good", "bad"]
    assert summarize(results, "P@1") == [
        f"P@1: good is highest ({expected['P@1']:.2f}); the lead over bad is significant."
    ]
    assert json.loads(json.dumps(results)) == results
    table = write_table(results)
    assert "- gone failed: no \\| memory" in table
    assert "# x\\|y" in table
    assert len({len(line) for line in table.splitlines() if line.startswith("| ")}) == 2


def test_seeds_of_one_method_are_one_row():
    split = make_split(200)
    runs = [made_up_run("a", split, 0.3, seed) for seed in (1, 2)]
    results = results_of(*runs, split=split)
    (method,) = results["methods"]
    assert [one["seed"] for one in method["by_seed"]] == [1, 2]
    mean = np.mean([one["P@1"] for one in method["by_seed"]])
    assert method["metrics"]["P@1"]["value"] == pytest.approx(mean)
    first, second = (one["P@1"] for one in method["by_seed"])
    assert method["metrics"]["P@1"]["sd"] == pytest.approx(abs(first - second) / 2**0.5)
    assert f"{mean:.2f} ±{abs(first - second) / 2**0.5:.2f}" in write_table(results)
    assert summarize(results, "P@1") == []


def test_results_without_any_finished_method():
    split = make_split(40)
    failed = Failure(Contender("gone", OURS, "x"), "1.0", 0, "why")
    results = results_of(failed, split=split)
    assert "differences" not in results
    assert "gone failed: why" in write_table(results)


def test_words_and_tables():
    assert join(["a"]) == "a"
    assert join(["a", "b", "c"]) == "a, b and c"
    assert escape("a*b\n<i>") == "a\\*b \\<i\\>"
    assert markdown(["x"], []).splitlines() == ["| x |", "| - |"]


# ----------------------------------------------------------------------------------- our own models


@pytest.mark.parametrize(
    ("model", "loads_torch", "compiled"),
    [("linear", False, "linear"), ("glas", True, None), ("fusion", True, "linear")],
)
def test_what_a_model_is_warmed_up_with(tmp_path, monkeypatch, model, loads_torch, compiled):
    pytest.importorskip("torch")
    done = []

    def build(setting):
        done.append(setting["model"])
        return get_model_class(setting["model"])()

    monkeypatch.setattr(ours, "_load_torch", lambda: done.append("torch"))
    monkeypatch.setattr(ours, "_build", build)
    ours.Ours({"model": model}, 1, tmp_path, 5).warm_up()
    assert done == ["torch"] * loads_torch + [compiled] * (compiled is not None)


def test_progress_goes_through_the_pipe(monkeypatch):
    events = []
    monkeypatch.setattr(ours, "send_event", lambda **event: events.append(event))
    progress = ours.PipeProgress()
    progress.stage("training", 10)
    progress.advance(2)
    progress.advance(3)  # too soon after the last report
    progress.note("loss 1")
    progress.say("done")
    assert events == [
        {"stage": "training", "total": 10.0},
        {"advance": 2.0},
        {"note": "loss 1"},
        {"say": "done"},
    ]
