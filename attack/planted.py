"""Small data with a known answer: what the attacked models are trained on."""

import numpy as np
import scipy.sparse as sp

from longtail import Dataset

N_DOCUMENTS, N_LABELS, WORDS_PER_LABEL = 80, 12, 3


def plant_rows() -> Dataset:
    """Return documents whose features tell their one or two labels."""
    rng = np.random.default_rng(0)
    n_features = WORDS_PER_LABEL * N_LABELS
    Y = np.zeros((N_DOCUMENTS, N_LABELS), np.float32)
    Y[np.arange(N_DOCUMENTS), np.arange(N_DOCUMENTS) % N_LABELS] = 1
    Y[np.arange(N_DOCUMENTS), rng.integers(N_LABELS, size=N_DOCUMENTS)] = 1
    X = np.repeat(Y, WORDS_PER_LABEL, axis=1) * (rng.random((N_DOCUMENTS, n_features)) < 0.9)
    return Dataset(
        sp.csr_matrix(Y), label_names=[f"label{i}" for i in range(N_LABELS)], X=sp.csr_matrix(X)
    )


def plant_texts() -> Dataset:
    """Return the same documents as texts."""
    rows = plant_rows()
    return Dataset(rows.Y, label_names=rows.label_names, texts=TEXTS)


def _write_texts() -> list[str]:
    X = plant_rows().X
    return [" ".join(f"word{j}" for j in X[i].indices) for i in range(X.shape[0])]


TEXTS = _write_texts()
