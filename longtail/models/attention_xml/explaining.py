"""AttentionXML explained: where its networks looked, and what a label loses without each word."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from longtail.evaluation.explanation import Term
from longtail.text.tokens import UNKNOWN, TokenRows

if TYPE_CHECKING:
    import torch

    from longtail.models.attention_xml.search import ProbabilisticLabelTree

Spans = Sequence[tuple[int, int, int]]  # begin, end and number of each word

MOST_LEFT_OUT = 300  # words of a text that are left out in turn


def weigh_tokens(
    trees: "Sequence[ProbabilisticLabelTree]",
    tokens: TokenRows,
    labels: NDArray[np.int32],
    shares: NDArray[np.float32],
    device: "torch.device",
) -> NDArray[np.float64]:
    """Return how much each token weighs for labels that count by their shares."""
    found = [tree.attention(tokens, labels, device) for tree in trees]
    weights: NDArray[np.float64] = np.mean(found, axis=0) @ shares.astype(np.float64)
    return weights


def with_losses(
    terms: Sequence[Term],
    tokens: TokenRows,
    spans: Spans,
    score: Callable[[TokenRows], NDArray[np.float64]],
) -> list[Term]:
    """Return the first words with what `score` loses if the text is read without them."""
    begins = np.full(len(tokens.tokens), -1)
    begins[: len(spans)] = [begin for begin, _, _ in spans]
    tried, others = terms[:MOST_LEFT_OUT], terms[MOST_LEFT_OUT:]
    places = [np.isin(begins, [begin for begin, _ in term.spans]) for term in tried]
    scores = score(leave_out(tokens, places))
    losses = (scores[0] - scores[1:]).tolist()
    known = [replace(term, loss=loss) for term, loss in zip(tried, losses, strict=True)]
    return [*known, *others]


def leave_out(tokens: TokenRows, places: Sequence[NDArray[np.bool_]]) -> TokenRows:
    """Return a document as it is, then without its tokens at each of these places.

    Where nothing is left, an unknown word stands.
    """
    whole = tokens.tokens
    kept = [whole, *(whole[~place] for place in places)]
    kept = [row if len(row) else np.array([UNKNOWN], whole.dtype) for row in kept]
    start = np.concatenate(([0], np.cumsum([len(row) for row in kept]))).astype(tokens.start.dtype)
    return TokenRows(start, np.concatenate(kept))


def as_terms(text: str, spans: Spans, weights: NDArray[np.float64]) -> list[Term]:
    """Return the words, heaviest first, each with all its places in the text."""
    total = float(weights.sum()) or 1.0
    places: dict[str, list[tuple[int, int]]] = {}
    sums: dict[str, float] = {}
    for (begin, end, _), weight in zip(spans, weights.tolist(), strict=False):
        word = text[begin:end].lower()
        places.setdefault(word, []).append((begin, end))
        sums[word] = sums.get(word, 0.0) + weight / total
    terms = [Term(word, sums[word], tuple(places[word])) for word in places]
    return sorted(terms, key=lambda term: (-term.weight, term.name))
