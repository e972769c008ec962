"""Explanation: what a model looked at, as data, as shaded text and as a small HTML file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.text.tfidf import Tfidf

Span = tuple[int, int]

FOR, AGAINST = (255, 140, 0), (70, 130, 200)  # the colours of weights above and below 0


@dataclass(frozen=True)
class Term:
    """A word, a pair of words or a feature.

    Attributes:
        name: the word; "feature 17" where the model was trained on rows.
        weight: its share of all weights; below 0 if it speaks against the label.
        spans: where it stands in the text, as (start, end) in characters.
    """

    name: str
    weight: float
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Neighbour:
    """A training document that is near.

    Attributes:
        number: as the how many-th document, from 0, it came to the model.
        similarity: how near it is; 1 is the same place.
        labels: the names of its labels.
        text: how its text begins; None if the model keeps none.
    """

    number: int
    similarity: float
    labels: tuple[str, ...]
    text: str | None = None

    def named(self) -> str:
        """Return how its text begins, or its number."""
        return f"document {self.number}" if self.text is None else self.text


@dataclass(frozen=True)
class Vote:
    """What one part of a fusion says of a label.

    Attributes:
        part: the name of the part.
        label: the name of the label.
        rank: the label's place in the part's list, from 1; None if it is not there.
        score: what the part gives it.
        weight: what the label's log-odds lose if the part is not asked.
    """

    member: str
    label: str
    rank: int | None
    score: float
    weight: float

    def describe(self) -> str:
        """Return such as 1. 0.93 (+2.1)."""
        place = "–" if self.rank is None else f"{self.rank}. {self.score:.2f}"
        return f"{place} ({self.weight:+.1f})"


@dataclass(frozen=True)
class Explanation:
    """How much each word of a document weighs.

    Attributes:
        text: the document; None if it was a row.
        label: for which label; None if for all.
        terms: heaviest first; the absolute values of their weights add up to 1.
        parts: for a model made of several, how much of the score each of them gave.
        neighbours: for a model that asks training documents, the nearest of them, nearest first.
        votes: for a fusion, what each of its parts says of each label.
        own: for a fusion, the words that parts look at themselves, for those that can tell.
    """

    text: str | None
    label: str | None
    terms: Sequence[Term]
    members: Mapping[str, float] = field(default_factory=dict)
    neighbours: Sequence[Neighbour] = ()
    votes: Sequence[Vote] = ()
    own: Mapping[str, Sequence[Term]] = field(default_factory=dict)

    def shades(self) -> list[tuple[str, float]]:
        """Cut the text into pieces, each with its shade from −1 to 1; 1 is the heaviest word."""
        if self.text is None:
            return []
        weights = np.zeros(len(self.text))
        for term in self.terms:
            for start, end in term.spans:
                weights[start:end] += term.weight
        most = np.abs(weights).max(initial=0)
        shades = (weights / most if most else weights).tolist()
        pieces = groupby(zip(self.text, shades, strict=True), key=lambda pair: pair[1])
        return [("".join(char for char, _ in run), shade) for shade, run in pieces]

    def own_lines(self) -> list[str]:
        """Return a line for each part that tells which words it looks at."""
        return [
            f"{part} by itself: "
            + ", ".join(f"{term.name} {term.weight:.2f}" for term in terms[:8])
            for part, terms in self.own.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            "text": self.text,
            "label": self.label,
            "terms": _as_dicts(self.terms),
            "members": dict(self.members),
            "neighbours": [asdict(neighbour) for neighbour in self.neighbours],
            "votes": [asdict(vote) for vote in self.votes],
            "own": {part: _as_dicts(terms) for part, terms in self.own.items()},
        }

    def to_html(self, labels: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return a page that needs nothing else: the text, darker where a word is heavier.

        Args:
            labels: predictions to show above the text, as `TopK.named` gives them.
        """
        named = ", ".join(f"{escape(each['label'])} {each['score']:.2f}" for each in labels)
        title = "What the model looks at"
        if self.label is not None:
            title = f"What speaks for and against {self.label}"
        return _PAGE.format(
            title=escape(title),
            labels=f"<p>Labels: {named}</p>" if named else "",
            text="".join(_mark(piece, shade) for piece, shade in self.shades()),
            votes=_vote_rows(self.votes),
            words=_word_rows(self.terms[:20]),
            own="".join(f"<p>{escape(line)}</p>" for line in self.own_lines()),
            neighbours=_neighbour_rows(self.neighbours),
        )


def _as_dicts(terms: Sequence[Term]) -> list[dict[str, Any]]:
    return [
        {"term": term.name, "weight": round(term.weight, 6), "spans": term.spans} for term in terms
    ]


def explain_terms(
    text: str | None,
    label: str | None,
    features: Tfidf | None,
    columns: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
) -> Explanation:
    """Build the explanation of one row: its columns and how much each of them weighs."""
    total = float(np.abs(weights).sum()) or 1.0
    names, places = None, {}
    if features is not None:
        names = features.feature_names_
        places = features.locate(text or "")
    terms = [
        Term(
            name=f"feature {column}" if names is None else names[column],
            weight=float(weights[i]) / total,
            spans=tuple(places.get(column, ())),
        )
        for i, column in enumerate(columns.tolist())
    ]
    return Explanation(text, label, sorted(terms, key=lambda term: (-abs(term.weight), term.name)))


def colour(shade: float) -> tuple[int, int, int]:
    """Return the background of a shade from −1 to 1 on white."""
    strong = FOR if shade > 0 else AGAINST
    red, green, blue = (round(255 + abs(shade) * (part - 255)) for part in strong)
    return red, green, blue


def _mark(piece: str, shade: float) -> str:
    if not shade:
        return escape(piece)
    red, green, blue = colour(shade)
    return f'<mark style="background:#{red:02x}{green:02x}{blue:02x}">{escape(piece)}</mark>'


def _word_rows(terms: Sequence[Term]) -> str:
    if not terms:
        return ""
    rows = "".join(
        f"<tr><td>{escape(term.name)}</td><td>{term.weight:.3f}</td></tr>" for term in terms
    )
    return f'<table class="words"><tr><th>word</th><th>weight</th></tr>{rows}</table>'


def _vote_rows(votes: Sequence[Vote]) -> str:
    if not votes:
        return ""
    parts = list(dict.fromkeys(vote.member for vote in votes))
    rows = []
    for label in dict.fromkeys(vote.label for vote in votes):
        said = {vote.member: vote for vote in votes if vote.label == label}
        cells = "".join(f"<td>{escape(said[part].describe())}</td>" for part in parts)
        rows.append(f"<tr><td>{escape(label)}</td>{cells}</tr>")
    head = "".join(f"<th>{escape(part)}</th>" for part in parts)
    note = "Place in the part's list, score there, and what asking the part adds to the log-odds."
    return f"<table><tr><th>label</th>{head}</tr>{''.join(rows)}</table><p>{note}</p>"


def _neighbour_rows(neighbours: Sequence[Neighbour]) -> str:
    if not neighbours:
        return ""
    rows = "".join(
        f"<tr><td>{each.similarity:.2f}</td><td>{escape(', '.join(each.labels))}</td>"
        f"<td>{escape(each.named())}</td></tr>"
        for each in neighbours
    )
    head = "<tr><th>near</th><th>its labels</th><th>training document</th></tr>"
    return f"<table>{head}{rows}</table>"


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 17px/1.7 system-ui, sans-serif; max-width: 44em; margin: 3em auto; padding: 0 1em;
       color: #1b1b1b; background: #fff; }}
h1 {{ font-size: 1.2em; }}
mark {{ color: inherit; padding: .12em 0; border-radius: .2em; }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #ddd;
        border-radius: .4em; padding: 1em; }}
table {{ border-collapse: collapse; font-size: .85em; margin-top: 1.5em; }}
td, th {{ padding: .1em 1.2em .1em 0; text-align: left; vertical-align: top; }}
.words td + td {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style>
<h1>{title}</h1>
{labels}
<div class="text">{text}</div>
{votes}
{words}
{own}
{neighbours}
</html>
"""
