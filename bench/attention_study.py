"""The studies of the AttentionXML paper on any data set of texts: tables 2, 4 and 5, and figure 2.

    python -m bench.attention_study components DATA               # what each component contributes
    python -m bench.attention_study levels DATA --levels 0,1,2,3  # a tree against none
    python -m bench.attention_study trees DATA --trees 1,2,3,4    # how much an ensemble gains
    python -m bench.attention_study psp DATA --models linear,attention-xml --json psp/DATA.json
    python -m bench.attention_study draw psp/*.json --plot psp.png    # a panel for each data set

All train on four fifths of DATA's training documents and measure on the rest, at most 20,000;
`--test` trains on all of them and measures on the test split. With `--seeds 3` every figure is a
mean and its standard deviation. Rows end with what table 2 has: training time, milliseconds a
document in prediction, and the size of the saved model. `--set name=value` goes to AttentionXML,
and for `psp` `--set model.name=value` to the model named. A model with other settings than its
defaults can be compared too: `--models attention-xml,attention-xml:trees=3`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import longtail
from bench.plots import draw_bars
from bench.table import markdown
from longtail.data.dataset import Dataset
from longtail.evaluation.metrics import evaluate
from longtail.models import get_model_class
from longtail.models.base import Model
from longtail.runtime.parallel import set_threads

MODEL = "attention-xml"
CUTS = (1, 3, 5)
MOST_HELD = 20_000  # documents to measure on
PATH_WEIGHTS = (1.0, 0.5, 0.25, 0.0)

# Table 4; each row adds to the one above it.
PARTS = 8  # of a text in XML-CNN's dynamic pooling
XML_CNN = {"encoder": "cnn", "attention": False, "direct": False, "averaging": False}
COMPONENTS: dict[str, dict[str, Any]] = {
    "XML-CNN": {**XML_CNN, "pooling": PARTS},
    "XML-CNN, one maximum": XML_CNN,
    "BiLSTM, max-pooling": {"attention": False, "direct": False, "averaging": False},
    "BiLSTM, attention": {"direct": False, "averaging": False},
    "… + matches (direct)": {"averaging": False},
    "… + averaging": {},
}

Settings = Mapping[str, Any]
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the study, print its table."""
    args = _arguments(arguments)
    set_threads(args.threads)
    if args.study == "draw":
        draw({path.stem: json.loads(path.read_text()) for path in args.data}, args.plot)
        return
    (data,) = args.data
    known, measured = load_splits(data, test=args.test, most=args.documents)
    print(f"{data.name}: {len(known):,} documents to train on, {len(measured):,} measured\n")
    common = {} if args.device is None else {"device": args.device}
    settings = common | dict(pair.split("=", 1) for pair in args.set)
    runs: list[list[Row]] = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        seeded = {**settings, "seed": seed}
        if args.study == "components":
            runs.append(study_components(known, measured, seeded, args.rows))
        elif args.study == "levels":
            beams = _numbers(args.beams) if args.beams else []
            runs.append(study_levels(known, measured, seeded, _numbers(args.levels), beams))
        elif args.study == "trees":
            runs.append(study_trees(known, measured, seeded, _numbers(args.trees)))
        else:
            more = {**common, "seed": seed}
            runs.append(study_psp(known, measured, args.models.split(","), args.set, more))
        if args.json is not None:
            args.json.write_text(json.dumps(join(runs), indent=2) + "\n")
    rows = [[_show_value(value) for value in row.values()] for row in join(runs)]
    print(markdown(list(runs[0][0]), rows))
    if args.plot is not None:
        draw({data.name: join(runs)}, args.plot)


def load_splits(path: Path, *, test: bool, most: int | None = None) -> tuple[Dataset, Dataset]:
    """Return the documents to train on, at most so many, and those to measure on."""
    train, test_split = longtail.load(path)
    if train.texts is None:
        raise SystemExit(f"{path} holds rows of features; {MODEL} needs texts")
    if test and test_split is None:
        raise SystemExit(f"{path} has no test split")
    if test and test_split is not None:
        measured = test_split.align(train.label_names)
    else:
        train, measured = train.split(min(0.2, MOST_HELD / len(train)))
    if most is not None and most < len(train):
        train = train.take(np.sort(np.random.default_rng(0).permutation(len(train))[:most]))
    return train, measured


def join(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of several seeds as one: a list of its values for each figure."""
    if len(runs) == 1:
        return list(runs[0])
    return [
        {
            name: [row[name] for row in same] if isinstance(first, float) else first
            for name, first in same[0].items()
        }
        for same in zip(*runs, strict=True)
    ]


def _show_value(value: Any) -> str:
    """Return a value, or the mean and the standard deviation of several."""
    if not isinstance(value, list):
        return str(value)
    return f"{statistics.fmean(value):.2f} ± {statistics.stdev(value):.2f}"


def study_components(
    known: Dataset, measured: Dataset, settings: Settings, wanted: str | None = None
) -> list[Row]:
    """Return table 4: XML-CNN, BiLSTM with max-pooling, with attention, with averaging."""
    rows = []
    for number, (name, change) in enumerate(COMPONENTS.items()):
        if wanted is None or number in _numbers(wanted):
            model, seconds = fit({**settings, **change}, known)
            rows.append({"model": name, **measure(model, measured), **cost(model, seconds)})
            _show(rows)
    return rows


def study_levels(
    known: Dataset,
    measured: Dataset,
    settings: Settings,
    numbers: Sequence[int],
    beams: Sequence[int] = (),
) -> list[Row]:
    """Return the accuracy of trees with so many inner levels, 0 for none, as the paper chose H.

    `followed` is the share of all right labels whose parents the beam follows; the last columns
    are P@1 / 3 / 5 with other weights of the path, and with other beams in prediction.
    """
    rows = []
    for levels in numbers:
        model, seconds = fit({**settings, "levels": levels}, known)
        trees = model.trees_
        sizes = " → ".join(str(size) for size in trees[0].tree.sizes[1:])
        row = {"levels": levels, "nodes": sizes, **measure(model, measured)}
        row["followed"] = follow(model, measured)
        for weight in PATH_WEIGHTS:
            model.trees_ = [replace(tree, path_weight=weight) for tree in trees]
            other = measure(model, measured)
            row |= {f"P@{k} ({weight})": other[f"P@{k}"] for k in CUTS}
        model.trees_ = trees
        for beam in beams:
            model.beam = beam
            other = measure(model, measured)
            row |= {f"P@{k} (beam {beam})": other[f"P@{k}"] for k in CUTS}
        model.beam = None
        rows.append({**row, **cost(model, seconds)})
        _show(rows)
    return rows


def follow(model: Any, measured: Dataset) -> float:
    """Return the percentage of right labels that are below a node that the beam follows."""
    tree = model.trees_[0].tree
    if tree.depth == 1:
        return 100.0
    every = model.predict(measured, k=model.followed_ * int(np.diff(tree.children[-1]).max()))
    found = total = 0
    for i in range(len(measured)):
        right = measured.Y[i].indices
        found += np.isin(right, every.labels[i]).sum()
        total += len(right)
    return round(100 * float(found) / max(total, 1), 2)


def study_trees(
    known: Dataset, measured: Dataset, settings: Settings, numbers: Sequence[int]
) -> list[Row]:
    """Return table 5: accuracy by the number of trees, the first of one ensemble."""
    model, seconds = fit({**settings, "trees": max(numbers)}, known)
    trees, rows = model.trees_, []
    for n_trees in numbers:
        model.trees_ = trees[:n_trees]
        took = seconds * n_trees / len(trees)
        rows.append({"trees": n_trees, **measure(model, measured), **cost(model, took)})
        _show(rows)
    return rows


def study_psp(
    known: Dataset,
    measured: Dataset,
    names: Sequence[str],
    given: Sequence[str],
    common: Settings,
) -> list[Row]:
    """Return figure 2's numbers: propensity-scored precision of each model."""
    contenders = {name: read_contender(name, given) for name in names}  # before the first trains
    rows = []
    for name, (model_name, settings) in contenders.items():
        known_to = signature(get_model_class(model_name)).parameters
        usable = {key: value for key, value in common.items() if key in known_to}
        model, seconds = fit({**usable, **settings}, known, model_name)
        metrics = evaluate(model.predict(measured), measured, train=known)
        rows.append({"model": name, **_round(metrics, "PSP", "P"), "train s": round(seconds, 1)})
        _show(rows)
    return rows


def read_contender(name: str, given: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the model and the settings of such as "attention-xml:trees=3"."""
    model, _, own = name.partition(":")
    get_model_class(model)
    settings = {}
    for pair in given:
        target, _, value = pair.partition("=")
        if target.partition(".")[0] == model:
            settings[target.partition(".")[2]] = value
    return model, settings | dict(pair.split("=", 1) for pair in own.split(";") if pair)


def fit(settings: Settings, known: Dataset, name: str = MODEL) -> tuple[Any, float]:
    """Train a model; return it with the seconds that took."""
    start = time.perf_counter()
    model = get_model_class(name).from_settings(dict(settings)).fit(known)
    return model, time.perf_counter() - start


def measure(model: Model, measured: Dataset) -> dict[str, float]:
    """Return P@1, 3 and 5, and how long a prediction takes, in milliseconds a document."""
    start = time.perf_counter()
    top = model.predict(measured)
    took = 1000 * (time.perf_counter() - start) / len(measured)
    return {**_round(evaluate(top, measured), "P"), "ms": round(took, 3)}


def cost(model: Model, seconds: float) -> dict[str, float]:
    """Return how long training took and how large the saved model is, as table 2 does."""
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {
        "train s": round(seconds, 1),
        "hours": round(seconds / 3600, 4),
        "GB": round(size / 1e9, 3),
    }


def draw(results: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw a panel for each data set, a bar for each row: PSP if the rows have it, else P."""
    metric = "PSP" if all("PSP@1" in rows[0] for rows in results.values()) else "P"
    groups = [f"{metric}@{k}" for k in CUTS]
    panels = {
        title: {_name(row): [float(np.mean(row[group])) for group in groups] for row in rows}
        for title, rows in results.items()
    }
    draw_bars(panels, groups, path)


def _name(row: Mapping[str, Any]) -> str:
    for name in ("trees", "levels"):
        if name in row:
            return f"{row[name]} {name}"
    return str(row["model"])


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _round(metrics: Mapping[str, float], *names: str) -> dict[str, float]:
    return {f"{name}@{k}": round(metrics[f"{name}@{k}"], 2) for name in names for k in CUTS}


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    print(*rows[-1].values(), file=sys.stderr, flush=True)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=["components", "levels", "trees", "psp", "draw"])
    parser.add_argument("data", type=Path, metavar="DATA", nargs="+")
    parser.add_argument("--rows", metavar="N,N,…", help="only these components, from 0")
    parser.add_argument("--levels", default="0,1,2,3", metavar="N,N,…")
    parser.add_argument("--beams", metavar="N,N,…", help="also predict with these, for levels")
    parser.add_argument("--trees", default="1,2,3,4", metavar="N,N,…")
    parser.add_argument("--models", default=f"linear,glas,{MODEL}", metavar="NAME,NAME,…")
    parser.add_argument("--test", action="store_true", help="measure on the test split")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each row")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--documents", type=int, help="train on at most so many")
    parser.add_argument("--threads", type=int, help="of this process; all cores by default")
    parser.add_argument("--device")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a PNG or SVG file for the figure")
    args = parser.parse_args(arguments)
    if args.study == "draw" and args.plot is None:
        parser.error("draw needs --plot")
    if args.study != "draw" and len(args.data) > 1:
        parser.error("one DATA at a time")
    return args


if __name__ == "__main__":
    main()
