"""Matching: which names stand in a text, what that looks like, and how probable the label is.

A name is looked at if at least half of it is in the text, by the rarity of its words. What is seen
becomes a row of numbers:

    coverage        of the name, 1 if it is complete
    phrase          whether its words follow one another
    times, first, early, length     how often and where it stands, in how long a text
    within          share of its words that also belong to a longer name that is complete
    right           log-odds that the label was right where the complete name stood
    word            the same for the best of its words alone
    found           in how many training documents the complete name stood
    label, unseen   how many carry the label; whether none does
    words, rarest   the name's length, and the rarity of its rarest word in the text
    others          how many complete names the text holds

Two logistic regressions make a probability of it, one for complete names and one for others. A
label has that of its best name. Counts come from the training documents; those that the regressions
learn from get the counts of others (five folds), as new documents do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longtail.models.lexical.names import LEAST_COVERAGE, Names
from longtail.runtime.compiled import njit

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Pair = tuple[Ints, NDArray[np.int32]]  # where rows begin, and their entries

N_INPUTS = 15
MOST_NAMES = 2_000  # that are looked at for a text; those with rare words come first
USUAL = 2.0  # documents that an unknown rate counts as
PRIORS = (0.05, 0.25)  # that a label is right: part of its name is there, all of it
RIDGE = 1.0
STEPS = 30  # of Newton's method, at most


class Counts(NamedTuple):
    """What training documents say of names.

    Attributes:
        held: (n_stems,) how many documents hold a stem.
        word_right: (n_parts,) how many of those carry the label of the name.
        found: (n_names,) how many hold all stems of a name.
        right: (n_names,) how many of those carry its label.
        labels: (n_labels,) how many carry each label.
    """

    held: Ints
    word_right: Ints
    found: Ints
    right: Ints
    labels: Ints

    @classmethod
    def add(cls, counts: Sequence["Counts"]) -> "Counts":
        """Return the counts of all documents, from those of several groups."""
        return cls(*(np.sum(parts, axis=0) for parts in zip(*counts, strict=True)))

    def without(self, other: "Counts") -> "Counts":
        """Return the counts of the other documents."""
        return Counts(*(mine - its for mine, its in zip(self, other, strict=True)))


class Scratch(NamedTuple):
    """What is known of the text that is being read; `text` says of which an entry is, from 1.

    Attributes:
        text, first, times, longest: (n_stems,) where a stem stands first, how often, and the number
            of words of the longest complete name that it belongs to.
        met: (n_stems,) the stems of the text.
        name_text: (n_names,) for which text a name was looked at last, counted from 1.
        names: (MOST_NAMES,) those that are there, by half at least.
        coverage: (MOST_NAMES,) of each.
    """

    text: NDArray[np.int32]
    first: NDArray[np.int32]
    times: NDArray[np.int32]
    longest: NDArray[np.int32]
    met: NDArray[np.int32]
    name_text: NDArray[np.int32]
    names: NDArray[np.int32]
    coverage: Floats


@njit(nogil=True, cache=True)
def _make_scratch(names: Names) -> Scratch:
    n_stems, n_names = len(names.anchor_start) - 1, len(names.labels)
    return Scratch(
        np.zeros(n_stems, np.int32),
        np.empty(n_stems, np.int32),
        np.empty(n_stems, np.int32),
        np.empty(n_stems, np.int32),
        np.empty(n_stems, np.int32),
        np.zeros(n_names, np.int32),
        np.empty(MOST_NAMES, np.int32),
        np.empty(MOST_NAMES, np.float32),
    )


@njit(nogil=True, cache=True)
def _look(i: int, texts: Pair, names: Names, scratch: Scratch) -> tuple[int, int]:
    """Note the stems of text i and the names that are there; return how many there are of each."""
    start, stems = texts
    n_met, n_looks = 0, 0
    for place in range(start[i], start[i + 1]):
        stem = stems[place]
        if stem < 0:
            continue
        if scratch.text[stem] != i + 1:
            scratch.text[stem] = i + 1
            scratch.first[stem] = place - start[i]
            scratch.times[stem] = 0
            scratch.longest[stem] = 0
            scratch.met[n_met] = stem
            n_met += 1
            n_looks += names.anchor_start[stem + 1] - names.anchor_start[stem]
        scratch.times[stem] += 1
    if n_looks > MOST_NAMES:
        met = scratch.met[:n_met].copy()
        lists = names.anchor_start[met + 1] - names.anchor_start[met]
        scratch.met[:n_met] = met[np.argsort(lists, kind="mergesort")]
    n_names, n_looks = 0, 0
    for stem in scratch.met[:n_met]:
        for name in names.anchors[names.anchor_start[stem] : names.anchor_start[stem + 1]]:
            n_looks += 1
            if n_looks > MOST_NAMES:
                return n_met, n_names
            if scratch.name_text[name] == i + 1:
                continue
            scratch.name_text[name] = i + 1
            coverage = np.float32(0)
            for part in range(names.start[name], names.start[name + 1]):
                if scratch.text[names.stems[part]] == i + 1:
                    coverage += names.weights[part]
            if coverage >= LEAST_COVERAGE:
                scratch.names[n_names] = name
                scratch.coverage[n_names] = coverage
                n_names += 1
    return n_met, n_names


@njit(nogil=True, cache=True)
def _is_complete(i: int, name: int, names: Names, scratch: Scratch) -> bool:
    for part in range(names.start[name], names.start[name + 1]):
        if scratch.text[names.stems[part]] != i + 1:
            return False
    return True


@njit(nogil=True, cache=True)
def _note_complete(i: int, n_names: int, names: Names, scratch: Scratch) -> int:
    """Note at each stem the longest complete name with it; return how many names are complete."""
    n_complete = 0
    for name in scratch.names[:n_names]:
        if _is_complete(i, name, names, scratch):
            n_complete += 1
            length = names.start[name + 1] - names.start[name]
            for part in range(names.start[name], names.start[name + 1]):
                stem = names.stems[part]
                scratch.longest[stem] = max(scratch.longest[stem], length)
    return n_complete


@njit(nogil=True, cache=True)
def count_held(texts: Pair, n_stems: int) -> Ints:
    """Return how many texts hold each stem."""
    held, last = np.zeros(n_stems, np.int64), np.full(n_stems, -1, np.int64)
    for i in range(len(texts[0]) - 1):
        for stem in texts[1][texts[0][i] : texts[0][i + 1]]:
            if stem >= 0 and last[stem] != i:
                last[stem] = i
                held[stem] += 1
    return held


@njit(nogil=True, cache=True)
def count_matches(
    texts: Pair, chosen: Ints, labels: Pair, names: Names, n_labels: int
) -> tuple[Counts, int]:
    """Count in the `chosen` texts, whose labels are `labels`; also return how many matches are."""
    scratch = _make_scratch(names)
    name_start = np.searchsorted(names.labels, np.arange(n_labels + 1))
    counts = Counts(
        np.zeros(len(names.anchor_start) - 1, np.int64),
        np.zeros(len(names.stems), np.int64),
        np.zeros(len(names.labels), np.int64),
        np.zeros(len(names.labels), np.int64),
        np.zeros(n_labels, np.int64),
    )
    n_matches = 0
    for i in chosen:
        n_met, n_names = _look(i, texts, names, scratch)
        n_matches += n_names
        for stem in scratch.met[:n_met]:
            counts.held[stem] += 1
        for name in scratch.names[:n_names]:
            if _is_complete(i, name, names, scratch):
                counts.found[name] += 1
                counts.right[name] += _carries(labels, i, names.labels[name])
        for label in labels[1][labels[0][i] : labels[0][i + 1]]:
            counts.labels[label] += 1
            for part in range(names.start[name_start[label]], names.start[name_start[label + 1]]):
                counts.word_right[part] += scratch.text[names.stems[part]] == i + 1
    return counts, n_matches


@njit(nogil=True, cache=True)
def _carries(labels: Pair, i: int, label: int) -> bool:
    return bool((labels[1][labels[0][i] : labels[0][i + 1]] == label).any())


@njit(nogil=True, cache=True)
def _log_odds(right: float, n: float, prior: float) -> float:
    rate = (right + USUAL * prior) / (n + USUAL)
    return float(np.log(rate / (1 - rate)))


@njit(nogil=True, cache=True)
def _describe(
    i: int,
    at: int,
    n_complete: int,
    texts: Pair,
    names: Names,
    counts: Counts,
    n_documents: int,
    scratch: Scratch,
    row: Floats,
) -> bool:
    """Describe the name `scratch.names[at]` in the text i; return whether it is complete."""
    name = scratch.names[at]
    label = names.labels[name]
    begin, end = names.start[name], names.start[name + 1]
    n_here = texts[0][i + 1] - texts[0][i]
    complete = _is_complete(i, name, names, scratch)
    unseen = counts.labels[label] == 0  # then nothing is known of how often its name is right
    first, times, held = np.int64(1 << 40), np.int64(1 << 40), np.int64(1 << 40)
    n_words, n_within, word = 0, 0, -np.inf
    for part in range(begin, end):
        stem = names.stems[part]
        if scratch.text[stem] != i + 1:
            continue
        n_words += 1
        first, times = min(first, scratch.first[stem]), min(times, scratch.times[stem])
        held = min(held, counts.held[stem])
        n_within += scratch.longest[stem] > (end - begin if complete else 0)
        n = 0 if unseen else counts.held[stem]
        word = max(word, _log_odds(counts.word_right[part], n, PRIORS[0]))
    found = 0 if unseen else counts.found[name]
    row[0] = scratch.coverage[at]
    row[1] = complete and _is_phrase(texts, i, names, name)
    row[2] = np.log(times)
    row[3] = np.log1p(first)
    row[4] = first / n_here
    row[5] = np.log1p(n_here)
    row[6] = n_within / n_words
    row[7] = _log_odds(counts.right[name], found, PRIORS[1])
    row[8] = word
    row[9] = np.log1p(found)
    row[10] = np.log1p(counts.labels[label])
    row[11] = unseen
    row[12] = np.log(end - begin)
    row[13] = np.log1p(n_documents / (held + 1.0))
    row[14] = np.log1p(n_complete)
    return complete


@njit(nogil=True, cache=True)
def _is_phrase(texts: Pair, i: int, names: Names, name: int) -> bool:
    """Whether the stems of a name follow one another in text i."""
    start, stems = texts
    begin, length = names.start[name], names.start[name + 1] - names.start[name]
    for place in range(start[i], start[i + 1] - length + 1):
        same = True
        for offset in range(length):
            if stems[place + offset] != names.stems[begin + offset]:
                same = False
                break
        if same:
            return True
    return False


# -- learning ---------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def describe_matches(
    texts: Pair, chosen: Ints, labels: Pair, names: Names, counts: Counts, n_documents: int
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the rows of all matches in the `chosen` texts, which are complete, and which right."""
    scratch = _make_scratch(names)
    rows = np.empty((1024, N_INPUTS), np.float32)
    complete, right = np.empty(1024, np.bool_), np.empty(1024, np.bool_)
    n = 0
    for i in chosen:
        _, n_names = _look(i, texts, names, scratch)
        n_complete = _note_complete(i, n_names, names, scratch)
        while n + n_names > len(rows):
            rows = np.concatenate((rows, np.empty_like(rows)))
            complete = np.concatenate((complete, np.empty_like(complete)))
            right = np.concatenate((right, np.empty_like(right)))
        for at in range(n_names):
            complete[n] = _describe(
                i, at, n_complete, texts, names, counts, n_documents, scratch, rows[n]
            )
            right[n] = _carries(labels, i, names.labels[scratch.names[at]])
            n += 1
    return rows[:n].copy(), complete[:n].copy(), right[:n].copy()


def fit_logistic(rows: Floats, right: NDArray[np.bool_], prior: float) -> NDArray[np.float64]:
    """Return a weight for each input, and the constant behind them, by Newton's method."""
    weights = np.zeros(N_INPUTS + 1)
    rate = (right.sum() + USUAL * prior) / (len(right) + USUAL)
    weights[-1] = np.log(rate / (1 - rate))
    loss, slope, curve = _weigh(rows, right, weights)
    for _ in range(STEPS):
        step = np.linalg.solve(curve, slope)
        while True:
            tried = weights - step
            found = _weigh(rows, right, tried)
            if found[0] <= loss or np.abs(step).max() < 1e-6:
                break
            step = step / 2
        if loss - found[0] <= 1e-9 * loss:
            break
        weights, (loss, slope, curve) = tried, found
    return weights


@njit(nogil=True, cache=True)
def _weigh(
    rows: Floats, right: NDArray[np.bool_], weights: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Return the loss with its first and second derivative, added up in one order always."""
    n = N_INPUTS + 1
    loss = 0.5 * RIDGE * (weights[:-1] ** 2).sum()
    slope = RIDGE * weights
    slope[-1] = 0
    curve = RIDGE * np.eye(n)
    curve[-1, -1] = 1e-6
    row = np.ones(n)
    for i in range(len(rows)):
        margin = weights[-1]
        for j in range(N_INPUTS):
            row[j] = rows[i, j]
            margin += row[j] * weights[j]
        probability = 1 / (1 + np.exp(-margin))
        loss += max(margin, 0.0) + np.log1p(np.exp(-abs(margin))) - right[i] * margin
        wrong, bend = probability - right[i], probability * (1 - probability)
        for j in range(n):
            slope[j] += wrong * row[j]
            for k in range(j + 1):
                curve[j, k] += bend * row[j] * row[k]
    for j in range(n):
        for k in range(j):
            curve[k, j] = curve[j, k]
    return loss, slope, curve


# -- predicting -------------------------------------------------------------------------------


class Known(NamedTuple):
    """All that was learned.

    Attributes:
        names: of all labels.
        counts: of the training documents.
        n_documents: how many those are.
        weights: (2, N_INPUTS + 1) for names that are there in part, and for complete ones.
    """

    names: Names
    counts: Counts
    n_documents: int
    weights: NDArray[np.float64]


class Matches(NamedTuple):
    """The labels whose names are in n texts.

    Attributes:
        start: (n + 1,) where those of each text begin.
        labels: (m,) the labels.
        scores: (m,) their probabilities.
    """

    start: Ints
    labels: NDArray[np.int32]
    scores: Floats


class Found(NamedTuple):
    """The labels whose names are in the text that is being read.

    Attributes:
        text: (n_labels,) for which text a label was found last, counted from 1.
        labels: (n_labels,) those of this text.
        scores: (n_labels,) their probabilities.
    """

    text: NDArray[np.int32]
    labels: NDArray[np.int32]
    scores: Floats


@njit(nogil=True, cache=True)
def _make_found(n_labels: int) -> Found:
    return Found(
        np.zeros(n_labels, np.int32),
        np.empty(n_labels, np.int32),
        np.empty(n_labels, np.float32),
    )


@njit(nogil=True, cache=True)
def _score(
    i: int,
    texts: Pair,
    known: Known,
    scratch: Scratch,
    found: Found,
) -> int:
    """Note the labels whose names are in text i, each with its best name's probability."""
    names, counts = known.names, known.counts
    row = np.empty(N_INPUTS, np.float32)
    _, n_names = _look(i, texts, names, scratch)
    n_complete = _note_complete(i, n_names, names, scratch)
    n_found = 0
    for at in range(n_names):
        complete = _describe(
            i, at, n_complete, texts, names, counts, known.n_documents, scratch, row
        )
        own = known.weights[1 if complete else 0]
        margin = own[N_INPUTS]
        for j in range(N_INPUTS):
            margin += row[j] * own[j]
        score = np.float32(1 / (1 + np.exp(-margin)))
        label = names.labels[scratch.names[at]]
        if found.text[label] != i + 1:
            found.text[label] = i + 1
            found.labels[n_found] = label
            found.scores[label] = score
            n_found += 1
        found.scores[label] = max(found.scores[label], score)
    return n_found


@njit(nogil=True, cache=True)
def find_matches(texts: Pair, begin: int, end: int, known: Known) -> Matches:
    """Return the labels whose names are in the texts from `begin` to `end`."""
    start = np.zeros(end - begin + 1, np.int64)
    labels, scores = np.empty(64, np.int32), np.empty(64, np.float32)
    scratch = _make_scratch(known.names)
    found = _make_found(len(known.counts.labels))
    size = 0
    for i in range(begin, end):
        n_found = _score(i, texts, known, scratch, found)
        while size + n_found > len(labels):
            labels = np.concatenate((labels, np.empty_like(labels)))
            scores = np.concatenate((scores, np.empty_like(scores)))
        for label in found.labels[:n_found]:
            labels[size], scores[size] = label, found.scores[label]
            size += 1
        start[i - begin + 1] = size
    return Matches(start, labels[:size], scores[:size])


@njit(nogil=True, cache=True)
def rank_matches(
    matches: Matches, frequent: NDArray[np.int32], counts: Ints, n_documents: int, k: int
) -> tuple[NDArray[np.int32], Floats]:
    """Return the best labels of each text, and their probabilities.

    Labels whose name is not there follow by frequency, with probability 0; in a text without any
    name they have their share of the training documents.
    """
    n = len(matches.start) - 1
    best, scores = np.empty((n, k), np.int32), np.zeros((n, k), np.float32)
    text = np.zeros(len(counts), np.int32)  # in which a label was found last, counted from 1
    for i in range(n):
        labels = matches.labels[matches.start[i] : matches.start[i + 1]]
        own = matches.scores[matches.start[i] : matches.start[i + 1]]
        order = np.argsort(-own, kind="mergesort")
        n_taken = min(k, len(labels))
        for rank in range(n_taken):
            best[i, rank], scores[i, rank] = labels[order[rank]], own[order[rank]]
        for label in labels:
            text[label] = i + 1
        for label in frequent:
            if n_taken == k:
                break
            if text[label] != i + 1:
                best[i, n_taken] = label
                if not len(labels):
                    scores[i, n_taken] = counts[label] / n_documents
                n_taken += 1
    return best, scores


@njit(nogil=True, cache=True)
def score_matches(
    matches: Matches, counts: Ints, n_documents: int, candidates: NDArray[np.int32]
) -> Floats:
    """Return what `rank_matches` gives the candidates (n, c) of each text."""
    scores = np.zeros(candidates.shape, np.float32)
    place = np.zeros(len(counts), np.int32)  # of a label among the matches, counted from 1
    for i in range(len(candidates)):
        begin, end = matches.start[i], matches.start[i + 1]
        for at in range(begin, end):
            place[matches.labels[at]] = at - begin + 1
        for j, label in enumerate(candidates[i]):
            if label < 0:
                continue
            if place[label]:
                scores[i, j] = matches.scores[begin + place[label] - 1]
            elif begin == end:
                scores[i, j] = counts[label] / n_documents
        for at in range(begin, end):
            place[matches.labels[at]] = 0
    return scores
