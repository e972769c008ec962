"""The parts of the report, each from the results of a comparison to HTML."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from longtail.compare.report.html import (
    Cell,
    Results,
    Section,
    bullets,
    details,
    figure,
    method_cell,
    paragraph,
    plots,
    table,
)
from longtail.compare.report.svg import Interval, Series, bars, intervals, lines, scatter
from longtail.compare.table import COSTS, METRICS, SHOWN, Column, finished, join, summarize

Method = Mapping[str, Any]

TOLD = ("P@1", "P@5", "PSP@5")  # in the first sentences
PLOTTED = ("P@1", "P@5", "PSP@1", "PSP@5")
MOST_CURVES = 6  # of one method, which may be made of many parts
FEWEST_IN_BIN = 10  # predictions, for a point of the reliability plot
TESTED = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "recall@5")


def write_head(results: Results) -> str:
    """Say what was compared, and what came of it in a few sentences."""
    data, names = results["data"], [method["name"] for method in results["methods"]]
    facts = (
        f"{len(names)} method{'s' * (len(names) > 1)} on {data['n_test']:,} test documents, after "
        f"training on {data['n_train']:,}, with {data['n_labels']:,} labels "
        f"({data['labels_per_document']:.1f} on a document). {results['date']}."
    )
    sentences = [line for metric in TOLD for line in summarize(results, metric)]
    failed = [method for method in results["methods"] if method["error"]]
    body = f"<h1>{escape(data['name'])}</h1>{paragraph(facts, 'soft')}{bullets(sentences)}"
    for method in failed:
        seeds = f" (seed {join([str(seed) for seed in method['failed_seeds']])})"
        which = seeds if method["seeds"] else ""
        body += paragraph(f"{method['name']}{which} failed: {method['error']}", "failed")
    if missing := [each["package"] for each in results["missing"]]:
        left_out = f"Not installed and left out: {join(missing)}"
        body += paragraph(f"{left_out} (pip install {' '.join(missing)})", "failed")
    return body


# --------------------------------------------------------------------------------------- accuracy


def write_accuracy(results: Results) -> Section | None:
    """Show what each method reaches, and how sure that is."""
    methods = finished(results)
    if not methods:
        return None
    n = results["bootstrap"]["draws"]
    intro = (
        "In percent, with the 95 % interval as ±. Bold is the highest of a column; ≈ marks values "
        "whose distance from it may be chance. The intervals come from drawing the test documents "
        f"{n:,} times; they say nothing about other training documents. Click a heading to sort."
    )
    figures = [
        figure(_intervals(methods, metric), f"{metric} with its 95 % interval")
        for metric in PLOTTED
    ]
    body = paragraph(intro, "soft") + _accuracy_table(results, SHOWN) + plots(figures)
    body += details("All metrics", _accuracy_table(results, METRICS))
    if len(results["seeds"]) > 1:
        body += details("Each seed by itself", _seed_table(methods))
    without = results["data"]["n_test_without_labels"]
    if without:
        body += paragraph(
            f"{without:,} test documents carry no label: they score 0 and count.", "soft"
        )
    return Section("accuracy", "Accuracy", body)


def _accuracy_table(results: Results, metrics: Sequence[str]) -> str:
    methods = finished(results)
    best = {m: max(methods, key=lambda each: each["metrics"][m]["value"])["name"] for m in metrics}
    level = {m: _level_with(results, m, best[m]) for m in metrics}
    rows = [
        [
            method_cell(method["name"], i),
            *(
                _metric_cell(
                    method["metrics"][m], method["name"] == best[m], method["name"] in level[m]
                )
                for m in metrics
            ),
        ]
        for i, method in enumerate(methods)
    ]
    return table(["method", *metrics], rows)


def _level_with(results: Results, metric: str, best: str) -> set[str]:
    """Return the methods that may be as good as the best one."""
    pairs = [
        each for each in results["differences"][metric] if best in (each["one"], each["other"])
    ]
    return {
        each["other"] if each["one"] == best else each["one"]
        for each in pairs
        if not each["significant"]
    }


def _metric_cell(spread: Mapping[str, float], is_best: bool, is_level: bool) -> Cell:
    half = (spread["high"] - spread["low"]) / 2
    mark = " ≈" if is_level else ""
    html = f"{spread['value']:.2f} <small>±{half:.2f}{mark}</small>"
    return Cell(html, spread["value"], "best" if is_best else "")


def _intervals(methods: Sequence[Method], metric: str) -> str:
    rows = [
        Interval(method["name"], **method["metrics"][metric], number=i)
        for i, method in enumerate(methods)
    ]
    return intervals(rows, x_label=metric)


def _seed_table(methods: Sequence[Method]) -> str:
    rows = [
        [method_cell(method["name"], i), Cell(str(one["seed"]), one["seed"])]
        + [Cell(f"{one[metric]:.2f}", one[metric]) for metric in SHOWN]
        for i, method in enumerate(methods)
        for one in method["by_seed"]
    ]
    return table(["method", "seed", *SHOWN], rows)


# ------------------------------------------------------------------------------------ differences


def write_differences(results: Results) -> Section | None:
    """Show which methods are really better than which."""
    names = results.get("compared", [])
    if len(names) < 2:
        return None
    n_pairs = len(names) * (len(names) - 1) // 2
    intro = (
        "Points by which the method of the row is ahead of that of the column. Coloured: "
        "significant, that is, with less than 5 % chance of being wrong about any of the "
        f"{n_pairs} pairs of one metric (paired bootstrap, Holm's correction). Not coloured: may "
        "be chance. The correction is for the pairs of one metric: whoever looks at many metrics "
        "will find some lead by chance all the same."
    )
    tables = {metric: _difference_table(results, metric, names) for metric in TESTED}
    body = paragraph(intro, "soft")
    for metric, html in tables.items():
        shown = f"<h3>{metric}</h3>{html}"
        body += shown if metric in PLOTTED else details(metric, html)
    return Section("differences", "Which differences are real", body)


def _difference_table(results: Results, metric: str, names: Sequence[str]) -> str:
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in results["differences"][metric]:
        known[each["one"], each["other"]] = each
        turned = {"value": -each["value"], "low": -each["high"], "high": -each["low"]}
        known[each["other"], each["one"]] = {**each, **turned}
    rows = [
        [method_cell(one, i), *(_difference_cell(known.get((one, other))) for other in names)]
        for i, one in enumerate(names)
    ]
    return table(["", *names], rows, "matrix")


def _difference_cell(each: Mapping[str, Any] | None) -> Cell:
    if each is None:
        return Cell("–")
    kind = ("good" if each["value"] > 0 else "bad") if each["significant"] else ""
    tip = (
        f"{each['low']:+.2f} to {each['high']:+.2f}, p = {each['p']:.4f}, "
        f"corrected {each['p_corrected']:.4f}"
    )
    return Cell(f'<span title="{tip}">{_signed(each["value"])}</span>', each["value"], kind)


def _signed(value: float) -> str:
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")


# ------------------------------------------------------------------------------------------ bands


def write_bands(results: Results) -> Section | None:
    """Show who finds frequent and who finds rare labels."""
    methods = finished(results)
    if not methods:
        return None
    bands = methods[0]["bands"]
    spans = [f"{band['name']}: {_span(band)}" for band in bands]
    intro = (
        "The head is the most frequent labels that together hold half of all training pairs, the "
        "torso the next up to 80 %, the tail the rest; unseen labels have no training document. "
        "Shown is how many of the true labels of a band stand among the first five."
    )
    groups = [band["name"] for band in bands]
    series = [
        Series(method["name"], range(len(bands)), [band["recall@5"] for band in method["bands"]], i)
        for i, method in enumerate(methods)
    ]
    rows = [
        [method_cell(method["name"], i)]
        + [Cell(f"{band['recall@5']:.2f}", band["recall@5"]) for band in method["bands"]]
        + [Cell(f"{band['P@5']:.2f}", band["P@5"]) for band in method["bands"]]
        for i, method in enumerate(methods)
    ]
    headings = [f"{kind}, {group}" for kind in ("recall@5", "part of P@5") for group in groups]
    body = paragraph(intro, "soft") + bullets(spans)
    body += plots([figure(bars(groups, series, y_label="recall@5, %"), "Recall@5 by frequency")])
    return Section("bands", "Frequent and rare labels", body + table(["method", *headings], rows))


def _span(band: Mapping[str, Any]) -> str:
    least, most = band["min_documents"], band["max_documents"]
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return (
        f"{band['n_labels']:,} labels with {each} training documents, "
        f"{band['share']:.1f} % of the test pairs"
    )


# ------------------------------------------------------------------------------------------- time


def write_costs(results: Results) -> Section | None:
    """Show what each method takes, and accuracy against it."""
    methods = finished(results)
    if not methods:
        return None
    rows = [
        [method_cell(method["name"], i), *(_cost_cell(method["measured"], each) for each in COSTS)]
        for i, method in enumerate(methods)
    ]
    machine = results["machine"]
    intro = (
        f"On {machine['threads']} of {machine['cores']} cores "
        f"({machine['processor'] or 'unknown processor'}). Training and labelling begin with the "
        f"document as it is and give {results['depth']} labels; for several seeds, medians. One "
        "document: median and 99th percentile of single calls. What a process does once, such as "
        "compiling, is not counted."
    )
    gpus = [f"{m['name']} was trained on {m['gpu']}." for m in methods if m["gpu"]]
    notes = [f"{m['name']}: {m['note']}." for m in methods if m["note"]]
    made = [m["measured"]["rows_seconds"] for m in methods if m["measured"].get("rows_seconds")]
    if made:
        notes.append(
            "Peers read rows only. Making rows of the training texts took "
            f"{made[0]:.1f} s of our code, which is counted for each of them."
        )
    figures = [_cost_plot(methods, metric, *cost) for metric in ("P@1", "P@5") for cost in _AGAINST]
    body = paragraph(intro, "soft") + bullets([*gpus, *notes])
    body += table(["method", *(each.heading for each in COSTS)], rows) + plots(figures)
    return Section("costs", "Time and memory", body)


_AGAINST = (
    ("train_seconds", "training time, s"),
    ("single_p50_ms", "time for one document, ms"),
)


def _cost_cell(measured: Mapping[str, float], column: Column) -> Cell:
    value = measured.get(column.key)
    return Cell("") if value is None else Cell(f"{value:,.{column.digits}f}", value)


def _cost_plot(methods: Sequence[Method], metric: str, key: str, x_label: str) -> str:
    points = [
        Interval(method["name"], **method["metrics"][metric], x=method["measured"][key], number=i)
        for i, method in enumerate(methods)
    ]
    svg = scatter(points, x_label=x_label, y_label=metric, log_x=True)
    return figure(svg, f"{metric} against {x_label.split(',')[0]}; up and left is better")


# ----------------------------------------------------------------------------------------- curves


def write_curves(results: Results) -> Section | None:
    """Show how the loss fell and the validation rose, where a model has such a thing."""
    losses, rises = [], []
    for i, method in enumerate(finished(results)):
        for part, records in list(method["curves"].items())[:MOST_CURVES]:
            name = f"{method['name']}: {part}" if part else method["name"]
            losses.append(_curve(name, records, i, "epoch", "loss"))
            rises.append(_curve(name, records, i, "seconds", "P@1"))
    rises = [each for each in rises if len(each.x) > 1]
    figures = [
        figure(lines([each], x_label="epoch", y_label="loss"), f"Training loss of {each.name}")
        for each in losses
    ]
    if rises:
        svg = lines(rises, x_label="seconds of training", y_label="P@1")
        figures.append(figure(svg, "P@1 on documents held out of the training part"))
    return Section("curves", "Training curves", plots(figures)) if figures else None


def _curve(
    name: str, records: Sequence[Mapping[str, float]], number: int, x: str, y: str
) -> Series:
    known = [record for record in records if x in record and y in record]
    return Series(name, [record[x] for record in known], [record[y] for record in known], number)


# ------------------------------------------------------------------------------------ calibration


def write_calibration(results: Results) -> Section | None:
    """Show whether of the labels given 0.8 about 80 % are right."""
    methods = finished(results)
    if not methods:
        return None
    intro = (
        "Scores of the first five labels of each test document against how many of them are right: "
        "on the dashed line a score is a probability. The expected calibration error (ECE) is the "
        "mean distance from it. “Calibrated” is what remains after isotonic calibration learned "
        "on four fifths of the test documents and judged on the last; `longtail train` calibrates "
        "on held-out training documents by itself."
    )
    series = [
        Series(
            method["name"],
            [each["score"] for each in shown],
            [each["right"] for each in shown],
            i,
        )
        for i, method in enumerate(methods)
        if (shown := [b for b in method["calibration"]["bins"] if b["n"] >= FEWEST_IN_BIN])
    ]
    rows = [
        [method_cell(method["name"], i), *_error_cells(method["calibration"])]
        for i, method in enumerate(methods)
    ]
    svg = lines(series, x_label="score", y_label="share that is right", diagonal=True)
    body = paragraph(intro, "soft") + table(["method", "ECE as given", "ECE calibrated"], rows)
    body += plots([figure(svg, "Reliability of the scores as they are given")])
    return Section("calibration", "Calibration", body)


def _error_cells(calibration: Mapping[str, Any]) -> list[Cell]:
    values = [calibration["ece"], calibration.get("ece_calibrated")]
    return [Cell("") if value is None else Cell(f"{value:.4f}", value) for value in values]


# ---------------------------------------------------------------------------------- disagreements


def write_agreement(results: Results) -> Section | None:
    """Show how often methods agree, and what each alone finds."""
    names = results.get("compared", [])
    if len(names) < 2:
        return None
    found = results["agreement"]
    intro = (
        f"At least one method has a right first label for {found['any_right']:.1f} % of the "
        f"documents, all of them for {found['all_right']:.1f} %. The table says how often two "
        "methods give the same first label, in percent, and how often a method alone is right."
    )
    rows = [
        [method_cell(name, i)]
        + [Cell(f"{value:.1f}", value) for value in found["same_first"][i]]
        + [Cell(f"{found['only_right'][i]:.1f}", found["only_right"][i])]
        for i, name in enumerate(names)
    ]
    body = paragraph(intro, "soft") + table(["", *names, "alone right"], rows, "matrix")
    return Section("agreement", "Where methods agree", body)


def write_disagreements(results: Results) -> Section | None:
    """Show the documents on which methods differ most."""
    shown = results.get("disagreements", [])
    if not shown:
        return None
    intro = (
        f"The {len(shown)} test documents on which the methods' nDCG@5 differ most, and among "
        "equals those whose lists share least. Marked labels are right."
    )
    articles = "".join(_article(each, results["compared"]) for each in shown)
    return Section("documents", "Where methods disagree", paragraph(intro, "soft") + articles)


def _article(document: Mapping[str, Any], names: Sequence[str]) -> str:
    text = document["text"]
    if text is None:
        text = f"(a row with {document['n_features']:,} features)"
    more = document["n_true"] - len(document["true"])
    true = "".join(_label(name, True) for name in document["true"])
    true += escape(f" and {more} more") if more else ""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{_labels(labels)}</td></tr>"
        for name, labels in zip(names, document["predicted"], strict=True)
    )
    place = f'<span class="soft">(test document {document["row"]:,})</span>'
    return (
        f"<article><p><bdi>{escape(text)}</bdi> {place}"
        f"</p><table><tr><td>true</td><td>{true or 'none'}</td></tr>{rows}</table></article>"
    )


def _labels(labels: Sequence[Mapping[str, Any]]) -> str:
    return "".join(_label(f"{each['label']} {each['score']:.2f}", each["right"]) for each in labels)


def _label(text: str, right: bool) -> str:
    return f'<bdi class="label{" right" if right else ""}">{escape(text)}</bdi>'


# -------------------------------------------------------------------------------------- provenance


def write_provenance(results: Results) -> Section | None:
    """Say how to repeat all this."""
    machine, data = results["machine"], results["data"]
    facts = [
        f"Test documents: {data['origin']}.",
        f"Seeds: {', '.join(map(str, results['seeds']))}; PS metrics with the "
        f"{results['propensity']} constants.",
        f"Machine: {machine['processor'] or 'unknown processor'}, {machine['threads']} of "
        f"{machine['cores']} cores used, {machine['memory_gb']} GB, {machine['system']}, "
        f"Python {machine['python']}.",
        *(f"GPU: {gpu}." for gpu in sorted({m["gpu"] for m in results["methods"] if m["gpu"]})),
        "Packages: " + ", ".join(f"{n} {v}" for n, v in machine["packages"].items()) + ".",
        f"The comparison took {results['seconds']:,.0f} s in its last go.",
    ]
    sums = [[Cell(escape(name)), Cell(value)] for name, value in results["files"].items()]
    sums += [
        [Cell(f"the {part} part as read"), Cell(value)] for part, value in data["sha256"].items()
    ]
    rows = [
        [
            Cell(escape(m["name"])),
            Cell(escape(f"{m['package']} {m['version']}")),
            Cell(escape(_spell(m["setting"]))),
        ]
        for m in results["methods"]
    ]
    body = f"<pre>{escape(results['command'])}</pre>{bullets(facts)}"
    body += table(["method", "package", "settings"], rows, "text")
    body += details("Checksums (SHA-256)", table(["file", "SHA-256"], sums, "text"))
    return Section("provenance", "How to repeat this", body)


def _spell(setting: Mapping[str, Any]) -> str:
    named = {key: value for key, value in setting.items() if key != "model"}
    return ", ".join(f"{key}={value}" for key, value in named.items()) or "defaults"


SECTIONS: tuple[Callable[[Results], Section | None], ...] = (
    write_accuracy,
    write_differences,
    write_bands,
    write_costs,
    write_curves,
    write_calibration,
    write_agreement,
    write_disagreements,
    write_provenance,
)
