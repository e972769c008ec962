"""What commands print on stdout for people: tables and lines."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from longtail.cli.terminal import echo, open_console
from longtail.visible import spell_count

if TYPE_CHECKING:
    from longtail.data import Dataset
    from longtail.data.describe import Description, SplitDescription
    from longtail.evaluation.bands import Band
    from longtail.evaluation.explanation import Neighbour, Term, Vote
    from longtail.models.base import Model
    from longtail.models.card import Card
    from longtail.models.sizing import Size, Sized
    from longtail.runtime.settings import Setting
    from longtail.runtime.store import Verified
    from longtail.serve.feedback import Report
    from longtail.topk import TopK

RANKING = ("P", "nDCG", "PSP", "PSnDCG", "recall")
METRICS = (*RANKING, "F1-micro", "F1-macro", "F1-document", "coverage", "hP", "hrecall")
CUTS = (1, 3, 5)
LONGEST_TEXT = 300  # characters of a document that an example shows


def show(*blocks: Table | str) -> None:
    """Print tables and lines on stdout; colors only on a terminal."""
    console = open_console()
    for block in blocks:
        if isinstance(block, str):
            echo(block)
            continue
        title, block.title = block.title, None  # rich would break it at the width of the table
        if title:
            console.print(title, style="bold", soft_wrap=True)
        console.print(block, "")


def metric_table(
    report: Mapping[str, float],
    title: str,
    cuts: Sequence[int] = CUTS,
    metrics: Sequence[str] = RANKING,
) -> Table:
    """Show each metric in a row and its cuts @1, @3, @5 in columns."""
    table = _table(title, "", *(f"@{k}" for k in cuts), right_from=1)
    for metric in metrics:
        if f"{metric}@{cuts[0]}" in report:
            table.add_row(metric, *(f"{report[f'{metric}@{k}']:.2f}" for k in cuts))
    return table


def band_table(bands: "Iterable[Band]", cuts: Sequence[int] = CUTS) -> Table:
    """Show how well frequent and rare labels are found."""
    title = "By label frequency in training; the P@k of all bands add up to P@k"
    headers = ["labels", "documents each", "% of pairs", *(f"P@{k}" for k in cuts)]
    headers.append(f"recall@{max(cuts)}")
    table = _table(title, "", *headers, right_from=1)
    for band in bands:
        values = [*(band.precision[k] for k in cuts), band.recall[max(cuts)]]
        table.add_row(
            band.name,
            f"{band.n_labels:,}",
            _span(band.min_documents, band.max_documents),
            f"{band.share:.1f}",
            *(f"{value:.2f}" for value in values),
        )
    return table


def probability_blocks(report: Mapping[str, float], *, calibrated: bool) -> list[Table | str]:
    """Show the calibration error, and the quality of the labels above the threshold."""
    error = f"Expected calibration error of the first five labels: {report['ECE']:.3f}"
    if not calibrated:
        return [f"{error} (the scores are not probabilities; see longtail calibrate --help)."]
    if "threshold" not in report:
        return [f"{error}."]
    n_given = report["labels-per-document"]
    title = (
        f"Labels with a probability of {report['threshold']:g} or more: {n_given:.1f} per document"
    )
    table = _table(title, "in percent", "precision", "recall", "F1", right_from=1)
    for row in ("micro", "macro", "document"):
        values = (report[f"{metric}-{row}"] for metric in ("precision", "recall", "F1"))
        table.add_row(row, *(f"{value:.2f}" for value in values))
    return [table, f"{error}."]


def comparison_tables(results: Mapping[str, Any]) -> list[Table]:
    """Show the accuracy of each method of a comparison, and its costs."""
    from longtail.compare.table import COSTS, finished, has_seeds

    P, PSP = ([f"{metric}@{k}" for k in CUTS] for metric in ("P", "PSP"))
    if has_seeds(results):  # a table each, as all of them would not fit into 80 columns
        title = "In percent, mean ± standard deviation over the seeds"
        reached = [_seed_table(results, P, title), _seed_table(results, PSP)]
    else:
        reached = [_table("In percent", "", *P, *PSP, right_from=1)]
        for method in finished(results):
            values = (method["metrics"][each]["value"] for each in (*P, *PSP))
            reached[0].add_row(method["name"], *(f"{value:.2f}" for value in values))
    costs = [each for each in COSTS if each.key != "train_cpu_seconds" and "p99" not in each.key]
    spent = _table("Time and memory", "", *(each.heading for each in costs), right_from=1)
    for method in finished(results):
        measured = method["measured"]
        spent.add_row(method["name"], *(f"{measured[each.key]:,.{each.digits}f}" for each in costs))
    return [*reached, spent, *(_noise_tables(results["noise"]) if "noise" in results else ())]


def _noise_tables(noise: Mapping[str, Any]) -> Iterable[Table]:
    """Show what wrong labels in training cost each method, a table for each kind of them."""
    from longtail.compare.noise import KINDS
    from longtail.compare.table import noise_rows

    for kind in noise["kinds"]:
        headings, rows = noise_rows(noise, kind)
        title = f"Training with {KINDS[kind]}, in percent; clean: on documents kept clean"
        table = _table(title, "", *headings[1:], right_from=2)
        for name, metric, *cells in rows:
            table.add_row(name if metric == rows[0][1] else "", metric, *cells)
        yield table


def _seed_table(
    results: Mapping[str, Any], metrics: Sequence[str], title: str | None = None
) -> Table:
    """Show means and deviations over seeds, and how many seeds there were."""
    from longtail.compare.table import finished, spell_metric

    table = _table(title, "", "seeds", *metrics, right_from=1)
    for method in finished(results):
        values = (spell_metric(method["metrics"][each], repeated=True) for each in metrics)
        table.add_row(method["name"], str(len(method["seeds"])), *values)
    return table


def description_blocks(found: "Description") -> list[Table | str]:
    """Show a data set: its splits side by side, its frequency bands, its problems."""
    splits = [found.train] if found.test is None else [found.train, found.test]
    width = "" if found.n_features is None else f", {spell_count(found.n_features, 'feature')}"
    title = f"{spell_count(found.n_labels, 'label')}, documents as {found.document_type}{width}"
    names = ["documents"] if found.test is None else ["training", "test"]
    table = _table(title, "", *names, right_from=1)
    for row in zip(*(_split_rows(split) for split in splits), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    headers = ("", "labels", "documents each", "% of pairs")
    bands = _table("Labels by frequency in training", *headers, right_from=1)
    for band in found.bands:
        span = _span(band.min_documents, band.max_documents)
        bands.add_row(band.name, f"{band.n_labels:,}", span, f"{band.share:.1f}")
    problems = [f"- {problem}" for problem in found.problems]
    return [table, bands, *(["Problems:", *problems] if problems else ["No problems."])]


def _split_rows(split: "SplitDescription") -> list[tuple[str, str]]:
    labels, documents = split.labels_per_document, split.documents_per_label
    return [
        ("documents", f"{split.n_documents:,}"),
        ("labels used", f"{split.n_labels_used:,}"),
        ("labels per document: mean", f"{labels.mean:.2f}"),
        ("labels per document: median", f"{labels.median:g}"),
        ("labels per document: most", f"{labels.max:,}"),
        ("documents per label: mean", f"{documents.mean:.1f}"),
        ("documents per label: median", f"{documents.median:g}"),
        ("documents per label: most", f"{documents.max:,}"),
        ("empty documents", f"{split.n_empty:,}"),
        ("documents without labels", f"{split.n_without_labels:,}"),
        ("repeated documents", f"{split.n_duplicates:,}"),
    ]


def _span(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


def prediction_table(batch: "Dataset", top: "TopK", first: int, *, header: bool) -> Table:
    """Show documents, of which `first` came before, with their labels."""
    width = open_console().width
    headings = ("", "document", "labels") if header else ("", "", "")
    table = _table(None, *headings)
    table.columns[0].width = max(4, len(str(first + len(top))))
    table.columns[1].width = (width - table.columns[0].width) * 2 // 5
    for i, labels in enumerate(top.to_list()):
        known = [] if batch.ids is None else [batch.ids[i]]
        known += [] if batch.texts is None else [flatten(batch.texts[i][: 2 * LONGEST_TEXT])]
        document = shorten(": ".join(known), 2 * table.columns[1].width)
        named = ", ".join(f"{each['label']} {each['score']:.2f}" for each in labels)
        table.add_row(str(first + i + 1), document, named or "none")
    return table


def card_blocks(card: "Card", path: Path) -> Iterable[Table | str]:
    """Show where a model comes from, table by table."""
    yield f"{path} holds a {card.model} model, {card.summary}."
    yield ""
    for title, rows in card.sections():
        table = _table(title, "", "")
        for row in rows:
            table.add_row(*row)
        yield table
    for title, lines in card.lists():
        yield f"{title}:"
        yield from (f"- {line}" for line in lines)
        yield ""


def label_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Show labels with their documents, and their URIs where there are any."""
    keys = [key for key in ("label", "uri") if any(key in row for row in rows)]
    table = _table(title, *keys, "documents", right_from=len(keys))
    for row in rows:
        cells = [flatten(row.get(key, "")) for key in keys]
        table.add_row(*cells, f"{row['documents']:,}")
    return table


def feedback_blocks(found: "Report") -> Iterable[Table | str]:
    """Show how many suggestions were right, month by month, and the labels most corrected."""
    yield f"{found.n_documents:,} documents were corrected."
    headers = ("month", "documents", "judged suggestions", "right", "precision %")
    table = _table(None, *headers, right_from=1)
    for month, (n, judged, right) in found.months.items():
        precision = f"{100 * right / judged:.1f}" if judged else "–"
        table.add_row(month, f"{n:,}", f"{judged:,}", f"{right:,}", precision)
    yield table
    for title, rows in {"Rejected most": found.rejected, "Added most": found.added}.items():
        if rows:
            table = _table(title, "label", "times", right_from=1)
            for label, times in rows:
                table.add_row(shorten(label), f"{times:,}")
            yield table


def verified_line(path: Path, found: "Verified") -> str:
    """Say that a model folder is complete and what it holds."""
    return (
        f"{path} is complete: a {found.model_name} model in {len(found.files)} files, "
        f"{found.n_bytes / 1e6:.1f} MB, written by longtail {found.longtail_version}"
    )


def example_lines(data: "Dataset", top: "TopK") -> list[str]:
    """Show documents with their predicted labels, the right ones marked, and their true ones."""
    lines = ["Some of the test documents, with a ✓ at each true label that was found", ""]
    for row in range(len(data)):
        true = [data.label_names[label] for label in data.Y[row].indices.tolist()]
        predicted = [
            f"{'✓ ' if each['label'] in true else ''}{each['label']} {each['score']:.2f}"
            for each in top.take(slice(row, row + 1)).to_list()[0]
        ]
        lines += _wrap("" if data.texts is None else shorten(data.texts[row]), "")
        lines += _wrap(", ".join(predicted), "  predicted: ")
        lines += [*_wrap(", ".join(true), "  true:      "), ""]
    return lines


def _wrap(text: str, heading: str) -> list[str]:
    indent = " " * len(heading)
    wrapper = TextWrapper(
        80, initial_indent=heading, subsequent_indent=indent, break_on_hyphens=False
    )
    return wrapper.wrap(flatten(text)) or [heading]


def term_table(terms: "Sequence[Term]", label: str | None) -> Table:
    """Show words with their weights, and what the label loses without them, if that is known."""
    from longtail.evaluation.explanation import word_columns

    headings, rows = word_columns(terms)
    if label is not None:
        headings[1] = f"{headings[1]} for {label}".removeprefix("weight ")
    table = _table(None, *headings, right_from=1)
    for row in rows:
        table.add_row(*row)
    return table


def neighbour_table(neighbours: "Iterable[Neighbour]", label: str | None = None) -> Table:
    """Show training documents with their labels; whether they speak for one, if asked."""
    speaks = [] if label is None else ["speaks"]
    table = _table(None, "similarity", *speaks, "labels", "training document")
    for each in neighbours:
        side = [] if label is None else ["for" if label in each.labels else "against"]
        labels = ", ".join(each.labels)
        table.add_row(f"{each.similarity:.2f}", *side, labels, shorten(flatten(each.named())))
    return table


def vote_table(votes: "Sequence[Vote]") -> Table:
    """Show for each label its rank and score in each member's list, and the member's weight."""
    from longtail.evaluation.explanation import group_votes

    members, rows = group_votes(votes)
    table = _table(None, "label", *members)
    for label, said in rows.items():
        table.add_row(label, *said)
    return table


def model_table(models: "Iterable[type[Model]]") -> Table:
    """Show every model, what it is and when to choose it."""
    table = _table(None, "model", "what it is", "choose it when")
    for model in models:
        table.add_row(model.name, model.summary, model.choose_when)
    return table


def parameter_table(parameters: "Iterable[Setting]", title: str) -> Table:
    """Show the parameters of a model with their defaults."""
    table = _table(title, "key", "default", "meaning")
    for each in parameters:
        table.add_row(each.name, spell(each.default), each.describe())
    return table


def named_table(title: str, rows: Mapping[str, str]) -> Table:
    """Show what each of some names means."""
    table = _table(title, "name", "meaning")
    for name, meaning in rows.items():
        table.add_row(name, meaning)
    return table


def preset_table(presets: Mapping[str, Mapping[str, Any]]) -> Table:
    """Show what each preset sets."""
    table = _table("Presets (--set preset=NAME)", "preset", "sets")
    for name, values in presets.items():
        settings = ", ".join(f"{key}={spell(value)}" for key, value in values.items())
        table.add_row(name, settings or "the defaults")
    return table


def size_blocks(size: "Size", found: "Iterable[Sized]") -> list[Table | str]:
    """Show what training would take."""
    from longtail.models.cost import format_seconds
    from longtail.runtime.memory import format_bytes

    found = list(found)
    counts = [f"{spell_count(size.documents, 'document')}, {spell_count(size.labels, 'label')}"]
    counts.append(f"{spell_count(size.nodes, 'node')} of {spell_count(size.cores, 'core')}")
    title = "; ".join(counts) + (f", {spell_count(size.gpus, 'GPU')}" if size.gpus else "")
    columns = {
        "model": [each.model for each in found],
        "time": [format_seconds(each.seconds) for each in found],
        "memory a node": ["?" if each.ram is None else format_bytes(each.ram) for each in found],
        "a GPU": [format_bytes(each.gpu) if each.gpu else "-" for each in found],
        "disk a node": [format_bytes(each.disk) for each in found],
        "network": [format_bytes(each.network) if each.network else "-" for each in found],
        "mostly": [each.driver for each in found],
    }
    said = {header: cells for header, cells in columns.items() if set(cells) != {"-"}}
    table = _table(title, *said, right_from=1)
    table.columns[0].no_wrap = table.columns[-1].no_wrap = True
    for row in zip(*said.values(), strict=True):
        table.add_row(*row)
    return [
        table,
        f"The packed data take {format_bytes(size.packed_bytes)}. Memory is that beside mapped "
        "files, mostly for what the last column says; ? is what has no formula. Time supposes that "
        "the work divides evenly: linear by Ray, networks by torchrun or Ray; the others run on "
        "one machine.",
    ]


def spell(value: Any) -> str:
    """Return a value as `--set` would take it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def flatten(text: str) -> str:
    """Return a document in one line: any white space is one blank."""
    return " ".join(text.split())


def shorten(text: str, length: int = LONGEST_TEXT) -> str:
    """Return the beginning of `text`, marked where it was cut."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _table(title: str | None, *headers: str, right_from: int | None = None) -> Table:
    """Return an empty table; the columns from `right_from` on are aligned right."""
    table = Table(
        title=title,
        box=SIMPLE_HEAD,
        show_header=any(headers),
        show_edge=False,
        pad_edge=False,
    )
    for i, header in enumerate(headers):
        right = right_from is not None and i >= right_from
        table.add_column(header, justify="right" if right else "left", overflow="fold")
    return table
