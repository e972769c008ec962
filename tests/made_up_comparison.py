"""Comparisons of made-up methods on planted data, for tests of compare, peers and bench."""

import numpy as np
from planted import planted_dataset

from longtail.compare.contenders import find_entrants
from longtail.compare.folder import ReportFolder
from longtail.compare.results import assemble
from longtail.compare.run import Comparison, Run
from longtail.compare.split import TrainTestSplit
from longtail.peers import OURS, Contender
from longtail.topk import TopK

LINEAR = {"model": "linear"}


def make_split(n=200, plant=planted_dataset):
    train, test = plant(n).split(0.25)
    return TrainTestSplit(train, test, "made up")


def comparison_of(split, contenders, **more):
    entrants, _ = find_entrants(contenders, peers=False, environments=None)
    given = {"seeds": [0], "threads": 1, "timeout": None, "tfidf": {}} | more
    return Comparison(split=split, entrants=entrants, **given)


def open_folder(path, **more):
    folder = ReportFolder(path)
    folder.open({"data": 1}, **({"resume": False, "overwrite": False} | more))
    return folder


def made_up_run(name, split, wrong, seed=0):
    """Return a run that gives `wrong` of the documents a wrong first label, and true ones else."""
    rng = np.random.default_rng(seed)
    labels = np.array([rng.permutation(split.train.n_labels)[:6] for _ in range(len(split.test))])
    for i in np.flatnonzero(rng.random(len(labels)) >= wrong):
        true = split.test.Y[i].indices[0]
        labels[i] = [true, *[label for label in labels[i] if label != true]][:6]
    measured = {"train_seconds": 1.0, "train_cpu_seconds": 1.0, "train_peak_mb": 1.0}
    measured |= {"model_mb": 1.0, "documents_per_second": 10.0}
    measured |= {"single_p50_ms": 1.0, "single_p99_ms": 2.0}
    scores = np.tile(np.linspace(0.9, 0.1, 6, dtype=np.float32), (len(labels), 1))
    top = TopK(labels.astype(np.int32), scores)
    return Run(Contender(name, OURS, "x", LINEAR), "1.0", seed, measured, top)


def results_of(*runs, split):
    results = assemble(runs, split, "default")
    return results | {"data": {"name": "x|y", **split.describe()}, "missing": [], "command": "c"}
