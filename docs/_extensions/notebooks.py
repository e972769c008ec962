"""Notebooks as pages: their texts as they are, their code as code, with a link to the file."""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown page that says the same."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Add the cells to the document."""
        name = Path(document["source"]).name
        super().parse(write_page(json.loads(inputstring), name), document)


def write_page(notebook: dict[str, Any], name: str) -> str:
    """Return the notebook as Markdown; the link to it stands below the title."""
    title, *cells = ("".join(cell["source"]) for cell in notebook["cells"])
    kinds = [cell["cell_type"] for cell in notebook["cells"][1:]]
    parts = [
        text if kind == "markdown" else f"```ipython\n{text}\n```"
        for kind, text in zip(kinds, cells, strict=True)
    ]
    return "\n\n".join([title, f"{{download}}`The notebook <{name}>` runs as it is.", *parts])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parser for `.ipynb` files."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
