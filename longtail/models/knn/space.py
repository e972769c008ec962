"""Where documents are near to one another: by the words they share, or in a model's embedding."""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.errors import DataError
from longtail.models.embedder import Embedder, embed_rows
from longtail.runtime.mapped import count_values
from longtail.runtime.rows import view_rows, weigh_features, weigh_rows
from longtail.runtime.schema import Schema, Value, floats
from longtail.runtime.store import Files
from longtail.search.index import Index, build_index
from longtail.search.sparse import SparseIndex
from longtail.search.voters import Nearest

Floats = NDArray[np.float32]

RARITIES = (-0.5, 0.0, 0.5, 1.0)  # powers of idf to choose from
RECALL = 0.97  # of the neighbours, where embeddings are so many that the search is approximate
N_EXAMPLES = 2000  # documents by which that is measured


class Space(Protocol):
    """Places documents so that the cosine of their places says how near they are."""

    @property
    def dim(self) -> int:
        """The number of dimensions."""

    def place(self, X: sp.csr_matrix) -> Any:
        """Return the places of documents, given as feature rows."""

    def build_index(self, places: Any, n: int, seed: int) -> Nearest:
        """Prepare places for a search for their `n` nearest."""

    def join(self, places: Any, more: Any) -> Any:
        """Return the places of some documents and of more."""

    def add_to_files(self, files: Files) -> None:
        """Add what places documents to a model's files."""


@dataclass(frozen=True, eq=False)
class WordSpace:
    """Documents are near if they share words, rare ones above all.

    Attributes:
        weights: (n_features,) what each feature is multiplied by.
    """

    weights: Floats

    @property
    def dim(self) -> int:
        """The number of features."""
        return len(self.weights)

    def place(self, X: sp.csr_matrix) -> sp.csr_matrix:
        """Return weighted rows of length 1."""
        if X.nnz and X.data.min() < 0:
            raise DataError(
                "knn looks for features that documents share, so no value may be negative; "
                f"X holds {X.data.min():g}. A space of embeddings takes them, such as space=glas"
            )
        return weigh_rows(X, self.weights, normalize=True)

    def build_index(self, places: sp.csr_matrix, n: int, seed: int) -> SparseIndex:
        """List the documents of each feature."""
        return SparseIndex.of(places)

    def join(self, places: sp.csr_matrix, more: sp.csr_matrix) -> sp.csr_matrix:
        """Return the rows of both."""
        return sp.csr_matrix(sp.vstack([places, more], "csr"))

    def add_to_files(self, files: Files) -> None:
        """Add the weights."""
        files.arrays["space.weights"] = self.weights

    @classmethod
    def describe(cls) -> Schema:
        """Return the schema of the weights."""
        return Schema(arrays={"space.weights": floats("n_features", least=0)})

    @classmethod
    def from_files(cls, files: Files) -> Self:
        """Take back what `add_to_files` wrote."""
        return cls(files.arrays["space.weights"])


@dataclass(frozen=True, eq=False)
class EmbeddingSpace:
    """Documents are near if a model's embedding puts them side by side.

    Attributes:
        embedder: maps rows to vectors of length 1.
        normalize: whether rows are scaled to length 1 before.
    """

    embedder: Embedder
    normalize: bool

    @property
    def dim(self) -> int:
        """The length of the embeddings."""
        return self.embedder.dim

    def place(self, X: sp.csr_matrix) -> Floats:
        """Return the embeddings."""
        return embed_rows(self.embedder, view_rows(X), self.normalize)

    def build_index(self, places: Floats, n: int, seed: int) -> Index:
        """Prepare the embeddings for search, in cells if they are many."""
        examples = np.random.default_rng(seed).permutation(len(places))[:N_EXAMPLES]
        queries = places[np.sort(examples)]
        return build_index(places, queries=queries, recall=RECALL, recall_at=n, seed=seed)

    def join(self, places: Floats, more: Floats) -> Floats:
        """Return the embeddings of both."""
        return np.concatenate([places, more])

    def add_to_files(self, files: Files) -> None:
        """Add the embedder."""
        self.embedder.add_to_files(files)
        files.config["normalize"] = self.normalize

    @classmethod
    def describe(cls, files: Files) -> Schema:
        """Return the schema of the embedder."""
        return Schema(config={"normalize": Value(bool)}) | Embedder.describe(files)

    @classmethod
    def from_files(cls, files: Files) -> Self:
        """Take back what `add_to_files` wrote."""
        return cls(Embedder.from_files(files), files.config["normalize"])


def weigh_words(X: sp.csr_matrix, idf: bool, rarity: float) -> Floats:
    """Return the weight of each feature: idf for counts, times idf once more to a power."""
    weights = weigh_features(X) if idf else np.ones(X.shape[1], np.float32)
    held = count_values(X.indices, X.shape[1])
    rare = np.log((1 + X.shape[0]) / (1 + held)) + 1
    return (weights * rare**rarity).astype(np.float32)
