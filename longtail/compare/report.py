"""The report of a comparison: one HTML page, from the results to the data that its template shows.

Each section has a function here, which returns None where there is nothing to show; its sentences
are in `longtail/pages/templates/report.html`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from longtail.compare.noise import KINDS
from longtail.compare.table import (
    COSTS,
    METRICS,
    SHOWN,
    explain_noise,
    finished,
    half_interval,
    has_seeds,
    join,
    noise_failures,
    noise_rows,
    summarize,
)
from longtail.pages.content import Cell, Figure, Table
from longtail.pages.render import render
from longtail.pages.svg import Interval, Series, bars, color, intervals, lines, scatter

Results = Mapping[str, Any]
Method = Mapping[str, Any]
Section = Mapping[str, Any]

SUMMARIZED = ("P@1", "P@5", "PSP@5")  # in the first sentences
PLOTTED = ("P@1", "P@5", "PSP@1", "PSP@5")
MOST_CURVES = 6  # of one method, which may have many members
FEWEST_IN_BIN = 10  # predictions, for a point of the reliability plot
COST_AXES = (
    ("train_seconds", "training time, s"),
    ("single_p50_ms", "time for one document, ms"),
)


def write_report(results: Results) -> str:
    """Return the report as a page that needs no other file."""
    built = {name: build(results) for name, build in SECTIONS.items()}
    return render(
        "report.html",
        results=results,
        sentences=[line for metric in SUMMARIZED for line in summarize(results, metric)],
        failures=_failures(results),
        sections={name: section for name, section in built.items() if section is not None},
    )


def _failures(results: Results) -> list[str]:
    """Return a line for each method that failed, and one for the packages that are missing."""
    found = []
    for method in results["methods"]:
        if method["error"]:
            seeds = f" (seed {join([str(seed) for seed in method['failed_seeds']])})"
            which = seeds if method["seeds"] else ""
            found.append(f"{method['name']}{which} failed: {method['error']}")
    found += noise_failures(results["noise"]) if "noise" in results else []
    if missing := [each["package"] for each in results["missing"]]:
        found.append(
            f"Not installed and left out: {join(missing)} (pip install {' '.join(missing)})"
        )
    return found


def _method_cell(name: str, number: int) -> Cell:
    return Cell(name, dot=color(number))


def _number_cell(value: float | None, digits: int) -> Cell:
    return Cell("") if value is None else Cell(f"{value:,.{digits}f}", value)


def _method_table(
    headings: Sequence[str], methods: Sequence[Method], cells: Callable[[Method], list[Cell]]
) -> Table:
    """Return one row a method: its name, then what `cells` makes of it."""
    rows = [
        [_method_cell(method["name"], number), *cells(method)]
        for number, method in enumerate(methods)
    ]
    return Table(["method", *headings], rows)


# --------------------------------------------------------------------------------------- accuracy


def _accuracy(results: Results) -> Section | None:
    """Show what each method reaches, and how certain that is."""
    methods = finished(results)
    if not methods:
        return None
    figures = [
        Figure(_plot_intervals(methods, metric), f"{metric} with its 95 % confidence interval")
        for metric in PLOTTED
    ]
    return {
        "repeated": has_seeds(results),
        "table": _accuracy_table(results, SHOWN),
        "figures": figures,
        "all_metrics": _accuracy_table(results, METRICS),
        "seeds": _seed_table(methods) if has_seeds(results) else None,
    }


def _accuracy_table(results: Results, metrics: Sequence[str]) -> Table:
    methods = finished(results)
    best = {m: max(methods, key=lambda each: each["metrics"][m]["value"])["name"] for m in metrics}
    close = {m: _not_significantly_below(results, m, best[m]) for m in metrics}
    repeated = has_seeds(results)

    def cells(method: Method) -> list[Cell]:
        name, n_seeds = method["name"], len(method["seeds"])
        return [_number_cell(n_seeds, 0)] * repeated + [
            _metric_cell(method["metrics"][m], repeated, name == best[m], name in close[m])
            for m in metrics
        ]

    return _method_table([*["seeds"] * repeated, *metrics], methods, cells)


def _not_significantly_below(results: Results, metric: str, best: str) -> set[str]:
    """Return the methods that may be as good as the best one."""
    return {
        each["other"] if each["one"] == best else each["one"]
        for each in results["differences"][metric]
        if best in (each["one"], each["other"]) and not each["significant"]
    }


def _metric_cell(metric: Mapping[str, Any], repeated: bool, is_best: bool, is_close: bool) -> Cell:
    """Show a value ± its deviation over seeds, or half of its interval if there is one seed."""
    spread = metric["sd"] if repeated else half_interval(metric)
    return Cell(
        f"{metric['value']:.2f}",
        metric["value"],
        note=("" if spread is None else f"±{spread:.2f}") + " ≈" * is_close,
        tip=f"95 % confidence interval {metric['low']:.2f} to {metric['high']:.2f}",
        css="best" if is_best else "",
    )


def _interval(method: Method, metric: str, number: int, x: float = 0.0) -> Interval:
    found = method["metrics"][metric]
    return Interval(method["name"], found["value"], found["low"], found["high"], x, number)


def _plot_intervals(methods: Sequence[Method], metric: str) -> Markup:
    rows = [_interval(method, metric, i) for i, method in enumerate(methods)]
    return intervals(rows, x_label=metric)


def _seed_table(methods: Sequence[Method]) -> Table:
    rows = [
        [_method_cell(method["name"], i), Cell(str(one["seed"]), one["seed"])]
        + [_number_cell(one[metric], 2) for metric in SHOWN]
        for i, method in enumerate(methods)
        for one in method["by_seed"]
    ]
    return Table(["method", "seed", *SHOWN], rows)


# ------------------------------------------------------------------------------------ differences


def _differences(results: Results) -> Section | None:
    """Show which methods are better than which, and where that may be chance."""
    names = results.get("compared", [])
    if len(names) < 2:
        return None
    tables = [
        (metric, _difference_table(results, metric, names), metric in PLOTTED) for metric in SHOWN
    ]
    return {"n_pairs": len(names) * (len(names) - 1) // 2, "tables": tables}


def _difference_table(results: Results, metric: str, names: Sequence[str]) -> Table:
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in results["differences"][metric]:
        known[each["one"], each["other"]] = each
        turned = {"value": -each["value"], "low": -each["high"], "high": -each["low"]}
        known[each["other"], each["one"]] = {**each, **turned}
    rows = [
        [_method_cell(one, i), *(_difference_cell(known.get((one, other))) for other in names)]
        for i, one in enumerate(names)
    ]
    return Table(["", *names], rows)


def _difference_cell(each: Mapping[str, Any] | None) -> Cell:
    if each is None:
        return Cell("–")
    tip = (
        f"{each['low']:+.2f} to {each['high']:+.2f}, p = {each['p']:.4f}, "
        f"corrected {each['p_corrected']:.4f}"
    )
    css = ("good" if each["value"] > 0 else "bad") if each["significant"] else ""
    return Cell(_signed(each["value"]), each["value"], tip=tip, css=css)


def _signed(value: float) -> str:
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}".replace("-", "−")


# ------------------------------------------------------------------------------------------ noise


def _noise(results: Results) -> Section | None:
    """Show what wrong labels in training cost each method."""
    noise = results.get("noise")
    if noise is None or not noise["points"]:
        return None
    figures = [
        Figure(_plot_noise(results, kind, metric), f"{metric} with {KINDS[kind]}")
        for metric in ("P@1", "P@3", "P@5")
        for kind in noise["kinds"]  # side by side
    ]
    tables = [(KINDS[kind].capitalize(), _noise_table(noise, kind)) for kind in noise["kinds"]]
    return {
        "explained": explain_noise(noise),
        "repeated": any(len(point["seeds"]) > 1 for point in noise["points"]),
        "figures": figures,
        "tables": tables,
    }


def _plot_noise(results: Results, kind: str, metric: str) -> Markup:
    series = []
    for i, method in enumerate(results["methods"]):
        points = [
            (100 * point["rate"], point["test"][metric])
            for point in results["noise"]["points"]
            if (point["kind"], point["name"]) == (kind, method["name"])
        ]
        if points:
            x, y = [rate for rate, _ in points], [found["value"] for _, found in points]
            spread = [found["sd"] or 0.0 for _, found in points]
            series.append(Series(method["name"], x, y, i, spread))
    return lines(series, x_label="spoiled labels, %", y_label=metric)


def _noise_table(noise: Mapping[str, Any], kind: str) -> Table:
    headings, rows = noise_rows(noise, kind)
    return _text_table(headings, rows)


# ------------------------------------------------------------------------------------------ bands


def _bands(results: Results) -> Section | None:
    """Show how well each method finds frequent and rare labels."""
    methods = finished(results)
    if not methods:
        return None
    bands = methods[0]["bands"]
    groups = [band["name"] for band in bands]
    series = [
        Series(method["name"], range(len(bands)), [band["recall@5"] for band in method["bands"]], i)
        for i, method in enumerate(methods)
    ]
    headings = [f"{metric}, {group}" for metric in ("recall@5", "share of P@5") for group in groups]

    def cells(method: Method) -> list[Cell]:
        return [_number_cell(b[key], 2) for key in ("recall@5", "P@5") for b in method["bands"]]

    return {
        "spans": [f"{band['name']}: {_span(band)}" for band in bands],
        "figures": [
            Figure(bars(groups, series, y_label="recall@5, %"), "Recall@5 by label frequency")
        ],
        "table": _method_table(headings, methods, cells),
    }


def _span(band: Mapping[str, Any]) -> str:
    least, most = band["min_documents"], band["max_documents"]
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return (
        f"{band['n_labels']:,} labels with {each} training documents, "
        f"{band['share']:.1f} % of the test pairs"
    )


# ------------------------------------------------------------------------------------------- time


def _costs(results: Results) -> Section | None:
    """Show how much time and memory each method needs, and accuracy against it."""
    methods = finished(results)
    if not methods:
        return None

    def cells(method: Method) -> list[Cell]:
        return [_number_cell(method["measured"].get(each.key), each.digits) for each in COSTS]

    return {
        "notes": _cost_notes(methods),
        "table": _method_table([each.heading for each in COSTS], methods, cells),
        "figures": [
            _plot_cost(methods, metric, *axis) for metric in ("P@1", "P@5") for axis in COST_AXES
        ],
    }


def _cost_notes(methods: Sequence[Method]) -> list[str]:
    notes = [f"{m['name']} was trained on {m['gpu']}." for m in methods if m["gpu"]]
    notes += [f"{m['name']}: {m['note']}." for m in methods if m["note"]]
    made = [m["measured"]["rows_seconds"] for m in methods if m["measured"].get("rows_seconds")]
    if made:
        notes.append(
            "Peers read feature rows only. Our code made the rows from the training texts in "
            f"{made[0]:.1f} s; this time is added to the training time of each peer."
        )
    return notes


def _plot_cost(methods: Sequence[Method], metric: str, key: str, x_label: str) -> Figure:
    points = [
        _interval(method, metric, i, x=method["measured"][key]) for i, method in enumerate(methods)
    ]
    svg = scatter(points, x_label=x_label, y_label=metric, log_x=True)
    return Figure(svg, f"{metric} against {x_label.split(',')[0]}; up and left is better")


# ----------------------------------------------------------------------------------------- curves


def _curves(results: Results) -> Section | None:
    """Show the loss and the held-out P@1 during training, for models that record them."""
    losses, rises = [], []
    for i, method in enumerate(finished(results)):
        for member, records in list(method["curves"].items())[:MOST_CURVES]:
            name = f"{method['name']}: {member}" if member else method["name"]
            losses.append(_curve(name, records, i, "epoch", "loss"))
            rises.append(_curve(name, records, i, "seconds", "P@1"))
    rises = [each for each in rises if len(each.x) > 1]
    figures = [
        Figure(lines([each], x_label="epoch", y_label="loss"), f"Training loss of {each.name}")
        for each in losses
    ]
    if rises:
        svg = lines(rises, x_label="seconds of training", y_label="P@1")
        figures.append(Figure(svg, "P@1 on held-out training documents"))
    return {"figures": figures} if figures else None


def _curve(
    name: str, records: Sequence[Mapping[str, float]], number: int, x: str, y: str
) -> Series:
    known = [record for record in records if x in record and y in record]
    return Series(name, [record[x] for record in known], [record[y] for record in known], number)


# ------------------------------------------------------------------------------------ calibration


def _calibration(results: Results) -> Section | None:
    """Show whether about 80 % of the labels with the score 0.8 are right."""
    methods = finished(results)
    if not methods:
        return None
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
    svg = lines(series, x_label="score", y_label="share that is right", diagonal=True)

    def cells(method: Method) -> list[Cell]:
        found = method["calibration"]
        return [_number_cell(found.get(key), 4) for key in ("ece", "ece_calibrated")]

    return {
        "table": _method_table(["ECE of the scores", "ECE calibrated"], methods, cells),
        "figures": [Figure(svg, "Reliability of the scores")],
    }


# ---------------------------------------------------------------------------------- disagreements


def _agreement(results: Results) -> Section | None:
    """Show how often methods agree, and how often only one of them is right."""
    names = results.get("compared", [])
    if len(names) < 2:
        return None
    found = results["agreement"]
    rows = [
        [_method_cell(name, i)]
        + [_number_cell(value, 1) for value in found["same_first"][i]]
        + [_number_cell(found["only_right"][i], 1)]
        for i, name in enumerate(names)
    ]
    return {"table": Table(["", *names, "only this one right"], rows)}


def _documents(results: Results) -> list[Section] | None:
    """Show the documents on which methods differ most."""
    shown = results.get("disagreements", [])
    return [_document(each, results["compared"]) for each in shown] or None


def _document(document: Mapping[str, Any], names: Sequence[str]) -> Section:
    text = document["text"]
    return {
        "row": document["row"],
        "text": f"(a row with {document['n_features']:,} features)" if text is None else text,
        "true": document["true"],
        "n_more": document["n_true"] - len(document["true"]),
        "predicted": list(zip(names, document["predicted"], strict=True)),
    }


# -------------------------------------------------------------------------------------- provenance


def _provenance(results: Results) -> Section:
    """Say how to repeat the comparison."""
    sums = list(results["files"].items())
    sums += [(f"the {name} split as read", s) for name, s in results["data"]["sha256"].items()]
    methods = [
        [m["name"], f"{m['package']} {m['version']}", _spell(m["setting"])]
        for m in results["methods"]
    ]
    return {
        "facts": _facts(results),
        "methods": _text_table(["method", "package", "settings"], methods),
        "checksums": _text_table(["file", "SHA-256"], sums),
    }


def _facts(results: Results) -> list[str]:
    machine = results["machine"]
    memory = "" if machine["memory_gb"] is None else f"{machine['memory_gb']} GB, "
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return [
        f"Test documents: {results['data']['origin']}.",
        f"Seeds: {', '.join(map(str, results['seeds']))}. "
        f"PS metrics with the {results['propensity']} constants.",
        f"Machine: {machine['processor'] or 'unknown processor'}, {machine['threads']} threads on "
        f"{machine['cores']} cores, {memory}{machine['system']}, Python {machine['python']}.",
        *(f"GPU: {gpu}." for gpu in sorted({m["gpu"] for m in results["methods"] if m["gpu"]})),
        f"Packages: {packages}.",
        f"The last run of the command took {results['seconds']:,.0f} s.",
    ]


def _text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(headings, [[Cell(text) for text in row] for row in rows])


def _spell(setting: Mapping[str, Any]) -> str:
    named = {key: value for key, value in setting.items() if key != "model"}
    return ", ".join(f"{key}={value}" for key, value in named.items()) or "defaults"


SECTIONS: dict[str, Callable[[Results], Any]] = {
    "accuracy": _accuracy,
    "differences": _differences,
    "noise": _noise,
    "bands": _bands,
    "costs": _costs,
    "curves": _curves,
    "calibration": _calibration,
    "agreement": _agreement,
    "documents": _documents,
    "provenance": _provenance,
}
