"""Where documents are near to one another: by the words they share, or in a model's embedding."""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError
from longtail.models.embedder import Embedder, embed_rows
from longtail.runtime.rows import scale_rows, view_rows
from longtail.runtime.store import Files
from longtail.search.index import Index, build_index
from longtail.search.inverted import SparseIndex

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

RECALL = 0.97  # of the neighbours, where embeddings are so many that cells are searched
N_EXAMPLES = 2000  # documents by which that is measured


class Nearest(Protocol):
    """An index of documents."""

    def search(self, queries: Any, n: int) -> tuple[Ids, Floats]:
        """Return ids and cosines (m, n) of the nearest, nearest first; -1 where there is none."""


class Space(Protocol):
    """Places documents so that the cosine of their places says how near they are."""

    def place(self, X: sp.csr_matrix) -> Any:
        """Return the places of documents, given as feature rows."""

    def build_index(self, places: Any, n: int, seed: int) -> Nearest:
        """Prepare places for a search for their `n` nearest."""

    def join(self, places: Any, more: Any) -> Any:
        """Return the places of some documents and of more."""

    def add_to_files(self, files: Files, places: Any) -> None:
        """Add the space and the places of the documents to a model's files."""


@dataclass(frozen=True, eq=False)
class WordSpace:
    """Documents are near if they share words, rare ones above all.

    Attributes:
        weights: (n_features,) what each feature is multiplied by.
    """

    weights: Floats

    def place(self, X: sp.csr_matrix) -> sp.csr_matrix:
        """Return weighted rows of length 1."""
        if X.nnz and X.data.min() < 0:
            raise DataError(
                "knn looks for features that documents share, so no value may be negative; "
                f"X holds {X.data.min():g}. A space of embeddings takes them, such as space=glas"
            )
        rows = view_rows(X)
        unit = scale_rows(rows._replace(values=rows.values * self.weights[rows.columns]))
        return sp.csr_matrix((unit.values, X.indices, X.indptr), X.shape)

    def build_index(self, places: sp.csr_matrix, n: int, seed: int) -> SparseIndex:
        """List the documents of each feature."""
        return SparseIndex(places)

    def join(self, places: sp.csr_matrix, more: sp.csr_matrix) -> sp.csr_matrix:
        """Return the rows of both."""
        return sp.csr_matrix(sp.vstack([places, more], "csr"))

    def add_to_files(self, files: Files, places: sp.csr_matrix) -> None:
        """Add the weights and the rows."""
        files.arrays["space.weights"] = self.weights
        rows = view_rows(places)
        files.arrays |= {f"places.{name}": array for name, array in rows._asdict().items()}

    @classmethod
    def from_files(cls, files: Files, n_features: int) -> tuple[Self, sp.csr_matrix]:
        """Take back what `add_to_files` wrote; raise ValueError unless compiled code can use it."""
        weights = files.arrays["space.weights"]
        if weights.shape != (n_features,) or weights.dtype != np.float32:
            raise ValueError(f"weights of shape {weights.shape} for {n_features} features")
        places = take_matrix(files, "places", n_features)
        if len(places.data) and not 0 <= places.data.min() <= places.data.max() < np.inf:
            raise ValueError("places hold values that are negative or not finite")
        return cls(weights), places


@dataclass(frozen=True, eq=False)
class EmbeddingSpace:
    """Documents are near if a model's embedding puts them side by side.

    Attributes:
        embedder: maps rows to vectors of length 1.
        normalize: whether rows are scaled to length 1 before.
    """

    embedder: Embedder
    normalize: bool

    def place(self, X: sp.csr_matrix) -> Floats:
        """Return the embeddings; half precision is enough, and the folder keeps no more of it."""
        embedded = embed_rows(self.embedder, view_rows(X), self.normalize)
        return embedded.astype(np.float16).astype(np.float32)

    def build_index(self, places: Floats, n: int, seed: int) -> Index:
        """Prepare the embeddings for search, in cells if they are many."""
        examples = np.random.default_rng(seed).permutation(len(places))[:N_EXAMPLES]
        queries = places[np.sort(examples)]
        return build_index(places, queries=queries, recall=RECALL, recall_at=n, seed=seed)

    def join(self, places: Floats, more: Floats) -> Floats:
        """Return the embeddings of both."""
        return np.concatenate([places, more])

    def add_to_files(self, files: Files, places: Floats) -> None:
        """Add the embedder and the embeddings."""
        self.embedder.add_to_files(files)
        files.config["normalize"] = self.normalize
        files.arrays["places"] = places.astype(np.float16)

    @classmethod
    def from_files(cls, files: Files, n_features: int) -> tuple[Self, Floats]:
        """Take back what `add_to_files` wrote; raise ValueError unless compiled code can use it."""
        embedder = Embedder.from_files(files, n_features)
        places = files.arrays["places"].astype(np.float32)
        if places.ndim != 2 or places.shape[1] != embedder.dim or not np.isfinite(places).all():
            raise ValueError(f"places of shape {places.shape}, expected {embedder.dim} columns")
        return cls(embedder, bool(files.config["normalize"])), places


def take_matrix(files: Files, name: str, n_columns: int) -> sp.csr_matrix:
    """Return a saved matrix; raise ValueError unless compiled code can trust it."""
    start, columns = files.arrays[f"{name}.start"], files.arrays[f"{name}.columns"]
    values = files.arrays.get(f"{name}.values")
    values = np.ones(len(columns), np.float32) if values is None else values
    if start.ndim != 1 or not len(start) or start[0] != 0 or (np.diff(start) < 0).any():
        raise ValueError(f"the rows of {name} are out of order")
    if not columns.shape == values.shape == (int(start[-1]),) or values.dtype != np.float32:
        raise ValueError(f"{name} do not fill their rows")
    if len(columns) and not 0 <= columns.min() <= columns.max() < n_columns:
        raise ValueError(f"{name} hold a column beyond {n_columns}")
    return sp.csr_matrix((values, columns, start), shape=(len(start) - 1, n_columns))
