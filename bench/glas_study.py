"""The studies of the GLaS paper on any data set: its tables 1 and 2, and its figure 1.

    python -m bench.glas_study parameters DATA     # each parameter varied from a base setting
    python -m bench.glas_study gap DATA            # accuracy on seen and on unseen documents
    python -m bench.glas_study curves DATA DATA --results curves.json --plot figure.png

The last shows accuracy on seen and unseen documents after every epoch, with and without
regularization; data sets that `--results` holds already are not trained on again.
All train on four fifths of DATA's training documents and measure on the rest; the test split is
not used. Their base setting is the model's default one, or the paper's with `--set
preset=paper`; `--set name=value` changes it further, and `--only loss,similarity` varies these
parameters alone. What the paper says of the time that one document takes is measured by `python -m
bench.latency --models glas --labels 25000,1000000`.
EURLex-4K, on which the paper has P@1/3/5 of 77.5 / 65.0 / 54.4, takes the paper's own setting: put
its files into a folder EURLex-4K, then

    longtail train EURLex-4K --model glas --out eurlex --set preset=paper --valid 0
    longtail evaluate eurlex EURLex-4K
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

import longtail
from bench.plots import Points, draw_lines
from bench.table import markdown
from longtail.data.dataset import Dataset
from longtail.evaluation.metrics import evaluate
from longtail.models.glas.model import GLaS

if TYPE_CHECKING:
    from longtail.models.glas.network import GLaSTask
    from longtail.training.processes import Processes

# By what each parameter of the base setting is multiplied, or what takes its place.
FACTORS: dict[str, list[float]] = {
    "strength": [0.1, 10],
    "batch_size": [0.25, 0.5, 2],
    "dim": [0.25, 0.5],
}
VALUES: dict[str, list[Any]] = {
    "regularizer": ["none", "spread-out", "gravity"],
    "keep": [1.0, 0.6],
    "embedding": ["linear", "relu", "residual"],
    "loss": ["bce", "softmax", "margin", "mining"],
    "similarity": ["geometric", "pmi", "jaccard"],
}
PARAMETERS = [*FACTORS, *VALUES]
PLAIN = {"regularizer": "none", "keep": "1", "dropout": "0"}  # algorithm 1
MOST_SEEN = 4000  # documents of those trained on that a curve measures
WEAK = {"gravity": 1e-3}  # how strong the others are is far too strong for it


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the study, print its table."""
    args = _arguments(arguments)
    settings = dict(pair.split("=", 1) for pair in args.set)
    settings["device"] = args.device
    if args.study == "curves":
        curves = read_curves(settings, args.data, args.results)
        print(curve_table(curves))
        if args.plot:
            plot_curves(curves, args.plot)
        return
    for data in args.data:
        train, _ = longtail.load(data)
        kept, held_out = train.split(0.2)
        print(f"{data.name}: {len(kept):,} documents to train on, {len(held_out):,} held out\n")
        if args.study == "gap":
            print(gap_table(settings, kept, held_out))
        else:
            print(parameter_table(settings, kept, held_out, args.only.split(",")))


def parameter_table(
    settings: dict[str, Any], kept: Dataset, held_out: Dataset, only: Sequence[str] = PARAMETERS
) -> str:
    """Return table 1: how accuracy on unseen documents changes with one parameter."""
    rows = []
    base = ("base setting", describe(GLaS.from_settings(settings)), settings)
    others = (row for row in vary(settings, len(kept)) if row[0] in only)
    for name, value, varied in (base, *others):
        rows.append([name, value, *_try(varied, kept, held_out)])
        print(*rows[-1], file=sys.stderr, flush=True)
    return markdown(["parameter", "value", "P@1", "P@3", "P@5", "seconds"], rows)


def vary(settings: dict[str, Any], n_documents: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each parameter's name, its other value, and the settings with that value."""
    from longtail.models.neural import choose_batch_size

    base = GLaS.from_settings(settings)
    for name, factors in FACTORS.items():
        usual = getattr(base, name) or choose_batch_size(n_documents)
        for value in (type(usual)(usual * factor) for factor in factors):
            yield name, f"{value:g}", {**settings, name: str(value)}
    for name, values in VALUES.items():
        for value in values:
            if value == getattr(base, name):
                continue
            strength = base.strength * WEAK.get(value, 1)
            yield name, str(value), {**settings, name: str(value), "strength": str(strength)}


def gap_table(settings: dict[str, Any], kept: Dataset, held_out: Dataset) -> str:
    """Return table 2: accuracy on seen and unseen documents, with and without regularisation."""
    rows = []
    variants = {
        "GLaS and dropout": {},
        "dropout alone": {"regularizer": "none"},
        "GLaS alone": {"keep": "1", "dropout": "0"},
        "none": PLAIN,
    }
    for name, change in variants.items():
        model = GLaS.from_settings({**settings, **change}).fit(kept)
        seen, unseen = (evaluate(model.predict(split), split)["P@1"] for split in (kept, held_out))
        rows.append([name, f"{seen:.2f}", f"{unseen:.2f}", f"{seen - unseen:.2f}"])
        print(*rows[-1], file=sys.stderr, flush=True)
    return markdown(["regularisation", "seen P@1", "unseen P@1", "gap"], rows)


# -- figure 1 -------------------------------------------------------------------------------------

Curves = dict[str, dict[str, Points]]  # data set → line → (epochs, P@1)


class Watched(GLaS):
    """GLaS that also measures, after every epoch, documents that it trains on."""

    def prepare(
        self,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        pairs: sp.csr_matrix,
        device_type: str,
        sharing: "Processes | None" = None,
    ) -> "GLaSTask":
        """Return the task, with a validation that looks at seen documents too."""
        from longtail.models.glas.network import GLaSTask

        class WatchedTask(GLaSTask):
            def validate(self) -> dict[str, float] | None:
                chosen = np.random.default_rng(0).permutation(self.n_documents)[:MOST_SEEN]
                seen = self.measure(self.X[chosen], self.Y[chosen])["P@1"]
                return {**(super().validate() or {}), "seen": seen}

        task = super().prepare(X, Y, pairs, device_type, sharing)
        return WatchedTask(*(getattr(task, field.name) for field in dataclasses.fields(task)))


def read_curves(settings: dict[str, Any], data: Sequence[Path], results: Path | None) -> Curves:
    """Return the curves of every data set; train for those that `results` lacks, and add them."""
    known = json.loads(results.read_text()) if results and results.exists() else {}
    for path in data:
        if path.name not in known:
            known[path.name] = measure_curves(settings, longtail.load(path)[0])
            if results:
                results.write_text(json.dumps(known))
    return {path.name: known[path.name] for path in data}


def measure_curves(settings: dict[str, Any], train: Dataset) -> dict[str, Points]:
    """Return P@1 after every epoch, on seen and unseen documents, for algorithms 2 and 1."""
    lines: dict[str, Points] = {}
    for name, change in {"regularized": {}, "not regularized": PLAIN}.items():
        watched = {**settings, **change, "valid": "0.2", "patience": "none"}
        records = Watched.from_settings(watched).fit(train).history_.records
        measured = [record for record in records if "seen" in record]
        epochs = [record["epoch"] for record in measured]
        for kind, metric in {"seen": "seen", "unseen": "P@1"}.items():
            lines[f"{kind}, {name}"] = (epochs, [record[metric] for record in measured])
            print(name, kind, *lines[f"{kind}, {name}"][1], file=sys.stderr, flush=True)
    return lines


def curve_table(curves: Curves) -> str:
    """Return the best and the last P@1 of every line."""
    rows = []
    for data, lines in curves.items():
        for name, (epochs, values) in lines.items():
            best = int(np.argmax(values))
            at = f"{epochs[best]:g}"
            rows.append([data, name, f"{values[best]:.1f}", at, f"{values[-1]:.1f}"])
    return markdown(["data", "documents, training", "best P@1", "epoch", "last"], rows)


def plot_curves(curves: Curves, path: Path) -> None:
    """Draw figure 1, a panel for each data set."""
    draw_lines(curves, path, columns=len(curves), x_label="epoch", y_label="P@1")


# ---------------------------------------------------------------------------------------------


def describe(model: GLaS) -> str:
    """Return the parameters that the tables vary, as they are."""
    return ", ".join(f"{name} {getattr(model, name) or 'by size'}" for name in PARAMETERS)


def _try(settings: dict[str, Any], kept: Dataset, held_out: Dataset) -> list[str]:
    model = GLaS.from_settings(settings).fit(kept)
    metrics = evaluate(model.predict(held_out), held_out)
    accuracy = [f"{metrics[f'P@{k}']:.2f}" for k in (1, 3, 5)]
    return [*accuracy, f"{model.history_.seconds:.1f}"]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=["parameters", "gap", "curves"])
    parser.add_argument("data", type=Path, metavar="DATA", nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default=",".join(PARAMETERS), metavar="NAME,NAME,…")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--results", type=Path, metavar="FILE", help="keeps the curves, as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draws the curves")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
