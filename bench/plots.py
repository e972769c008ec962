"""Figures of the studies, by matplotlib, which is needed for nothing else."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longtail.errors import MissingExtraError

Points = tuple[Sequence[float], Sequence[float]]
Bars = Mapping[str, Mapping[str, Sequence[float]]]

COLOURS = ["#d95f02", "#7570b3", "#1b9e77", "#444444", "#e7298a", "#66a61e", "#e6ab02", "#8c6d31"]
MARKERS = "osD^vPX*"


def _figure(n_panels: int, columns: int, width: float) -> tuple[Any, list[Any]]:
    if find_spec("matplotlib") is None:
        raise MissingExtraError.of("the figure needs matplotlib", "plots")
    from matplotlib.figure import Figure

    rows = -(-n_panels // columns)
    figure = Figure(figsize=(width * columns, 2.9 * rows), layout="constrained", dpi=120)
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(n_panels)]
    for ax in axes:
        ax.grid(color="#dddddd", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_lines(
    panels: Mapping[str, Mapping[str, Points]],
    path: Path,
    *,
    columns: int,
    x_label: str,
    y_label: str,
) -> None:
    """Draw panels of lines: {title: {name: (x, y)}}; a name has one colour in all of them."""
    figure, axes = _figure(len(panels), columns, 3.6)
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    for i, (ax, (title, lines)) in enumerate(zip(axes, panels.items(), strict=True)):
        for name, (x, y) in lines.items():
            at = names.index(name)
            ax.plot(x, y, color=COLOURS[at], marker=MARKERS[at], markersize=4, label=name)
        ax.set_title(title, fontsize=10)
        if i >= len(panels) - columns:
            ax.set_xlabel(x_label)
        if i % columns == 0:
            ax.set_ylabel(y_label)
    _finish(figure, axes[0], path, len(names))


def draw_bars(panels: Bars, groups: Sequence[str], path: Path, spreads: Bars | None = None) -> None:
    """Draw panels of bars: {title: {name: a height for each group}}; `spreads` is ± of each."""
    figure, axes = _figure(len(panels), min(3, len(panels)), 3.4 if len(panels) > 1 else 5.5)
    names = list(dict.fromkeys(name for bars in panels.values() for name in bars))
    for ax, (title, bars) in zip(axes, panels.items(), strict=True):
        for name, heights in bars.items():
            at = names.index(name)
            x = [i + (at - (len(names) - 1) / 2) * 0.8 / len(names) for i in range(len(groups))]
            ax.bar(x, heights, 0.8 / len(names), color=COLOURS[at], label=name)
            if spreads is not None:
                ax.errorbar(x, heights, spreads[title][name], fmt="none", ecolor="#222222", lw=0.8)
        ax.set_xticks(range(len(groups)), groups)
        ax.set_title(title, fontsize=10)
    axes[0].set_ylabel("%")
    _finish(figure, axes[0], path, len(names))


def _finish(figure: Any, ax: Any, path: Path, n_names: int) -> None:
    handles, labels = ax.get_legend_handles_labels()
    inches = 0.6 + 0.09 * max(map(len, labels))  # of one entry, about
    columns = max(1, min(n_names, int(figure.get_figwidth() / inches)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    figure.savefig(path)
