"""`longtail explain`: the weight of each word of a text, in general or for one label."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longtail.cli.output import check_json, check_output, open_output, write_json
from longtail.cli.terminal import open_console, open_stdin
from longtail.errors import DataError
from longtail.visible import visible

if TYPE_CHECKING:
    from rich.text import Text

    from longtail.evaluation.explanation import Explanation

SHOWN = 10  # words in the table


def explain(
    model: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a saved model, or its URL.")
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text, or - for stdin.")],
    label: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What matters for this label."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the marked text as HTML.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write the weights; - for stdout only.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file --html if it exists.")
    ] = False,
) -> None:
    """Show which words of a text matter to a model; darker words have a larger weight.

    With --label: orange words speak for the label, blue words against it. linear also says how far
    from the first labels it is, and whether the search meets it. attention-xml shows where it
    looked for the label, and how much lower its score is without each word. knn also shows the
    nearest training documents, or with --label the nearest that have the label and some that speak
    against it. fusion shows what each member predicts.
    """
    check_output(html, "--html", overwrite=overwrite)
    check_json(json)
    from longtail.models import load_model

    fitted = load_model(model)
    fitted.check_explains()
    if text == "-":
        text = open_stdin().read()
    found = fitted.explain(text, label)
    if not (found.terms or found.neighbours or any(found.member_terms.values())):
        what = "" if label is None else f" that speaks for or against '{label}'"
        raise DataError(
            f"the model knows no word of this text{what}, so there is nothing to explain"
        )
    labels = fitted.predict([text]).to_list()[0]
    if html is not None:
        with open_output(html) as file:
            file.write(found.to_html(labels))
    write_json(found.to_dict(), json)
    if json != "-":
        _show(found, labels)


def _show(found: "Explanation", labels: list[dict[str, Any]]) -> None:
    """Print the predicted labels, the marked text, its heaviest words and its neighbours."""
    from longtail.cli.show import neighbour_table, show, term_table, vote_table
    from longtail.evaluation.explanation import VOTE_NOTE

    show("Labels: " + ", ".join(f"{each['label']} {each['score']:.2f}" for each in labels))
    open_console().print(_mark(found))
    if found.notes:
        show("", *found.notes)
    if found.votes:
        show("", vote_table(found.votes), VOTE_NOTE)
    if found.terms:
        show("", term_table(found.terms[:SHOWN], found.label))
    if found.member_terms:
        show(*found.member_lines())
    if found.neighbours:
        show("", neighbour_table(found.neighbours, found.label))


def _mark(found: "Explanation") -> "Text":
    """Return the text in black on white, on any terminal; heavy words have a darker background."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    from longtail.evaluation.explanation import get_color

    marked = Text()
    for piece, shade in found.shades():
        color = Color.from_rgb(*get_color(shade))
        shown = visible(re.sub(r"[\t\r\n]+", " ", piece))
        marked.append(shown, Style(color="#000000", bgcolor=color))
    return marked
