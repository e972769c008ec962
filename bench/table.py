"""Results as tables: one a data set, and ours ÷ the best peer."""

from collections.abc import Iterable
from typing import Any

from longtail.compare.table import Column, markdown

Result = dict[str, Any]


COLUMNS = [
    *(Column(f"P@{k}", f"P@{k}", 2, True) for k in (1, 3, 5)),
    *(Column(f"PSP@{k}", f"PSP@{k}", 2, True) for k in (1, 3, 5)),
    Column("train_seconds", "train s", 2, False),
    Column("train_cpu_seconds", "train CPU s", 2, False),
    Column("train_peak_mb", "peak MB", 0, False),
    Column("train_above_data_mb", "above data MB", 0, False),
    Column("model_mb", "model MB", 1, False),
    Column("documents_per_second", "documents/s", 0, True),
    Column("single_p50_ms", "one p50 ms", 3, False),
    Column("single_p99_ms", "one p99 ms", 3, False),
]


def results_table(results: Iterable[Result]) -> str:
    """Return one row for each method; a method that failed shows its error instead."""
    rows, errors = [], []
    for result in results:
        if "error" in result:
            rows.append([result["method"], "failed", *[""] * (len(COLUMNS) - 1)])
            errors.append(f"- {result['method']} failed: {result['error']}")
        else:
            rows.append([result["method"], *(_number(result[c.key], c) for c in COLUMNS)])
    table = markdown(["method", *(c.heading for c in COLUMNS)], rows)
    return "\n".join([table, *(["", *errors] if errors else [])])


def ratio_table(results: Iterable[Result]) -> str:
    """Return ours ÷ the best peer by measure; in brackets, which peer that is."""
    done = [result for result in results if "error" not in result]
    ours = [result for result in done if result["ours"]]
    peers = [result for result in done if not result["ours"]]
    if not ours or not peers:
        return "No ratios: that takes one of our models and one peer that both finished."
    rows = []
    for column in COLUMNS:
        best = best_peer(peers, column)
        ratios = [f"{ratio(one[column.key], best[column.key]):.2f}" for one in ours]
        wish = "higher" if column.higher_is_better else "lower"
        rows.append([column.heading, wish, *ratios, f"{best['method']}"])
    return markdown(["measure", "better", *(one["method"] for one in ours), "best peer"], rows)


def training_table(results: Iterable[Result]) -> str:
    """Return our training seconds ÷ those of each peer, and CPU seconds, which are less noisy."""
    done = [result for result in results if "error" not in result]
    ours = [result for result in done if result["ours"]]
    rows = [
        [peer["method"], *(_training_ratios(one, peer) for one in ours)]
        for peer in done
        if not peer["ours"]
    ]
    return markdown(["training s (CPU s), ours ÷", *(one["method"] for one in ours)], rows)


def has_ours(results: Iterable[Result]) -> bool:
    """Whether one of our models finished."""
    return any(result["ours"] and "error" not in result for result in results)


def best_peer(peers: list[Result], column: Column) -> Result:
    """Return the peer that is best at this one measure."""
    pick = max if column.higher_is_better else min
    return pick(peers, key=lambda peer: peer[column.key])


def ratio(ours: float, theirs: float) -> float:
    """Return ours ÷ theirs; infinite where theirs is nothing."""
    return ours / theirs if theirs else float("inf")


def _number(value: float, column: Column) -> str:
    return f"{value:,.{column.digits}f}"


def _training_ratios(one: Result, peer: Result) -> str:
    wall = ratio(one["train_seconds"], peer["train_seconds"])
    cpu = ratio(one["train_cpu_seconds"], peer["train_cpu_seconds"])
    return f"{wall:.2f} ({cpu:.2f})"
