"""Figure 4 of the Rank-AE paper from what `bench.trials` has measured.

    python -m bench.trials bench/spaces/rank-ae-ablation.toml DATA/stackexchange DATA/delicious \
        --model rank-ae --part test --seeds 5 --out ablation.jsonl
    python -m bench.rank_ae_ablation ablation.jsonl --out rank-ae-ablation.png

Every form of the space is a group of bars: means over the seeds of P@1, P@3 and P@5.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.plots import draw_bars
from bench.trials import PRECISION, Run, mean, read_runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the runs and draw a panel for each data set."""
    parser = argparse.ArgumentParser(prog="python -m bench.rank_ae_ablation", description=__doc__)
    parser.add_argument("runs", type=Path, help="what bench.trials wrote")
    parser.add_argument("--out", type=Path, required=True, help="a .png file")
    args = parser.parse_args(arguments)
    draw_bars(average(read_runs(args.runs)), PRECISION, args.out)


def average(runs: Sequence[Run]) -> dict[str, dict[str, list[float]]]:
    """Return the mean precisions of each form on each data set."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if "error" not in run:
            grouped.setdefault((Path(run["data"]).name, run["form"]), []).append(run)
    panels: dict[str, dict[str, list[float]]] = {}
    for (data, form), mine in grouped.items():
        panels.setdefault(data, {})[form] = [mean(mine, name) for name in PRECISION]
    return panels


if __name__ == "__main__":
    main()
