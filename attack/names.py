"""Hostile names: labels, texts, paths and options whose characters steer terminals and browsers."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from shutil import rmtree

from typer.testing import Result

from attack.case import Attack, Attempt, Outcome
from attack.commands import TOPICS, call, judge, write_documents
from longtail.visible import is_hidden

# What a terminal, a browser, a template or rich would act on.
HOSTILE = [
    *("\x1b[31m", "\x1b]0;title\x07", "\x9b1m", "\x90q\x9c", "\x08\x08", "\r", "\n", "\t", "\x7f"),
    *("\u202e", "\u2066", "\u2069", "\u200e", "\u061c", "\u200b", "\ufeff", "\u2028", "\u2029"),
    *("\x85", "\U000e0041", "\ud800", "\udc80", "\ufffe"),
    *("<script>alert(1)</script>", "</style>", "<img src=x onerror=alert(1)>", "\"' onclick=x "),
    *("-->", "<!--", "]]>", "&lt;", "javascript:alert(1)", "{{7*7}}", "{% raw %}", "${7*7}"),
    *(
        "[red]",
        "[/red]",
        "[link=http://x]",
        ":beer:",
        "%s%n",
        "\\x1b",
        "Error: ",
        "`",
        "|",
        "ä",
        "語",
    ),
]
TAGS = {
    *("html", "head", "meta", "title", "style", "script", "body", "h1", "h2", "h3", "p", "div"),
    *("table", "thead", "tbody", "tr", "th", "td", "small", "span", "mark", "bdi", "figure", "nav"),
    *("figcaption", "details", "summary", "ul", "li", "a", "section", "article", "pre", "code"),
    *("svg", "line", "text", "circle", "rect", "path", "polyline"),
}
ATTRIBUTES = re.compile(r"on\w+|style|src|srcset|action|formaction|xlink:href", re.IGNORECASE)


class _Page(HTMLParser):
    """Refuses tags and attributes that are not ours."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at a tag; a title inside of a plot is its tip."""
        if tag not in TAGS:
            raise AssertionError(f"a tag <{tag}> came in")
        for name, value in attrs:
            if ATTRIBUTES.fullmatch(name) or (name == "href" and not (value or "").startswith("#")):
                raise AssertionError(f"an attribute {name}={value} came in")


def check_page(text: str) -> None:
    """Make sure that a page holds our tags and no hidden character."""
    _Page().feed(text)
    _check_hidden(text, "\n\t")
    if text.count("<script") > 1 or text.count("<style") != 1:
        raise AssertionError("a script or a style came in")


def check_output(done: Result) -> Outcome:
    """Make sure that a command printed no hidden character and ended as it should."""
    _check_hidden(done.stdout, "\n")
    _check_hidden(done.stderr, "\n")
    return judge(done.exit_code, done.stderr)


def _check_hidden(text: str, allowed: str) -> None:
    found = {char for char in text if is_hidden(char) and char not in allowed}
    if found:
        raise AssertionError(f"{found!r} came through: {text!r}"[:1500])


def make_name(random: Random) -> str:
    """Return a text of a few hostile pieces."""
    return "".join(random.choice([*HOSTILE, "word"]) for _ in range(random.randrange(1, 4)))


def make_path(random: Random) -> str:
    """Return a hostile name that a file can have; half a character stands for a broken byte."""
    name = make_name(random).replace("/", "-").replace("\ud800", "\udcff")
    return name.lstrip("-.") or "x"


def _as_read(label: str) -> str:
    """Return a label as it is read: half a character becomes the sign for a broken one."""
    return re.sub("[\ud800-\udfff]", "\ufffd", label).strip()


class Hostile:
    """A model and documents with hostile names, and the commands that show them."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        names = {label: make_name(random) + label for label in TOPICS}
        self.model = folder / make_path(random)
        self.data = write_documents(folder / (make_path(random) + ".jsonl"), 40, names)
        check_output(
            call("train", self.data, "--out", self.model, "--model", "knn", "--valid", "0")
        )

    def explain(self) -> Result:
        """Explain a text as a page, as JSON, or on the terminal."""
        text = f"hops {make_name(self.random)} rook {make_name(self.random)}"
        page = self.folder / "page.html"
        done = call("explain", self.model, "--html", page, "--overwrite", "--", text)
        if page.exists():
            check_page(page.read_text(encoding="utf-8"))
            page.unlink()
        return done

    def predict(self) -> Result:
        """Label texts; what comes out are the exact names, in JSON."""
        done = call("predict", self.model, "-", stdin=b"hops malt\nrook pawn\n")
        lines = self.data.read_text(encoding="utf-8").splitlines()
        known = {_as_read(label) for line in lines for label in json.loads(line)["labels"]}
        for line in done.stdout.splitlines():
            given = {each["label"] for each in json.loads(line)["labels"]}
            if not {label.strip() for label in given} <= known:
                raise AssertionError(f"{given - known} is no label")
        return done

    def update(self) -> Result:
        """Add a new label."""
        line = json.dumps({"text": "brand new", "labels": [make_name(self.random)]})
        new = self.folder / "new.jsonl"
        new.write_text(line + "\n", encoding="utf-8")
        return call("update", self.model, new, "--out", self.folder / make_path(self.random))

    def evaluate(self) -> Result:
        """Measure, with a plot."""
        page = self.folder / "reliability.html"
        done = call("evaluate", self.model, self.data, "--reliability", page, "--overwrite")
        if page.exists():
            check_page(page.read_text(encoding="utf-8"))
        return done

    def verify(self) -> Result:
        """Verify a model whose manifest tells lies about itself."""
        manifest = self.model / "manifest.json"
        if manifest.exists():
            found = json.loads(manifest.read_text())
            found[self.random.choice(["longtail_version", "model"])] = make_name(self.random)
            manifest.write_text(json.dumps(found))
        return call("verify", self.model)

    def inspect(self) -> Result:
        """Look at the data."""
        return call("data", "info", self.data, *self.random.choice([[], ["--json", "-"]]))

    def mistake(self) -> Result:
        """Name things that do not exist."""
        name = make_name(self.random)
        commands = [
            ["verify", self.folder / make_path(self.random)],
            ["data", "info", self.folder / make_path(self.random)],
            ["data", "info", self._write_table(name)],
            ["models", name],
            [name],
            ["train", self.data, "--out", self.folder / "x", "--set", f"{name}=1"],
            ["train", self.data, "--out", self.folder / "x", "--model", name],
            ["train", self.data, "--out", self.folder / "x", f"--{name}"],
            ["train", self.data, "--out", self.folder / "x", "--seed", name],
            ["explain", self.model, "hops", "--label", name],
            ["predict", self.model, self.folder / make_path(self.random)],
            ["evaluate", self.model, self.data, "--propensity", name],
            ["compare", self.data, "--models", name, "--out", self.folder / "x"],
        ]
        return call(*self.random.choice(commands))

    def _write_table(self, name: str) -> Path:
        """Write a table none of whose columns is known."""
        column = re.sub(r"[\s\ud800-\udfff,\"]", "", name)
        table = self.folder / "table.csv"
        table.write_text(f"{column},b\n1,{column}\n", encoding="utf-8")
        return table


SHOWN: list[Callable[[Hostile], Result]] = [
    *(Hostile.explain, Hostile.predict, Hostile.update, Hostile.evaluate, Hostile.inspect),
    *(Hostile.mistake, Hostile.mistake, Hostile.verify),
]


def _prepare(folder: Path) -> Attempt:
    def attempt(random: Random) -> Outcome:
        place = folder / "case"
        rmtree(place, ignore_errors=True)
        place.mkdir()
        hostile = Hostile(place, random)
        outcomes = {check_output(show(hostile)) for show in random.sample(SHOWN, 3)}
        return "refused" if outcomes == {"refused"} else "answered"

    return attempt


ATTACKS = [
    Attack(
        "names",
        "no hidden character reaches a terminal or a page, and no tag but ours",
        _prepare,
    )
]
