"""Training documents that a model keeps, so that an update does not lose what was learned."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import scipy.sparse as sp

from longtail.runtime.rows import add_matrix, describe_matrix, round_values, take_matrix
from longtail.runtime.schema import Schema, size
from longtail.runtime.store import Files

KEPT = "n_kept"  # in config.json, if documents are kept


@dataclass(frozen=True, eq=False)
class Kept:
    """A sample of all documents so far, drawn by the seed.

    Attributes:
        X: (n, n_features) their rows, as training took them.
        Y: (n, n_labels) their labels.
    """

    X: sp.csr_matrix
    Y: sp.csr_matrix

    @classmethod
    def draw(cls, X: sp.csr_matrix, Y: sp.csr_matrix, n: int, seed: int) -> Self:
        """Keep `n` of these documents that have a label and a feature, or all if they are fewer."""
        useful = np.flatnonzero((np.diff(X.indptr) > 0) & (np.diff(Y.indptr) > 0))
        chosen = np.sort(np.random.default_rng(seed).permutation(useful)[:n])
        return cls(round_values(X[chosen]), Y[chosen])

    def widen(self, n_labels: int) -> Self:
        """Return the same documents with columns for labels that are new."""
        Y = sp.csr_matrix((self.Y.data, self.Y.indices, self.Y.indptr), (len(self), n_labels))
        return type(self)(self.X, Y)

    def renew(self, X: sp.csr_matrix, Y: sp.csr_matrix, n: int, n_before: int, seed: int) -> Self:
        """Replace some by new documents, as many as their share of all documents so far."""
        share = X.shape[0] / (n_before + X.shape[0])
        n_new = min(X.shape[0], round(share * n))
        new = self.draw(X, Y, n_new, seed)
        old = self.draw(self.X, self.widen(Y.shape[1]).Y, n - len(new), seed)
        return type(self)(sp.vstack([old.X, new.X]).tocsr(), sp.vstack([old.Y, new.Y]).tocsr())

    def __len__(self) -> int:
        """Return how many documents these are."""
        return int(self.X.shape[0])

    @classmethod
    def nothing(cls, n_features: int, n_labels: int) -> Self:
        """Keep none: where no document had a label and a feature, until an update brings some."""
        X, Y = (np.empty((0, n_columns), np.float32) for n_columns in (n_features, n_labels))
        return cls(sp.csr_matrix(X), sp.csr_matrix(Y))

    def add_to_files(self, files: Files) -> None:
        """Add rows and labels to a model's files."""
        files.config[KEPT] = len(self)
        add_matrix(files, "kept.X", self.X, rounded=True)
        add_matrix(files, "kept.Y", self.Y)

    @classmethod
    def describe(cls) -> Schema:
        """Return the schema of what `add_to_files` adds."""
        number = Schema(config={KEPT: size("kept.n")})
        rows = describe_matrix("kept.X", "kept.n", rounded=True)
        return number | rows | describe_matrix("kept.Y", "kept.n", least=1)

    @classmethod
    def from_files(cls, files: Files, n_features: int, n_labels: int) -> Self:
        """Take back what `add_to_files` added."""
        n = files.config[KEPT]
        X = take_matrix(files, "kept.X", n, n_features)
        return cls(X, take_matrix(files, "kept.Y", n, n_labels))
