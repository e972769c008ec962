"""Explanation: which words, members and neighbours speak for a label; as data and as a page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.pages.content import Cell, Table
from longtail.text.tfidf import Tfidf

Span = tuple[int, int]

FOR, AGAINST = (255, 140, 0), (70, 130, 200)  # the colors of weights above and below 0
SHOWN = 20  # words on the page
SHOWN_OF_MEMBER = 8  # words of each member
VOTE_NOTE = (
    "For each member: rank of the label in its list, its score there, and in brackets the change "
    "of the label's log-odds by this member."
)


@dataclass(frozen=True)
class Term:
    """A word, a pair of words or a feature.

    Attributes:
        name: the word; "feature 17" where the model was trained on rows.
        weight: its share of all weights; below 0 if it speaks against the label.
        spans: its places in the text, as (start, end) in characters.
        loss: how much lower the label's score is without the word; None if it is not known.
        parts: what the weight is made of, such as tf-idf and attention, where a model can tell.
    """

    name: str
    weight: float
    spans: tuple[Span, ...] = ()
    loss: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Neighbour:
    """A similar training document.

    Attributes:
        number: its position among the training documents, from 0.
        similarity: 1 for the same vector.
        labels: the names of its labels.
        text: the snippet of its text; None if the model keeps none.
    """

    number: int
    similarity: float
    labels: tuple[str, ...]
    text: str | None = None

    def named(self) -> str:
        """Return the snippet of its text, or its number."""
        return f"document {self.number}" if self.text is None else self.text


@dataclass(frozen=True)
class Vote:
    """What one member of a fusion predicts for a label.

    Attributes:
        member: the name of the member.
        label: the name of the label.
        rank: the label's rank in the member's list, from 1; None if it is not there.
        score: the member's score of the label.
        weight: how much the log-odds of the label fall without this member.
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
        members: for a fusion, the share of each member in the score.
        neighbours: for a model that searches training documents, the nearest first.
        votes: for a fusion, what each member predicts for each label.
        member_terms: for a fusion, the terms of each member that can explain itself.
        notes: what else there is to say, such as the label's rank.
        is_attention: whether weights say where the model looked, and not what speaks for a label.
    """

    text: str | None
    label: str | None
    terms: Sequence[Term]
    members: Mapping[str, float] = field(default_factory=dict)
    neighbours: Sequence[Neighbour] = ()
    votes: Sequence[Vote] = ()
    member_terms: Mapping[str, Sequence[Term]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    is_attention: bool = False

    @property
    def heading(self) -> str:
        """What the weights say."""
        if self.label is None:
            return "What the model looks at"
        if self.is_attention:
            return f"Where the model looked for {self.label}"
        return f"What speaks for and against {self.label}"

    def shades(self) -> list[tuple[str, float]]:
        """Divide the text into pieces with shades from −1 to 1; 1 is the heaviest word."""
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

    def member_lines(self) -> list[str]:
        """Return a line with the heaviest words of each member that can explain itself."""
        return [
            f"{member} alone: "
            + ", ".join(f"{term.name} {term.weight:.2f}" for term in terms[:SHOWN_OF_MEMBER])
            for member, terms in self.member_terms.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON can hold it."""
        return {
            "text": self.text,
            "label": self.label,
            "terms": _as_dicts(self.terms),
            "notes": list(self.notes),
            "members": dict(self.members),
            "neighbours": [asdict(neighbour) for neighbour in self.neighbours],
            "votes": [asdict(vote) for vote in self.votes],
            "member_terms": {
                member: _as_dicts(terms) for member, terms in self.member_terms.items()
            },
        }

    def to_html(self, predictions: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return a page that needs no other file: the text, darker where a word is heavier.

        Args:
            predictions: labels to show above the text, as `TopK.named` gives them.
        """
        # Jinja2 takes longer to import than a prediction takes, and few ask for a page.
        from longtail.pages.render import render

        colors = [(piece, _hex(shade)) for piece, shade in self.shades()]
        return render(
            "explanation.html",
            rules="".join(_rule(color) for color in sorted({color for _, color in colors})),
            heading=self.heading,
            notes=self.notes,
            predictions=predictions,
            pieces=[(piece, f"c-{color}" if color else "") for piece, color in colors],
            votes=_vote_table(self.votes),
            vote_note=VOTE_NOTE,
            words=_word_table(self.terms[:SHOWN]),
            member_lines=self.member_lines(),
            neighbours=_neighbour_table(self.neighbours),
        )


def group_votes(votes: Sequence[Vote]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the members, and for each label the vote of each of them in words."""
    members = list(dict.fromkeys(vote.member for vote in votes))
    found: dict[str, dict[str, str]] = {}
    for vote in votes:
        found.setdefault(vote.label, {})[vote.member] = vote.describe()
    return members, {label: [said[m] for m in members] for label, said in found.items()}


def _as_dicts(terms: Sequence[Term]) -> list[dict[str, Any]]:
    return [
        {"term": term.name, "weight": round(term.weight, 6), "spans": term.spans}
        | ({} if term.loss is None else {"loss": round(term.loss, 6)})
        | ({"parts": {key: round(term.parts[key], 6) for key in term.parts}} if term.parts else {})
        for term in terms
    ]


def explain_terms(
    text: str | None,
    label: str | None,
    features: Tfidf | None,
    columns: NDArray[np.integer[Any]],
    weights: NDArray[np.floating[Any]],
    parts: Mapping[str, NDArray[np.floating[Any]]] | None = None,
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
            parts={name: float(values[i]) for name, values in (parts or {}).items()},
        )
        for i, column in enumerate(columns.tolist())
    ]
    return Explanation(text, label, sorted(terms, key=lambda term: (-abs(term.weight), term.name)))


def get_color(shade: float) -> tuple[int, int, int]:
    """Return the background of a shade from −1 to 1 on white, as red, green and blue."""
    strong = FOR if shade > 0 else AGAINST
    red, green, blue = (round(255 + abs(shade) * (channel - 255)) for channel in strong)
    return red, green, blue


def _hex(shade: float) -> str:
    """Return the digits of a shade's CSS color, "" for none."""
    return "{:02x}{:02x}{:02x}".format(*get_color(shade)) if shade else ""


def _rule(color: str) -> str:
    """Return the CSS of a color; a page's policy allows no style at the words themselves."""
    return f".c-{color} {{ background: #{color}; }}\n" if color else ""


def word_columns(terms: Sequence[Term]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return headings and rows: words, their weights, their parts, what a label loses."""
    rows: list[tuple[str, ...]] = [
        (each.name, f"{each.weight:.3f}", *(f"{part:.3f}" for part in each.parts.values()))
        for each in terms
    ]
    if all(each.loss is None for each in terms):
        return ["word", "weight", *(terms[0].parts if terms else ())], rows
    losses = ["" if each.loss is None else f"{each.loss:.3f}" for each in terms]
    added = [(*row, loss) for row, loss in zip(rows, losses, strict=True)]
    return ["word", "looked at", "lost without it"], added


def _word_table(terms: Sequence[Term]) -> Table | None:
    return _table(*word_columns(terms))


def _vote_table(votes: Sequence[Vote]) -> Table | None:
    members, rows = group_votes(votes)
    return _table(["label", *members], [(label, *said) for label, said in rows.items()])


def _neighbour_table(neighbours: Sequence[Neighbour]) -> Table | None:
    rows = [(f"{each.similarity:.2f}", ", ".join(each.labels), each.named()) for each in neighbours]
    return _table(["similarity", "labels", "training document"], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table | None:
    return Table(headings, [[Cell(text) for text in row] for row in rows]) if rows else None
