"""Made-up data at any size, for scaling runs only: it says nothing about accuracy on real data.

A document is drawn as a few places on a line from 0 to 1, and n labels cut that line into n equal
stretches; so the very same documents can carry 10,000 labels or a million. The line is crowded in
some regions and nearly empty in others, at every scale, which gives labels a long tail. Each
stretch, coarse or fine, owns a few words, and words have Zipfian frequencies; a document takes most
of its words from the stretches around its places, so that there is something to learn.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ids = NDArray[np.int32]

SCALES = (1_000, 10_000, 100_000, 1_000_000)
WORDS_OF_A_STRETCH = 6


@dataclass(frozen=True)
class MadeUp:
    """Made-up training and test rows with their labels."""

    X: sp.csr_matrix
    Y: sp.csr_matrix
    test_X: sp.csr_matrix
    test_Y: sp.csr_matrix


def make_up(
    *,
    n_documents: int,
    n_labels: int,
    n_features: int = 100_000,
    n_test: int = 2_000,
    labels_each: int = 4,
    words_each: int = 40,
    seed: int = 0,
) -> MadeUp:
    """Return made-up rows; with the same seed, X is the same whatever `n_labels` is."""
    rng = np.random.default_rng(seed)
    places = _draw_places(rng, n_documents + n_test, labels_each)
    X = _weigh(_count(_draw_words(rng, places, n_features, words_each), n_features))
    Y = _count((places * n_labels).astype(np.int32), n_labels)
    Y.data[:] = 1
    return MadeUp(X[:n_documents], Y[:n_documents], X[n_documents:], Y[n_documents:])


def _draw_places(rng: np.random.Generator, n: int, each: int) -> Floats:
    """Draw (n, each) places; half of a document's places lie in the region of its first."""
    region = _draw_ranks(rng, SCALES[0], (n, each))
    near = rng.random((n, each)) < 0.5
    region = np.where(near, region[:, :1], region)
    places = region / SCALES[0]
    for scale in SCALES[1:]:
        places += _draw_ranks(rng, 10, (n, each)) / scale
    return places + rng.random((n, each)) / SCALES[-1]


def _draw_words(rng: np.random.Generator, places: Floats, n_features: int, each: int) -> Ids:
    """Draw (n, each) words: the same number from the stretches of each scale and from anywhere."""
    n, n_places = places.shape
    share = each // (len(SCALES) + 1)
    blocks = [_draw_ranks(rng, n_features, (n, each - share * len(SCALES)))]
    for scale in SCALES:
        words = _draw_ranks(rng, n_features, (scale, WORDS_OF_A_STRETCH), power=0.5)
        chosen = np.take_along_axis(places, rng.integers(n_places, size=(n, share)), axis=1)
        stretch = (chosen * scale).astype(np.int32)
        blocks.append(words[stretch, rng.integers(WORDS_OF_A_STRETCH, size=(n, share))])
    return np.hstack(blocks)


def _draw_ranks(
    rng: np.random.Generator, n: int, shape: tuple[int, int], power: float = 0.9
) -> Ids:
    """Draw from 0 … n-1 with probabilities near (rank + 1)^-power, by inverting their integral."""
    largest = (n + 1) ** (1 - power)
    ranks = (1 + rng.random(shape) * (largest - 1)) ** (1 / (1 - power)) - 1
    return np.asarray(np.minimum(ranks, n - 1), dtype=np.int32)


def _count(cells: Ids, n_columns: int) -> sp.csr_matrix:
    """Return the matrix that counts how often each row of `cells` holds each column."""
    n, each = cells.shape
    indptr = np.arange(0, n * each + 1, each, dtype=np.int32)
    data = np.ones(n * each, dtype=np.float32)
    matrix = sp.csr_matrix((data, cells.ravel(), indptr), shape=(n, n_columns))
    matrix.sum_duplicates()
    return matrix


def _weigh(X: sp.csr_matrix) -> sp.csr_matrix:
    """Turn counts into tf-idf rows of unit length."""
    seen = np.bincount(X.indices, minlength=X.shape[1])
    rarity = np.log((1 + X.shape[0]) / (1 + seen)) + 1
    X.data = ((1 + np.log(X.data)) * rarity[X.indices]).astype(np.float32)
    lengths = np.sqrt(np.add.reduceat(X.data**2, X.indptr[:-1]))
    X.data /= np.repeat(lengths, np.diff(X.indptr))
    return X
