"""The reliability plot: of the labels given a probability, how many are right."""

from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longtail.cli.output import open_output
from longtail.errors import MissingExtraError, ParameterError

if TYPE_CHECKING:
    import scipy.sparse as sp

    from longtail.evaluation.calibration import Reliability
    from longtail.topk import TopK

KINDS = (".svg", ".html", ".png")
X_LABEL, Y_LABEL = "probability given", "share that is right"


def check_reliability(path: Path | None) -> None:
    """Raise an error if a plot cannot be written as `path`, before work goes into it."""
    if path is None:
        return
    if path.suffix.lower() not in KINDS:
        raise ParameterError(
            f"--reliability must be a file that ends in {' or '.join(KINDS)}. Got '{path}' instead."
        )
    if path.suffix.lower() == ".png" and find_spec("matplotlib") is None:
        raise MissingExtraError(
            "a .png needs matplotlib, which is not installed; install it with: "
            "pip install 'longtail[plots]', or write a .svg"
        )


def write_reliability(path: Path | None, top: "TopK", Y: "sp.csr_matrix", title: str) -> None:
    """Plot the first five labels of each document into `path`; nowhere for None."""
    if path is None:
        return
    from longtail.evaluation.calibration import reliability_of_first

    found = reliability_of_first(top, Y)
    if path.suffix.lower() == ".png":
        _draw_png(path, found, title)
        return
    svg = _draw_svg(found)
    with open_output(path) as file:
        file.write(svg if path.suffix.lower() == ".svg" else _page(found, svg, title))


def _draw_svg(found: "Reliability") -> str:
    from longtail.compare.report.svg import Series, lines

    some = found.counts > 0
    name = f"calibration error {found.error:.3f}"
    series = Series(name, found.means[some].tolist(), found.shares[some].tolist())
    return lines([series], x_label=X_LABEL, y_label=Y_LABEL, diagonal=True)


def _draw_png(path: Path, found: "Reliability", title: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes: Any = figure.add_subplot(xlabel=X_LABEL, ylabel=Y_LABEL, xlim=(0, 1), ylim=(0, 1))
    some = found.counts > 0
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", linewidth=1)
    axes.plot(found.means[some], found.shares[some], marker="o")
    axes.set_title(f"{title}\nexpected calibration error {found.error:.3f}", fontsize=10)
    figure.savefig(path, dpi=150)


def _page(found: "Reliability", svg: str, title: str) -> str:
    """Return a page that needs nothing else: the plot, and its numbers as a table."""
    rows = "".join(
        f"<tr><td>{i / len(found.counts):.2f}–{(i + 1) / len(found.counts):.2f}</td>"
        f"<td>{int(n):,}</td><td>{mean:.3f}</td><td>{share:.3f}</td></tr>"
        for i, (n, mean, share) in enumerate(zip(*found, strict=True))
        if n
    )
    return _PAGE.format(title=escape(title), svg=svg, rows=rows, error=f"{found.error:.3f}")


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Calibration: {title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 40em; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.2em; }}
svg {{ width: 100%; max-width: 36em; }}
table {{ border-collapse: collapse; font-size: .85em; margin-top: 1.5em; }}
td, th {{ padding: .1em 1.2em .1em 0; text-align: right; font-variant-numeric: tabular-nums; }}
</style>
<h1>Calibration: {title}</h1>
<p>Of the labels that are given a probability, how many are right? On the dashed line, as many as
the probability says. The first five labels of each document count; their expected calibration
error is {error}.</p>
{svg}
<table><tr><th>probability</th><th>labels</th><th>mean</th><th>right</th></tr>{rows}</table>
</html>
"""
