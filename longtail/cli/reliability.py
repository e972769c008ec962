"""The reliability plot: the share of right labels by the probability they were given."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.cli.output import open_output
from longtail.errors import MissingExtraError, ParameterError

if TYPE_CHECKING:
    from markupsafe import Markup

    from longtail.evaluation.reliability import Reliability

SUFFIXES = (".svg", ".html", ".png")
X_LABEL, Y_LABEL = "probability given", "share that is right"


def check_reliability(path: Path | None) -> None:
    """Raise an error if a plot cannot be written as `path`, before any work is done."""
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise ParameterError(
            f"--reliability must be a file that ends in {' or '.join(SUFFIXES)}. "
            f"Got '{path}' instead."
        )
    if path.suffix.lower() == ".png" and find_spec("matplotlib") is None:
        raise MissingExtraError.of("a .png, unlike a .svg, needs matplotlib", "plots")


def write_reliability(path: Path | None, found: "Reliability", subject: str) -> None:
    """Plot what was found into `path`; nowhere for None."""
    if path is None:
        return
    if path.suffix.lower() == ".png":
        _draw_png(path, found, subject)
        return
    svg = _draw_svg(found)
    with open_output(path) as file:
        file.write(svg if path.suffix.lower() == ".svg" else _page(found, svg, subject))


def _draw_svg(found: "Reliability") -> "Markup":
    from longtail.pages.svg import Series, lines

    some = found.counts > 0
    name = f"calibration error {found.error:.3f}"
    series = Series(name, found.means[some].tolist(), found.shares[some].tolist())
    return lines([series], x_label=X_LABEL, y_label=Y_LABEL, diagonal=True)


def _draw_png(path: Path, found: "Reliability", subject: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes: Any = figure.add_subplot(xlabel=X_LABEL, ylabel=Y_LABEL, xlim=(0, 1), ylim=(0, 1))
    some = found.counts > 0
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
    axes.plot(found.means[some], found.shares[some], marker="o")
    axes.set_title(f"{subject}\nexpected calibration error {found.error:.3f}", fontsize=10)
    figure.savefig(path, dpi=150)


def _page(found: "Reliability", svg: "Markup", subject: str) -> str:
    """Return a page that needs no other file: the plot, and its numbers as a table."""
    from longtail.pages.content import Cell, Figure, Table
    from longtail.pages.render import render

    width = 1 / len(found.counts)
    rows = [
        [
            Cell(f"{i * width:.2f}–{(i + 1) * width:.2f}"),
            Cell(f"{int(n):,}"),
            Cell(f"{mean:.3f}"),
            Cell(f"{share:.3f}"),
        ]
        for i, (n, mean, share) in enumerate(zip(*found, strict=True))
        if n
    ]
    return render(
        "reliability.html",
        subject=subject,
        error=found.error,
        figure=Figure(svg, "One point for each range of probabilities"),
        bins=Table(["probability", "labels", "mean probability", Y_LABEL], rows),
    )
