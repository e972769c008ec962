"""Why a fusion gives a label: the vote of each member, and the effect of each word.

The weight of a member is what the log-odds of the label lose if it is silent. The weight of
a word is what they lose if the word is taken out of the document, whatever the members are: each
variant of the document is predicted like any other.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.explanation import Span, Term, Vote
from longtail.models.fusion.candidates import Candidates, Said, describe_candidates
from longtail.models.fusion.stacking import Stacker
from longtail.models.leaving_out import LogOdds, find_shares, leave_out_cells
from longtail.text.tfidf import Tfidf

MOST_WORDS = 300  # of a document that are taken out in turn


class Variants(NamedTuple):
    """A document without each of its words.

    Attributes:
        names: of the words, or of the features.
        spans: where each word stands in the text.
        documents: the texts or rows, in the order of the names.
    """

    names: list[str]
    spans: list[tuple[Span, ...]]
    documents: Any


def leave_out_words(text: str, features: Tfidf) -> Variants:
    """Return the text without each of the words that the features know."""
    known = features.feature_names_
    places = {known[column]: spans for column, spans in features.locate(text).items()}
    words = [name for name in places if " " not in name][:MOST_WORDS]
    return Variants(
        words,
        [tuple(places[word]) for word in words],
        [_cut_out(text, places[word]) for word in words],
    )


def _cut_out(text: str, spans: Sequence[Span]) -> str:
    for start, end in sorted(spans, reverse=True):
        text = text[:start] + text[end:]
    return text


def leave_out_features(row: sp.csr_matrix) -> Variants:
    """Return the row without each of its features, the largest first where they are many."""
    order, documents = leave_out_cells(row)
    names = [f"feature {row.indices[cell]}" for cell in order.tolist()]
    return Variants(names, [()] * len(names), documents)


def weigh_terms(variants: Variants, before: LogOdds, after: LogOdds) -> list[Term]:
    """Return the words by what the labels' log-odds (n_labels) lose without each of them."""
    losses = (before - after) @ find_shares(before)
    total = float(np.abs(losses).sum()) or 1.0
    found = zip(variants.names, variants.spans, losses.tolist(), strict=True)
    terms = [Term(name, loss / total, spans) for name, spans, loss in found if loss]
    return sorted(terms, key=lambda term: (-abs(term.weight), term.name))


def log_odds_of(stacker: Stacker, candidates: Candidates, labels: Sequence[int]) -> LogOdds:
    """Return the log-odds (n, labels) of labels that are candidates of all documents."""
    log_odds = stacker.log_odds(candidates.inputs)
    n = len(candidates.start) - 1
    found = np.zeros((n, len(labels)))
    for i in range(n):
        own = slice(candidates.start[i], candidates.start[i + 1])
        known = dict(zip(candidates.labels[own].tolist(), log_odds[own].tolist(), strict=True))
        found[i] = [known[label] for label in labels]
    return found


def count_votes(
    stacker: Stacker,
    said: Said,
    members: Sequence[str],
    shares: NDArray[np.float32],
    labels: Sequence[int],
    names: Callable[[int], str],
) -> list[Vote]:
    """Return each member's place and score for each label, and its effect on the log-odds."""
    before = log_odds_of(stacker, describe_candidates(said, shares), labels)[0]
    votes = []
    for number, member in enumerate(members):
        after = log_odds_of(stacker, describe_candidates(said.without(number), shares), labels)[0]
        for i, label in enumerate(labels):
            rank, score = _find(said, number, label)
            votes.append(Vote(member, names(label), rank, score, float(before[i] - after[i])))
    return votes


def _find(said: Said, member: int, label: int) -> tuple[int | None, float]:
    """Return the place of a label among those proposed, and its score; None and 0 without any."""
    scores = said.scores[member, 0]
    score = float(scores[said.labels[0] == label][0])
    proposed = scores[: said.n_proposed][said.labels[0, : said.n_proposed] >= 0]
    return (int((proposed > score).sum()) + 1, score) if score > 0 else (None, 0.0)
