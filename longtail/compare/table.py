"""The results as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from longtail.compare.noise import KINDS

Results = Mapping[str, Any]


# What is shown of methods trained with wrong labels: on which documents, of them which metric.
NOISE_METRICS = (
    ("test", "P@1", "P@1"),
    ("test", "P@3", "P@3"),
    ("test", "P@5", "P@5"),
    ("clean", "P@5", "P@5, clean"),
)


class Column(NamedTuple):
    """One measure: its key in the results, its heading, and which direction is good."""

    key: str
    heading: str
    digits: int
    higher_is_better: bool = False


METRICS = tuple(
    f"{name}@{k}" for name in ("P", "nDCG", "PSP", "PSnDCG", "recall") for k in (1, 3, 5)
)
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "recall@5")
COSTS = (
    Column("train_seconds", "train s", 1),
    Column("train_cpu_seconds", "CPU s", 1),
    Column("train_peak_mb", "peak MB", 0),
    Column("model_mb", "model MB", 1),
    Column("documents_per_second", "documents/s", 0, higher_is_better=True),
    Column("single_p50_ms", "one p50 ms", 2),
    Column("single_p99_ms", "one p99 ms", 2),
)


def write_table(results: Results) -> str:
    """Return the whole of table.md."""
    data = results["data"]
    lines = [
        f"# {escape(data['name'])}",
        "",
        f"{data['n_train']:,} training and {data['n_test']:,} test documents ({data['origin']}), "
        f"{data['n_labels']:,} labels. {explain_spread(results)}",
        "",
        accuracy_table(results),
        "",
        cost_table(results),
    ]
    lines += _noise_lines(results["noise"]) if "noise" in results else []
    failed = [method for method in results["methods"] if method["error"]]
    lines += [""] * bool(failed)
    lines += [f"- {escape(method['name'])} failed: {escape(method['error'])}" for method in failed]
    lines += [
        f"- not installed: {each['package']} ({each['command']})" for each in results["missing"]
    ]
    sentences = summarize(results, "P@1") + summarize(results, "PSP@5")
    lines += ["", *(f"- {escape(sentence)}" for sentence in sentences)]
    lines += ["", f"    {results['command']}"]
    return "\n".join(lines) + "\n"


def accuracy_table(results: Results) -> str:
    """Return one row a method: its accuracy, and how many seeds it is the mean of."""
    repeated = has_seeds(results)
    rows = [
        [
            escape(method["name"]),
            *([str(len(method["seeds"]))] if repeated else []),
            *(spell_metric(method["metrics"][name], repeated) for name in SHOWN),
        ]
        for method in finished(results)
    ]
    return markdown(["method", *(["seeds"] if repeated else []), *SHOWN], rows)


def cost_table(results: Results) -> str:
    """Return one row a method: its time and memory."""
    rows = [
        [escape(method["name"]), *(spell_cost(method["measured"], column) for column in COSTS)]
        for method in finished(results)
    ]
    return markdown(["method", *(column.heading for column in COSTS)], rows)


def _noise_lines(noise: Mapping[str, Any]) -> list[str]:
    """Return the section of table.md on wrong labels in training."""
    lines = ["", "## Wrong labels in training", "", explain_noise(noise)]
    for kind in noise["kinds"]:
        headings, rows = noise_rows(noise, kind)
        shown = [[escape(name), *cells] for name, *cells in rows]
        lines += ["", f"{KINDS[kind].capitalize()}:", "", markdown(headings, shown)]
    failures = [escape(line) for line in noise_failures(noise)]
    return [*lines, *([""] if failures else []), *(f"- {line}" for line in failures)]


def explain_noise(noise: Mapping[str, Any]) -> str:
    """Say what was spoiled, and what the numbers are measured on."""
    n_seeds = max((len(point["seeds"]) for point in noise["points"]), default=1)
    spread = f"; mean ± standard deviation over {n_seeds} seeds" if n_seeds > 1 else ""
    return (
        f"Labels of {noise['n_spoiled']:,} training documents were spoiled at each rate; "
        f"{noise['n_clean']:,} others stayed clean, and nothing was trained on them. "
        "P@k in percent, on the test documents and, for choosing settings, on the clean ones"
        f"{spread}."
    )


def noise_rows(noise: Mapping[str, Any], kind: str) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of one kind of noise: a row a method and metric, a column a rate."""
    points = {(p["name"], p["rate"]): p for p in noise["points"] if p["kind"] == kind}
    names = list(dict.fromkeys(name for name, _ in points))
    rates = sorted({rate for _, rate in points})
    rows = [
        [name, heading, *(_noise_cell(points.get((name, rate)), part, metric) for rate in rates)]
        for name in names
        for part, metric, heading in NOISE_METRICS
    ]
    return ["method", "", *(f"{100 * rate:g} %" for rate in rates)], rows


def _noise_cell(point: Mapping[str, Any] | None, part: str, metric: str) -> str:
    return "" if point is None else spell_metric(point[part][metric], repeated=True)


def noise_failures(noise: Mapping[str, Any]) -> list[str]:
    """Return a line for each run with noise that failed."""
    return [
        f"{each['name']} ({each['noise']}, seed {each['seed']}) failed: {each['error']}"
        for each in noise["failures"]
    ]


def finished(results: Results) -> list[dict[str, Any]]:
    """Return the methods that have results."""
    return [method for method in results["methods"] if "metrics" in method]


def has_seeds(results: Results) -> bool:
    """Whether some method was trained with several seeds, so that ± is their deviation."""
    return any(len(method["seeds"]) > 1 for method in finished(results))


def explain_spread(results: Results) -> str:
    """Say what the numbers of the accuracy tables are."""
    if has_seeds(results):
        return "Percentages: mean ± standard deviation (n − 1) over the seeds."
    return "Percentages ± half of the 95 % confidence interval."


def half_interval(metric: Mapping[str, float]) -> float:
    """Return half of the 95 % confidence interval of a metric."""
    return (metric["high"] - metric["low"]) / 2


def spell_metric(metric: Mapping[str, Any], repeated: bool) -> str:
    """Return "64.45 ±0.21": the deviation over seeds if there are several, else the interval."""
    spread = metric["sd"] if repeated else half_interval(metric)
    return f"{metric['value']:.2f}" + ("" if spread is None else f" ±{spread:.2f}")


def summarize(results: Results, metric: str) -> list[str]:
    """Say which method is highest in a metric, and whether its leads are significant."""
    methods = finished(results)
    if len(methods) < 2:
        return []
    values = {method["name"]: method["metrics"][metric]["value"] for method in methods}
    highest = max(values.values())
    leaders = [name for name, value in values.items() if highest - value < 1e-9]
    best = leaders[0]
    ahead: list[str] = []
    level: list[str] = []
    for each in results["differences"][metric]:
        if best in (each["one"], each["other"]):
            other = each["other"] if each["one"] == best else each["one"]
            if other not in leaders:
                (ahead if each["significant"] else level).append(other)
    verb = "is" if len(leaders) == 1 else "are"
    shown = spell_metric(next(m for m in methods if m["name"] == best)["metrics"][metric], True)
    sentence = f"{metric}: {join(leaders)} {verb} highest ({shown})"
    if ahead:
        sentence += f"; the lead over {join(ahead)} is significant"
    if level:
        sentence += f"; the lead over {join(level)} may be chance"
    return [sentence + "."]


def join(names: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def spell_cost(measured: Mapping[str, float], column: Column) -> str:
    """Return one of COSTS as it is shown; nothing if it was not measured."""
    value = measured.get(column.key)
    return "" if value is None else f"{value:,.{column.digits}f}"


def escape(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line."""
    plain = " ".join(str(text).split())
    for mark in "\\`*_[]<>|#":
        plain = plain.replace(mark, "\\" + mark)
    return plain


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, padded so that it also reads well on a terminal."""
    widths = [max(len(cell) for cell in cells) for cells in zip(headings, *rows, strict=True)]
    lines = [_line(headings, widths), _line(["-" * width for width in widths], widths)]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(padded)} |"
