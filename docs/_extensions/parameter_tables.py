"""Tables of the models' parameters, as `longtail models --json -` lists them.

    ```{parameters} knn
    :names: n_neighbours, temperature
    ```

shows these parameters of `knn`; without `names` it shows all but those of the tf-idf features, and
with `tfidf` it shows only these. A name that does not exist is an error.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

TEXT_PREFIX = "tfidf."
NO_DEFAULT = "none"


@cache
def read_models() -> dict[str, dict[str, Any]]:
    """Return what the command line says about each model, by name."""
    command = [sys.executable, "-m", "longtail", "models", "--json", "-"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return {model["name"]: model for model in listed}


class Parameters(SphinxDirective):
    """`{parameters} MODEL`: a table of name, default and meaning."""

    required_arguments = 1
    option_spec = {"names": directives.unchanged, "tfidf": directives.flag}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        parameters = self._choose(self._model()["parameters"])
        rows = [(each["name"], show(each["default"]), _describe(each)) for each in parameters]
        return [build_table(("parameter", "default", "meaning"), (24, 14, 62), rows)]

    def _model(self) -> dict[str, Any]:
        if self.arguments[0] not in read_models():
            raise self.error(f"there is no model '{self.arguments[0]}'")
        return read_models()[self.arguments[0]]

    def _choose(self, parameters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if "names" not in self.options:
            of_text = "tfidf" in self.options
            return [p for p in parameters if p["name"].startswith(TEXT_PREFIX) == of_text]
        known = {each["name"]: each for each in parameters}
        wanted = [name.strip() for name in self.options["names"].split(",")]
        missing = [name for name in wanted if name not in known]
        if missing:
            raise self.error(f"{self.arguments[0]} has no parameter {', '.join(missing)}")
        return [known[name] for name in wanted]


class Presets(SphinxDirective):
    """`{presets} MODEL`: a table of what each preset sets, and how to choose one."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table and the line below it."""
        presets = read_models()[self.arguments[0]]["presets"]
        rows = [
            (name, ", ".join(f"{key}={show(value)}" for key, value in values.items()))
            for name, values in presets.items()
        ]
        how = nodes.paragraph(
            "",
            "",
            nodes.literal(text="--set preset=NAME"),
            nodes.Text(" on the command line; in Python the class method "),
            nodes.literal(text='preset("NAME")'),
            nodes.Text(". Other parameters given with it override those of the preset."),
        )
        return [build_table(("preset", "sets"), (20, 80), rows), how]


def show(value: Any) -> str:
    """Return a value as `--set` takes it."""
    if value is None:
        return NO_DEFAULT
    return str(value).lower() if isinstance(value, bool) else str(value)


def _describe(parameter: dict[str, Any]) -> str:
    """Return the meaning, and the range where there is one."""
    meaning, allowed = parameter["description"], parameter["range"]
    return f"{meaning.removesuffix('.')}; {allowed}." if allowed else str(meaning)


def build_table(
    heading: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[str]]
) -> nodes.table:
    """Return a table; all columns but the last hold code, and that may hold some."""
    group = nodes.tgroup(cols=len(widths))
    group.extend(nodes.colspec(colwidth=width) for width in widths)
    head, body = nodes.thead(), nodes.tbody()
    head += _row([[nodes.Text(cell)] for cell in heading])
    body.extend(
        _row(
            [*([nodes.literal(text=cell)] if cell else [] for cell in row[:-1]), mark_code(row[-1])]
        )
        for row in rows
    )
    group += [head, body]
    return nodes.table("", group)


def _row(cells: Sequence[Sequence[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def mark_code(text: str) -> list[nodes.Node]:
    """Return a text whose `code` and --options are marked as such."""
    pieces = re.split(r"(`[^`]+`|(?<![\w-])--?[a-z][\w-]*)", text)
    return [
        nodes.literal(text=piece.strip("`")) if i % 2 else nodes.Text(piece)
        for i, piece in enumerate(pieces)
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("parameters", Parameters)
    app.add_directive("presets", Presets)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
