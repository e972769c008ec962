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


def make_split(n=200, plant=planted_dataset, *, clean=False):
    train, test = plant(n).split(0.25)
    if not clean:
        return TrainTestSplit(train, test, "made up")
    noisy, kept = train.split(0.2)
    return TrainTestSplit(noisy, test, "made up", kept)


def comparison_of(split, contenders, **more):
    entrants, _ = find_entrants(contenders, peers=False, environments=None)
    given = {"seeds": [0], "threads": 1, "timeout": None, "tfidf": {}} | more
    return Comparison(split=split, entrants=entrants, **given)


def open_folder(path, **more):
    folder = ReportFolder(path)
    folder.open({"data": 1}, **({"resume": False, "overwrite": False} | more))
    return folder


def made_up_run(name, split, wrong, seed=0, noise=None):
    """Return a run that gives `wrong` of the documents a wrong first label, and true ones else."""
    top = made_up_top(split.test, wrong, seed)
    clean_top = None if split.clean is None else made_up_top(split.clean, wrong, seed)
    measured = {"train_seconds": 1.0, "train_cpu_seconds": 1.0, "train_peak_mb": 1.0}
    measured |= {"model_mb": 1.0, "documents_per_second": 10.0}
    measured |= {"single_p50_ms": 1.0, "single_p99_ms": 2.0}
    contender = Contender(name, OURS, "x", LINEAR)
    return Run(contender, "1.0", seed, measured, top, noise, clean_top)


def made_up_top(data, wrong, seed):
    rng = np.random.default_rng(seed)
    labels = np.array([rng.permutation(data.n_labels)[:6] for _ in range(len(data))])
    for i in np.flatnonzero(rng.random(len(labels)) >= wrong):
        true = data.Y[i].indices[0]
        labels[i] = [true, *[label for label in labels[i] if label != true]][:6]
    scores = np.tile(np.linspace(0.9, 0.1, 6, dtype=np.float32), (len(labels), 1))
    return TopK(labels.astype(np.int32), scores)


def results_of(*runs, split):
    results = assemble(runs, split, "default")
    return results | {"data": {"name": "x|y", **split.describe()}, "missing": [], "command": "c"}
