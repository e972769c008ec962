"""The studies of the AttentionXML paper on any data set of texts: tables 4 and 5, and figure 2.

    python -m bench.attention_study components DATA               # what each component contributes
    python -m bench.attention_study trees DATA --trees 1,2,3,4    # how much an ensemble gains
    python -m bench.attention_study psp DATA --models linear,attention-xml --json psp/DATA.json
    python -m bench.attention_study draw psp/*.json --plot psp.png    # a panel for each data set

All train on four fifths of DATA's training documents and measure on the rest; `--test` trains on
all of them and measures on the test split. `--set name=value` goes to AttentionXML, and for `psp`
`--set model.name=value` to the model named. A model with other settings than its defaults can be
compared too: `--models attention-xml,attention-xml:trees=3`.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import longtail
from bench.plots import draw_bars
from bench.table import markdown
from longtail.data.dataset import Dataset
from longtail.evaluation.metrics import evaluate
from longtail.models import get_model_class
from longtail.models.base import Model

MODEL = "attention-xml"
CUTS = (1, 3, 5)

# Table 4; each row adds to the one above it.
COMPONENTS: dict[str, dict[str, Any]] = {
    "XML-CNN": {"encoder": "cnn", "attention": False, "direct": False, "averaging": False},
    "BiLSTM, max-pooling": {"attention": False, "direct": False, "averaging": False},
    "BiLSTM, attention": {"direct": False, "averaging": False},
    "… + matches (direct)": {"averaging": False},
    "… + averaging": {},
}

Settings = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the study, print its table."""
    args = _arguments(arguments)
    if args.study == "draw":
        draw({path.stem: json.loads(path.read_text()) for path in args.data}, args.plot)
        return
    (data,) = args.data
    known, measured = load_splits(data, test=args.test)
    print(f"{data.name}: {len(known):,} documents to train on, {len(measured):,} measured\n")
    common = {} if args.device is None else {"device": args.device}
    settings = common | dict(pair.split("=", 1) for pair in args.set)
    if args.study == "components":
        rows = study_components(known, measured, settings)
    elif args.study == "trees":
        rows = study_trees(known, measured, settings, [int(n) for n in args.trees.split(",")])
    else:
        rows = study_psp(known, measured, args.models.split(","), args.set, common)
    headings = list(rows[0])
    print(markdown(headings, [[str(value) for value in row.values()] for row in rows]))
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    if args.plot is not None:
        draw({data.name: rows}, args.plot)


def load_splits(path: Path, *, test: bool) -> tuple[Dataset, Dataset]:
    """Return the documents to train on and those to measure on."""
    train, test_split = longtail.load(path)
    if train.texts is None:
        raise SystemExit(f"{path} holds rows of features; {MODEL} needs texts")
    if not test:
        return train.split(0.2)
    if test_split is None:
        raise SystemExit(f"{path} has no test split")
    return train, test_split.align(train.label_names)


def study_components(known: Dataset, measured: Dataset, settings: Settings) -> list[dict[str, Any]]:
    """Return table 4: BiLSTM with max-pooling, with attention, with averaging; and XML-CNN."""
    rows = []
    for name, change in COMPONENTS.items():
        model, seconds = fit({**settings, **change}, known)
        rows.append({"model": name, **precision(model, measured), "train s": seconds})
        _show(rows)
    return rows


def study_trees(
    known: Dataset, measured: Dataset, settings: Settings, numbers: Sequence[int]
) -> list[dict[str, Any]]:
    """Return table 5: accuracy by the number of trees, the first of one ensemble."""
    model, seconds = fit({**settings, "trees": max(numbers)}, known)
    trees, rows = model.trees_, []
    for n_trees in numbers:
        model.trees_ = trees[:n_trees]
        took = round(seconds * n_trees / len(trees), 1)
        rows.append({"trees": n_trees, **precision(model, measured), "train s": took})
        _show(rows)
    return rows


def study_psp(
    known: Dataset,
    measured: Dataset,
    names: Sequence[str],
    given: Sequence[str],
    common: Settings,
) -> list[dict[str, Any]]:
    """Return figure 2's numbers: propensity-scored precision of each model."""
    contenders = {name: read_contender(name, given) for name in names}  # before the first trains
    rows = []
    for name, (model_name, settings) in contenders.items():
        usable = common if "device" in signature(get_model_class(model_name)).parameters else {}
        model, seconds = fit({**usable, **settings}, known, model_name)
        metrics = evaluate(model.predict(measured), measured, train=known)
        rows.append({"model": name, **_round(metrics, "PSP", "P"), "train s": seconds})
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
    return model, round(time.perf_counter() - start, 1)


def precision(model: Model, measured: Dataset) -> dict[str, float]:
    """Return P@1, 3 and 5."""
    return _round(evaluate(model.predict(measured), measured), "P")


def draw(results: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw a panel for each data set, a bar for each row: PSP if the rows have it, else P."""
    metric = "PSP" if all("PSP@1" in rows[0] for rows in results.values()) else "P"
    groups = [f"{metric}@{k}" for k in CUTS]
    panels = {
        title: {_name(row): [row[group] for group in groups] for row in rows}
        for title, rows in results.items()
    }
    draw_bars(panels, groups, path)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['trees']} trees" if "trees" in row else str(row["model"])


def _round(metrics: Mapping[str, float], *names: str) -> dict[str, float]:
    return {f"{name}@{k}": round(metrics[f"{name}@{k}"], 2) for name in names for k in CUTS}


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    print(*rows[-1].values(), file=sys.stderr, flush=True)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=["components", "trees", "psp", "draw"])
    parser.add_argument("data", type=Path, metavar="DATA", nargs="+")
    parser.add_argument("--trees", default="1,2,3,4", metavar="N,N,…")
    parser.add_argument("--models", default=f"linear,glas,{MODEL}", metavar="NAME,NAME,…")
    parser.add_argument("--test", action="store_true", help="measure on the test split")
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
