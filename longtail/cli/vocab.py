"""`longtail vocab`: read vocabularies, such as SKOS thesauri, into one small file."""

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longtail.cli.exits import Commands, if_interrupted
from longtail.cli.output import check_apart, check_output
from longtail.cli.terminal import echo, echo_block
from longtail.runtime.unfinished import unfinished_file

if TYPE_CHECKING:
    from longtail.labels.vocabulary import Vocabulary

app = typer.Typer(
    name="vocab", cls=Commands, rich_markup_mode=None, help="Read vocabularies of labels."
)


@app.callback(invoke_without_command=True)
def start(ctx: typer.Context) -> None:
    """Read vocabularies of labels."""
    if ctx.invoked_subcommand is None:
        echo_block(ctx.get_help())


@app.command()
def load(
    vocab: Annotated[
        Path,
        typer.Argument(
            metavar="VOCAB", help="SKOS (.rdf, .ttl, .jsonld), a table of names, or a list."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="The new file, such as x.vocab or x.vocab.gz."),
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file --out if it exists.")
    ] = False,
) -> None:
    """Read a vocabulary and write it into one file that opens quickly.

    Reads SKOS in RDF/XML, Turtle and JSON-LD, tables (.tsv, .csv) of URI, name and language or with
    a header (uri, label, language, notation, label_fi, …), and lists of names. `longtail train
    --vocab FILE` lets it travel with a model; it takes all of these formats as well.
    """
    from longtail.labels.vocabulary_files import read_vocabulary, write_vocabulary

    check_output(out, "--out", overwrite=overwrite)
    check_apart(out, "--out", vocab)
    with if_interrupted(f"{out} was not written."):
        found = read_vocabulary(vocab)
        with (
            unfinished_file(out) as place,
            gzip.open(place, "wt", encoding="utf-8")
            if out.suffix == ".gz"
            else place.open("w", encoding="utf-8") as file,
        ):
            write_vocabulary(found, file)
    for problem in found.find_problems():
        echo(f"Note: {problem}", err=True)
    echo(f"{summarize(found)} are in {out}")


def summarize(vocabulary: "Vocabulary") -> str:
    """Return "3 concepts with 7 names (en, fi), 2 links, 1 deprecated"."""
    spoken = ", ".join(sorted(filter(None, vocabulary.languages)))
    n_deprecated = int(vocabulary.deprecated.sum())
    parts = [
        f"{len(vocabulary):,} concepts with {len(vocabulary.names):,} names"
        + (f" ({spoken})" if spoken else ""),
        f"{len(vocabulary.broader):,} broader and {len(vocabulary.related):,} related links",
        *([f"{n_deprecated:,} deprecated"] if n_deprecated else []),
    ]
    return ", ".join(parts)
