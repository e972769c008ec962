"""Some of the training documents, which an update shows to new labels as what they are not."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.rows import add_matrix, describe_matrix, take_matrix
from longtail.runtime.schema import Schema, indices, starts
from longtail.runtime.store import Files
from longtail.text.tokens import UNKNOWN, TokenRows

MOST_DOCUMENTS, MOST_WORDS = 1_000, 200_000  # that are kept


class KeptDocuments(NamedTuple):
    """Words and labels (n, n_labels) of documents; each has a word that is known."""

    tokens: TokenRows
    Y: sp.csr_matrix

    @classmethod
    def of(cls, tokens: TokenRows, Y: sp.csr_matrix, seed: int) -> "KeptDocuments":
        """Keep some documents, drawn by the seed."""
        order = np.random.default_rng(seed).permutation(find_known(tokens))[:MOST_DOCUMENTS]
        n = int(np.searchsorted(np.cumsum(tokens.lengths[order]), MOST_WORDS, side="right"))
        rows = np.sort(order[:n])
        return cls(tokens.take(rows), Y[rows])

    def join(self, tokens: TokenRows, Y: sp.csr_matrix) -> "KeptDocuments":
        """Return these documents and more, which may have labels behind those of the others."""
        start = np.concatenate([self.tokens.start, self.tokens.start[-1] + tokens.start[1:]])
        words = np.concatenate([self.tokens.tokens, tokens.tokens])
        shape = (self.Y.shape[0], Y.shape[1])
        own = sp.csr_matrix((self.Y.data, self.Y.indices, self.Y.indptr), shape=shape)
        return KeptDocuments(TokenRows(start, words), sp.csr_matrix(sp.vstack([own, Y], "csr")))

    def add_to_files(self, files: Files) -> None:
        """Add them to a model's files."""
        files.arrays["kept.start"] = self.tokens.start
        files.arrays["kept.tokens"] = self.tokens.tokens
        add_matrix(files, "kept.labels", self.Y)

    @staticmethod
    def describe() -> Schema:
        """Return the schema of what `add_to_files` adds."""
        arrays = {
            "kept.start": starts("kept.n", of="kept.n_tokens"),
            "kept.tokens": indices("kept.n_tokens", into="n_words"),
        }
        return Schema(arrays=arrays) | describe_matrix("kept.labels", "kept.n")

    @classmethod
    def from_files(cls, files: Files, n_labels: int) -> "KeptDocuments":
        """Take back what `add_to_files` wrote."""
        tokens = TokenRows(files.arrays["kept.start"], files.arrays["kept.tokens"])
        return cls(tokens, take_matrix(files, "kept.labels", tokens.n_documents, n_labels))


def find_known(tokens: TokenRows) -> NDArray[np.int64]:
    """Return the documents that hold a word that is known."""
    known = np.concatenate(([0], np.cumsum(tokens.tokens > UNKNOWN)))
    return np.flatnonzero(np.diff(known[tokens.start]))
