"""GLaS on a GPU: seconds for ten epochs, the share of them in which the GPU computes, P@1/3/5.

    python -m bench.yso_gpu ROWS --prepare DATA     # writes DATA's rows to ROWS, on any machine
    python -m bench.yso_gpu ROWS                    # trains and evaluates, where the GPU is

ROWS holds train_X.npz, train_Y.npz, test_X.npz and test_Y.npz. `--set name=value` changes a
parameter of the model. The time is that of training after loading: a small warm-up first compiles
what is compiled on first use. Where the GPU spends its time comes from one more epoch, profiled,
since profiling slows training down.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from bench import gpu_time
from longtail.evaluation.metrics import evaluate
from longtail.models.glas.model import GLaS

MATRICES = ("train_X", "train_Y", "test_X", "test_Y")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and do as it says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--prepare", type=Path, metavar="DATA")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--no-profile", action="store_true")
    given = parser.parse_args(arguments)
    if given.prepare is not None:
        prepare(given.prepare, given.rows)
        return
    settings: dict[str, Any] = {"epochs": 10, "device": given.device}
    settings |= dict(pair.split("=", 1) for pair in given.set)
    print(json.dumps(measure(given.rows, settings, profile=not given.no_profile), indent=2))


def prepare(data: Path, folder: Path) -> None:
    """Turn the texts of `data` into rows and store them."""
    from bench.rows import find_rows

    (rows,) = find_rows(data.parent, [data.name])
    rows.write(folder)
    sp.save_npz(folder / "test_Y.npz", rows.test.Y, compressed=False)
    print(json.dumps(rows.describe()))


def measure(folder: Path, settings: dict[str, Any], *, profile: bool) -> dict[str, Any]:
    """Train and evaluate; return what there is to report."""
    matrices = {name: sp.load_npz(folder / f"{name}.npz") for name in MATRICES}
    X, Y = matrices["train_X"], matrices["train_Y"]
    warm_up = np.arange(min(3 * 4096, X.shape[0]))
    _make(settings, epochs=1).fit(X[warm_up], Y[warm_up])
    results: dict[str, Any] = {"settings": settings, "documents": X.shape[0], "labels": Y.shape[1]}
    results["features"] = X.shape[1]
    model = _make(settings)
    start = time.perf_counter()
    model.fit(X, Y)
    results["seconds of fit"] = round(time.perf_counter() - start, 2)
    results |= gpu_time.describe_training(model, settings["device"])
    if settings["device"] == "cuda":
        model.index_.to("cuda")
        if profile:
            results |= gpu_time.profile(lambda: _make(settings, epochs=1).fit(X, Y))
    start = time.perf_counter()
    top = model.predict(matrices["test_X"])
    results["documents per second"] = round(len(top) / (time.perf_counter() - start))
    metrics = evaluate(top, matrices["test_Y"])
    return results | {f"P@{k}": round(metrics[f"P@{k}"], 2) for k in (1, 3, 5)}


def _make(settings: dict[str, Any], **more: Any) -> GLaS:
    return GLaS.from_settings({**settings, **more})


if __name__ == "__main__":
    main()
