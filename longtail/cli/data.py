"""`longtail data`: look at a data set, or write it in another format."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from longtail.cli.exits import Commands, if_interrupted
from longtail.cli.output import check_apart, check_json, write_json
from longtail.cli.places import takes_urls
from longtail.cli.reading import reads, say_reading
from longtail.cli.terminal import echo_block
from longtail.errors import ParameterError
from longtail.reading import ReadOptions, option_table

app = typer.Typer(
    name="data", cls=Commands, rich_markup_mode=None, help="Look at data sets and convert them."
)


@app.callback(invoke_without_command=True)
def start(ctx: typer.Context) -> None:
    """Look at data sets and convert them."""
    if ctx.invoked_subcommand is None:
        echo_block(ctx.get_help())


DATA = typer.Argument(
    metavar="DATA", help="A file, folder, pattern or URL in any readable format, or - for stdin."
)


@app.command()
@takes_urls
@reads
def info(
    data: Annotated[Path, DATA],
    vocab: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Say which labels this vocabulary lacks or replaces."),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the counts as JSON; - for stdout.")
    ] = None,
    *,
    reading: ReadOptions,
) -> None:
    """Show counts, frequency bands and problems, also with the labels of a vocabulary."""
    from longtail.cli.show import description_blocks, show
    from longtail.data import read_splits
    from longtail.data.describe import describe
    from longtail.data.packed import read_description
    from longtail.labels.adopting import compare_labels

    check_json(json)
    check_apart(json, "--json", data)
    splits = read_splits(data, reading)
    description = read_description(data, reading) or describe(splits)
    if vocab is not None:
        description.problems.extend(compare_labels(splits.train, vocab))
    write_json(description.as_dict(), json)
    if json != "-":
        say_reading(splits.train.read_as)
        show(*description_blocks(description))


@app.command()
def formats(
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the lists as JSON; - for stdout.")
    ] = None,
) -> None:
    """List the formats that are read, the options for reading, and the names of columns."""
    from longtail.cli.show import named_table, show
    from longtail.data.columns import ID_NAMES, LABEL_NAMES, TEXT_NAMES, TEXT_PARTS
    from longtail.data.documents import EXAMPLES, FORMATS
    from longtail.data.folder import LAYOUTS

    check_json(json)
    parts = [name for part in TEXT_PARTS for name in part]
    lists = {
        "Files (--format NAME)": {name: EXAMPLES[form] for name, form in FORMATS.items()},
        "Folders": LAYOUTS,
        "Options": {f"--{o['name']} {o['metavar']}": o["help"] for o in option_table()},
        "Columns that are known by name": {
            "text": f"{', '.join(TEXT_NAMES)}; or else, joined: {', '.join(parts)}",
            "labels": ", ".join(LABEL_NAMES),
            "id": ", ".join(ID_NAMES),
        },
    }
    write_json(lists, json)
    if json != "-":
        show(*(named_table(title, rows) for title, rows in lists.items()))


OUT = typer.Argument(metavar="OUT", help="A new file or folder.")


@app.command()
@takes_urls
def example(
    out: Annotated[Path, OUT],
    documents: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many documents of each split; all unless given."),
    ] = None,
    split: Annotated[
        Literal["train", "test"] | None,
        typer.Option(help="The split that a file gets; train unless given."),
    ] = None,
) -> None:
    """Write the bundled data set, Debian package descriptions, to try things on.

    The name of OUT says how, as for `longtail data convert`. A folder gets the training and the
    test split, a file one of them.
    """
    from longtail.cli.show import show
    from longtail.data import Splits
    from longtail.data.debian import load_debian
    from longtail.data.writer import names_folder, write_dataset

    if documents is not None and documents < 1:
        raise ParameterError(f"--documents must be at least 1. Got {documents} instead.")
    is_folder = names_folder(out)
    if is_folder and split is not None:
        raise ParameterError(f"--split is for a file, and {out} would be a folder, with both")
    train, test = load_debian(documents)
    one = train if test is None or split != "test" else test
    splits = Splits(train, test) if is_folder else Splits(one, None)
    with if_interrupted(f"{out} was not written."):
        write_dataset(splits, out)
    n_documents = sum(len(each) for each in splits if each is not None)
    show(f"{n_documents:,} Debian package descriptions are in {out}")


@app.command()
@takes_urls
@reads
def convert(
    data: Annotated[Path, DATA],
    out: Annotated[Path, OUT],
    *,
    reading: ReadOptions,
) -> None:
    """Write a data set in another format.

    The name of OUT says which: x.jsonl, x.csv, x.tsv, x.parquet, x.txt (fastText for texts, sparse
    rows for features), each but Parquet also with .gz, or a folder for training and test split.
    """
    from longtail.cli.show import show
    from longtail.data.writer import convert

    with if_interrupted(f"{out} was not written."):
        splits = convert(data, out, reading)
    say_reading(splits.train.read_as)
    n_documents = sum(len(split) for split in splits if split is not None)
    show(f"{n_documents:,} documents with {splits.train.n_labels:,} labels are in {out}")


@app.command()
@takes_urls
@reads
def pack(
    data: Annotated[Path, DATA],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Also write the words of training texts as numbers."),
    ] = False,
    *,
    reading: ReadOptions,
) -> None:
    """Write a data set so that it is read at once, also one that is larger than memory.

    OUT holds texts, rows and labels as arrays that are mapped into memory. Every command reads it
    in place of DATA, and models that can are trained on it without holding it in memory. With
    --tokens, attention-xml begins without looking for words: 4 bytes more a word, and the same
    model.
    """
    from longtail.cli.show import show
    from longtail.data.writer import pack
    from longtail.text.tokens import find_words

    with if_interrupted(f"{out} was not written."):
        splits = pack(data, out, reading, find_words=find_words if tokens else None)
    say_reading(splits.train.read_as)
    n_documents = sum(len(split) for split in splits if split is not None)
    show(f"{n_documents:,} documents with {splits.train.n_labels:,} labels are packed in {out}")
