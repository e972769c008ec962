"""Small planted data whose right answer is known."""

import json
from functools import cache

import numpy as np
import scipy.sparse as sp

from longtail.data import Dataset


def planted_rows(n=300, n_labels=12, words_per_label=3, noise=2, seed=0):
    """Return X, Y: every label shows itself by words of its own, among a few at random."""
    X, Y = _plant(n, n_labels, words_per_label, noise, seed)
    return X.copy(), Y.copy()


@cache
def _plant(n, n_labels, words_per_label, noise, seed):
    rng = np.random.default_rng(seed)
    Y = np.zeros((n, n_labels), np.float32)
    X = np.zeros((n, n_labels * words_per_label + 20), np.float32)
    for i in range(n):
        for label in rng.choice(n_labels, size=rng.integers(1, 4), replace=False):
            Y[i, label] = 1
            own = label * words_per_label + rng.choice(words_per_label, size=2, replace=False)
            X[i, own] = 1
        X[i, n_labels * words_per_label + rng.choice(20, size=noise, replace=False)] = 1
    return sp.csr_matrix(X), sp.csr_matrix(Y)


def planted_texts(n=300, n_labels=12, seed=0):
    """Return a Dataset of texts whose words name their labels."""
    _, Y = planted_rows(n, n_labels, seed=seed)
    names = [f"label {i}" for i in range(n_labels)]
    return Dataset(Y=Y, label_names=names, texts=list(_write(n, n_labels, seed)))


@cache
def _write(n, n_labels, seed):
    X, _ = planted_rows(n, n_labels, seed=seed)
    return [" ".join(f"word{f}" for f in X[i].indices) for i in range(n)]


def planted_dataset(n=300, n_labels=12, seed=0):
    """Return a Dataset of rows."""
    X, Y = planted_rows(n, n_labels, seed=seed)
    return Dataset(Y=Y, label_names=[str(i) for i in range(n_labels)], X=X)


def write_planted_texts(path, n=300, seed=0):
    """Write planted texts as JSON lines; return the path."""
    data = planted_texts(n, seed=seed)
    lines = (
        {"text": text, "labels": [data.label_names[label] for label in data.Y[i].indices]}
        for i, text in enumerate(data.texts)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def pairs(data):
    """Return the texts with their label names, to compare with what was written."""
    labels = [[data.label_names[i] for i in row.indices] for row in data.Y]
    return list(zip(data.texts, labels, strict=True))
