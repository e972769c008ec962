"""Why a fusion gives a label: the vote of each member, and the effect of each word.

Seeds of one model have one vote. The weight of a vote is what the log-odds of the label lose
if it is silent. The weight of
a word is what they lose if the word is taken out of the document, whatever the members are: each
variant of the document is predicted like any other.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.explanation import (
    Explanation,
    Neighbour,
    Span,
    Term,
    Vote,
    explain_terms,
)
from longtail.models.base import Model
from longtail.models.fusion.candidates import (
    Candidates,
    Said,
    ask,
    describe_candidates,
    list_voices,
)
from longtail.models.fusion.stacking import Stacker
from longtail.models.leaving_out import LogOdds, find_shares, leave_out_cells
from longtail.text.beginnings import BEGINS
from longtail.text.tfidf import Tfidf

if TYPE_CHECKING:
    from longtail.models.fusion.model import Fusion

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
    """Return the text without each of the words that the features know.

    Words of which only the beginning is known are taken out by that.
    """
    known = features.feature_names_
    places = {known[column]: spans for column, spans in features.locate(text).items()}
    words = [name for name in places if not name.endswith(BEGINS) and " " not in name]
    covered = {span for word in words for span in places[word]}
    begin = [name for name in places if name.endswith(BEGINS)]
    words += [name for name in begin if not covered.issuperset(places[name])]
    words = words[:MOST_WORDS]
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
    voices: Sequence[str],
    shares: NDArray[np.float32],
    labels: Sequence[int],
    names: Callable[[int], str],
) -> list[Vote]:
    """Return each voice's place and score for each label, and its effect on the log-odds."""
    before = log_odds_of(stacker, describe_candidates(said, shares), labels)[0]
    votes = []
    for number, voice in enumerate(voices):
        after = log_odds_of(stacker, describe_candidates(said.without(number), shares), labels)[0]
        for i, label in enumerate(labels):
            rank, score = _find(said, number, label)
            votes.append(Vote(voice, names(label), rank, score, float(before[i] - after[i])))
    return votes


def _find(said: Said, member: int, label: int) -> tuple[int | None, float]:
    """Return the place of a label among those proposed, and its score; None and 0 without any."""
    scores = said.scores[member, 0]
    score = float(scores[said.labels[0] == label][0])
    proposed = scores[: said.n_proposed][said.labels[0, : said.n_proposed] >= 0]
    return (int((proposed > score).sum()) + 1, score) if score > 0 else (None, 0.0)


# -- a whole explanation ----------------------------------------------------------------------


def explain_document(
    fusion: "Fusion",
    text: str | None,
    documents: list[str] | sp.csr_matrix,
    X: sp.csr_matrix,
    label: str | None,
    asked: Sequence[int],
) -> Explanation:
    """Say which member voted for what, and which words weigh how much.

    Args:
        fusion: trained.
        text: the document, if it is a text.
        documents: the document alone, as members read it.
        X: its row.
        label: the name of the label that is asked for, None for the best ones.
        asked: the labels to explain.
    """
    said, members = _ask_about(fusion, asked, documents, X), fusion.members_
    names = fusion.label_names_.__getitem__
    votes = count_votes(
        fusion.stacker_, said, list(list_voices(members)), fusion.shares_, asked, names
    )
    wanted = None if label is None else asked[0]
    knowing = [member for member in members.values() if _knows(member, wanted)]
    similar = (member.find_similar(X, wanted) for member in knowing if X.nnz)
    neighbours: Sequence[Neighbour] = next(filter(None, similar), ())
    return Explanation(
        text,
        label,
        _leave_out_terms(fusion, text, documents, X, asked),
        members=_share_out(votes),
        neighbours=neighbours,
        votes=votes,
        member_terms=_explain_members(fusion, text, label, wanted, X),
    )


def _ask_about(fusion: "Fusion", labels: Sequence[int], documents: Any, X: sp.csr_matrix) -> Said:
    """Return what members say of these labels, and of those that are proposed."""
    also = np.tile(np.array(labels, np.int32), (X.shape[0], 1))
    n_labels = len(fusion.shares_)
    return ask(fusion.members_, fusion.proposers_, documents, X, n_labels, also=also)


def _leave_out_terms(
    fusion: "Fusion", text: str | None, documents: Any, X: sp.csr_matrix, asked: Sequence[int]
) -> list[Term]:
    """Return what the labels lose without each word."""
    if text is not None and fusion.features_ is not None:
        variants = leave_out_words(text, fusion.features_)
        rows = fusion.features_.transform(variants.documents)
    else:
        variants = leave_out_features(X)
        rows = variants.documents
    if not variants.names:
        return []

    def judge(some: Any, their_rows: sp.csr_matrix) -> LogOdds:
        said = _ask_about(fusion, asked, some, their_rows)
        return log_odds_of(fusion.stacker_, describe_candidates(said, fusion.shares_), asked)

    after = judge(variants.documents, rows)
    return weigh_terms(variants, judge(documents, X)[0], after)


def _explain_members(
    fusion: "Fusion", text: str | None, label: str | None, wanted: int | None, X: sp.csr_matrix
) -> dict[str, Sequence[Term]]:
    """Return the words that each member looks at by itself, for members that can explain."""
    found: dict[str, Sequence[Term]] = {}
    for name, member in fusion.members_.items():
        if not member.can_explain or not _knows(member, wanted):
            continue
        if member.trained_on == "texts" and text is not None:
            found[name] = member.explain(text, label).terms
        elif X.nnz:
            weights = member.explain_row(X, wanted)
            own = explain_terms(text, label, fusion.features_, X.indices, weights)
            found[name] = own.terms
    return found


def _knows(member: Model, label: int | None) -> bool:
    """Whether a member has the label that is asked for; others may have brought it later."""
    return label is None or label < len(member.label_names_)


def _share_out(votes: Sequence[Vote]) -> dict[str, float]:
    """Return which share of all weights comes from each member."""
    given: dict[str, float] = {}
    for vote in votes:
        given[vote.member] = given.get(vote.member, 0.0) + vote.weight
    total = sum(map(abs, given.values())) or 1.0
    return {member: weight / total for member, weight in given.items()}
