"""Candidates: the labels that some members propose, described by what all members say of them.

Members that are quick propose labels, each its best ones; all members then score all that were
proposed. A candidate is described by numbers:

    log s, −log(1 − s), 1/(1 + r)    for each voice: its score s, and r: how many proposed labels
                                     it scores higher; the third is 0 where s is
    log share                        the label's share of the training documents

A member is a voice of its own, but for seeds of one model, which speak with one: the mean of their
scores. To weigh them one by one, the stacker would have to learn differences that are chance.
The description of a label depends on what was proposed, never on what is asked for beside it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.calibration import choose_depth
from longtail.models.base import Model
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import in_threads
from longtail.topk import TopK

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Result = TypeVar("Result")

LEAST = 1e-4  # scores below are alike
LEAST_SHARE = 1e-6
PER_VOICE = 3  # numbers that describe a candidate for each voice
COMMON = 1  # and those that have nothing to do with a voice
STEP, MOST_PROPOSED = 10, 50  # labels that a member proposes: so many more at a time, at most
USUAL_PROPOSED = 30  # where there is nothing to choose by
WORTH = 0.01  # of all right labels; a step that finds fewer more of them does not pay


class Said(NamedTuple):
    """What members say of labels of n documents, each voice once.

    Attributes:
        labels: (n, c) the labels of each document, each once; -1 is none.
        n_proposed: so many columns, the first, hold what was proposed; others were asked for.
        scores: (voices, n, c) the scores of them.
    """

    labels: Ids
    n_proposed: int
    scores: Floats

    def part(self, first: int, last: int) -> "Said":
        """Return what is said of the documents first ≤ i < last."""
        return Said(self.labels[first:last], self.n_proposed, self.scores[:, first:last])

    def without(self, voice: int) -> "Said":
        """Return the same with one voice silent."""
        scores = self.scores.copy()
        scores[voice] = 0
        return self._replace(scores=scores)


class Candidates(NamedTuple):
    """The candidates of n documents, those of document i from start[i] to start[i + 1].

    Attributes:
        start: (n + 1) where the candidates of each document begin.
        labels: (m) the labels.
        inputs: (m, 3 · voices + 1) what is known of each, as the module docstring lists it.
    """

    start: NDArray[np.int64]
    labels: Ids
    inputs: Floats


def count_inputs(n_voices: int) -> int:
    """Return how many numbers describe a candidate."""
    return PER_VOICE * n_voices + COMMON


def voice_of(member: str) -> str:
    """Return the name without the number of a seed, which all seeds have in common."""
    model, _, number = member.rpartition("-")
    return model if model and number.isdecimal() else member


def list_voices(members: Iterable[str]) -> dict[str, list[int]]:
    """Return the places of the members of each voice, by what their names have in common."""
    voices: dict[str, list[int]] = {}
    for place, name in enumerate(members):
        voices.setdefault(voice_of(name), []).append(place)
    return voices


def join_voices(members: Iterable[str], scores: Sequence[Floats] | Floats) -> Floats:
    """Return the scores of each voice, from those of the members."""
    voices = list_voices(members).values()
    return np.stack([np.mean([scores[place] for place in places], axis=0) for places in voices])


# -- asking members ---------------------------------------------------------------------------


class Asked:
    """A member, and documents that it has read."""

    def __init__(self, member: Model, documents: list[str] | sp.csr_matrix, X: sp.csr_matrix):
        self.member, self.reads_rows = member, member.trained_on == "rows"
        self.n_known = len(member.label_names_)  # further labels came with an update
        self.read = (
            member.read_rows(X)
            if self.reads_rows
            else member.read_texts(cast(list[str], documents))
        )

    def propose(self, k: int) -> TopK:
        """Return its best labels."""
        k = min(k, self.n_known)
        if self.reads_rows:
            return self.member.predict_rows(self.read, k)
        return self.member.predict_texts(self.read, k)

    def score(self, labels: Ids) -> Floats:
        """Return its scores of labels (n, c); 0 for those that it does not know."""
        if labels.size and labels.max() >= self.n_known:
            labels = np.where(labels < self.n_known, labels, np.int32(-1))
        if self.reads_rows:
            return self.member.score_rows(self.read, labels)
        return self.member.score_texts(self.read, labels)

    def complete(self, top: TopK, labels: Ids, n_labels: int) -> Floats:
        """Return its scores of labels (n, c), of which its own list has some already."""
        known, missing = spread(top.labels, top.scores, labels, n_labels)
        if not (missing >= 0).any():
            return known
        scores: Floats = np.where(missing >= 0, self.score(missing), known)
        return scores


def ask(
    members: Mapping[str, Model],
    proposers: Mapping[str, int],
    documents: list[str] | sp.csr_matrix,
    X: sp.csr_matrix,
    n_labels: int,
    *,
    also: Ids | None = None,
    k: int = 1,
) -> Said:
    """Let some members propose labels, and all score what was proposed.

    Args:
        members: by name.
        proposers: how many labels those propose that do.
        documents: the documents, as texts if there are texts.
        X: the same as rows.
        n_labels: how many labels there are.
        also: (n, c) labels that are asked for beside; -1 is none.
        k: how many labels are wanted; further ones than are proposed are then asked for as well.
    """

    def read(name: str) -> tuple[Asked, TopK | None]:
        asked = Asked(members[name], documents, X)
        width = min(proposers.get(name, 0), n_labels)
        return asked, asked.propose(width) if width else None

    one = X.shape[0] == 1
    found = _for_each(members, read, at_once=one)
    labels = unite([top.labels for _, top in found.values() if top is not None], n_labels)
    n_proposed = labels.shape[1]
    if k > max(proposers.values()):
        more = [asked.propose(min(k, n_labels)).labels for asked, top in found.values() if top]
        also = np.hstack(more if also is None else [*more, also])
    if also is not None:
        beside = unite([also], n_labels)
        _, new = spread(labels, np.zeros(labels.shape, np.float32), beside, n_labels)
        labels = np.hstack([labels, new])

    def score(name: str) -> Floats:
        asked, top = found[name]
        return asked.score(labels) if top is None else asked.complete(top, labels, n_labels)

    scores = np.stack(list(_for_each(members, score, at_once=one).values()))
    n_known = [len(member.label_names_) for member in members.values()]
    if min(n_known) < n_labels:
        guess_unknown(scores, labels, n_known)
    return Said(labels, n_proposed, join_voices(members, scores))


def guess_unknown(scores: Floats, labels: Ids, n_known: Sequence[int]) -> None:
    """Let members say of labels that are new to them what the others say on average, in place."""
    knows = np.stack([labels < n for n in n_known])
    mean = (scores * knows).sum(axis=0) / np.maximum(knows.sum(axis=0), 1)
    scores[~knows] = np.broadcast_to(mean, scores.shape)[~knows]


def _for_each(
    members: Mapping[str, Model], function: Callable[[str], Result], at_once: bool
) -> dict[str, Result]:
    """Return what a function returns for each member; at once, the slowest is begun first.

    Otherwise they follow one another, as each has work for all threads.
    """
    if not at_once:
        return {name: function(name) for name in members}
    order = sorted(members, key=lambda name: -members[name].milliseconds)
    found = dict(zip(order, in_threads(function, [(name,) for name in order]), strict=True))
    return {name: found[name] for name in members}


def choose_proposers(
    lists: Mapping[str, TopK], Y: sp.csr_matrix, costs: Mapping[str, float]
) -> dict[str, int]:
    """Choose which members propose, and how many labels each, by the right labels they find.

    Steps of ten labels are added, until none finds another hundredth of all right labels; a
    member's first step must find as many hundredths as the milliseconds that the member takes, if
    that is more. The step that finds most for what it must find comes first. The best member for
    its cost proposes at least what probabilities are learned from.

    Args:
        lists: of the members, for documents that they were not trained on.
        Y: (n, n_labels) the true labels of these documents.
        costs: milliseconds that members take for a document; 1 unless given.
    """
    places = {name: _find_places(top, Y) for name, top in lists.items()}
    first = max(lists, key=lambda name: ((places[name] < STEP).sum() / costs.get(name, 1.0), name))
    widths = {first: min(choose_depth(Y), MOST_PROPOSED)}
    found = places[first] < widths[first]

    def widen(name: str) -> int:
        return min(widths.get(name, 0) + STEP, MOST_PROPOSED)

    def find_rates() -> dict[str, float]:
        """Return what another step of each member finds, as a multiple of what it must find."""
        rates = {}
        for name, place in places.items():
            if widths.get(name, 0) < MOST_PROPOSED:
                gain = float((place[~found] < widen(name)).sum()) / max(len(found), 1)
                dear = 1.0 if name in widths else max(1.0, costs.get(name, 1.0))
                rates[name] = gain / (WORTH * dear)
        return rates

    while paying := {name: rate for name, rate in find_rates().items() if rate >= 1}:
        best = max(paying, key=lambda name: paying[name])
        widths[best] = widen(best)
        found |= places[best] < widths[best]
    return {name: widths[name] for name in lists if name in widths}


def _find_places(top: TopK, Y: sp.csr_matrix) -> NDArray[np.int64]:
    """Return for each pair of Y the place of its label in its document's list, none if behind."""
    n_labels = np.int64(Y.shape[1])
    pairs = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr)) * n_labels + Y.indices
    listed = (np.arange(len(top))[:, None] * n_labels + top.labels).ravel()
    listed[top.labels.ravel() < 0] = -1
    order = np.argsort(listed, kind="stable")
    at = order[np.minimum(np.searchsorted(listed, pairs, sorter=order), len(listed) - 1)]
    return np.where(listed[at] == pairs, at % top.k, MOST_PROPOSED)


# -- describing -------------------------------------------------------------------------------


def unite(lists: Sequence[Ids], n_labels: int) -> Ids:
    """Return the labels (n, c) in any list of each document, each once, -1 behind."""
    united, most = _unite(np.hstack(lists), n_labels)
    return np.ascontiguousarray(united[:, : max(most, 1)])


@njit(nogil=True, cache=True)
def _unite(labels: Ids, n_labels: int) -> tuple[Ids, int]:
    seen = np.full(n_labels, -1, np.int32)  # the last document that has the label
    united = np.full(labels.shape, np.int32(-1))
    most = 0
    for i in range(len(labels)):
        size = 0
        for label in labels[i]:
            if label >= 0 and seen[label] != i:
                seen[label] = i
                united[i, size] = label
                size += 1
        most = max(most, size)
    return united, most


@njit(nogil=True, cache=True)
def spread(top_labels: Ids, top_scores: Floats, labels: Ids, n_labels: int) -> tuple[Floats, Ids]:
    """Return what a list says of labels (n, c), 0 where it is silent; and those it is silent of."""
    scores, missing = np.zeros(labels.shape, np.float32), labels.copy()
    place = np.full(n_labels, -1, np.int32)
    for i in range(len(labels)):
        for rank in range(top_labels.shape[1]):
            if top_labels[i, rank] >= 0:
                place[top_labels[i, rank]] = rank
        for j in range(labels.shape[1]):
            if labels[i, j] >= 0 and place[labels[i, j]] >= 0:
                scores[i, j] = top_scores[i, place[labels[i, j]]]
                missing[i, j] = -1
        for label in top_labels[i]:
            if label >= 0:
                place[label] = -1
    return scores, missing


def describe_candidates(said: Said, shares: Floats) -> Candidates:
    """Return the description of labels; `shares` (n_labels,) are those of training documents."""
    labels, scores = np.ascontiguousarray(said.labels), np.ascontiguousarray(said.scores)
    return Candidates(*_describe_all(labels, said.n_proposed, scores, shares))


@njit(nogil=True, cache=True)
def _describe_all(
    labels: Ids, n_proposed: int, scores: Floats, shares: Floats
) -> tuple[NDArray[np.int64], Ids, Floats]:
    n_voices, n, c = scores.shape
    total = 0
    for i in range(n):
        for j in range(c):
            total += labels[i, j] >= 0
    start = np.zeros(n + 1, np.int64)
    found = np.empty(total, np.int32)
    inputs = np.empty((total, PER_VOICE * n_voices + COMMON), np.float32)
    ordered = np.empty(n_proposed, np.float32)
    m = 0
    for i in range(n):
        for j in range(c):
            if labels[i, j] >= 0:
                found[m] = labels[i, j]
                inputs[m, PER_VOICE * n_voices] = np.log(max(shares[labels[i, j]], LEAST_SHARE))
                m += 1
        for voice in range(n_voices):
            size = 0
            for j in range(n_proposed):
                if labels[i, j] >= 0:
                    ordered[size] = scores[voice, i, j]
                    size += 1
            ordered[:size].sort()
            at = start[i]
            for j in range(c):
                if labels[i, j] >= 0:
                    row = inputs[at, PER_VOICE * voice : PER_VOICE * voice + PER_VOICE]
                    _describe(scores[voice, i, j], ordered[:size], row)
                    at += 1
        start[i + 1] = m
    return start, found, inputs


@njit(nogil=True, cache=True)
def _describe(score: np.float32, ordered: Floats, row: Floats) -> None:
    """Write what a score says, among those of the labels that were proposed, in rising order."""
    row[0] = np.log(max(score, np.float32(LEAST)))
    row[1] = -np.log(max(1 - score, np.float32(LEAST)))
    higher = len(ordered) - np.searchsorted(ordered, score, side="right")
    row[2] = 1 / (1 + higher) if score > 0 else 0
