"""Embedder: what maps documents to unit vectors once training is over; it needs no torch."""

from typing import NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.runtime.compiled import njit
from longtail.runtime.mapped import count_values
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.runtime.quantized import QuantizedRows, add_row
from longtail.runtime.rows import LEAST_SQUARES, Rows
from longtail.runtime.schema import Array, Content, Schema, Sizes, floats
from longtail.runtime.store import Files

ROWS_PER_TASK = 512
WORTH_DROPPING = 1 << 23  # bytes of features' weights; fewer are all kept
MANY, LARGE = 1 << 26, 1 << 28  # bytes of them that are many, or too many, beside other models
LEAST_SEEN, LEAST_OF_LARGE = 2, 3  # documents that hold a feature whose weights are kept
LONG_DOCUMENT = 32  # features, of which one more or less does not matter

Floats = NDArray[np.float32]


class Embedder(NamedTuple):
    """Embeds documents after training, without torch: each by itself, always with the same bits.

    Attributes:
        feature_weight: (n_features,) what each value is multiplied by first.
        row: (n_features,) where the weights of each feature are; -1 for one that adds nothing.
        weight: (n_rows, h) of the sparse layer.
        bias: (h,) of the sparse layer.
        second: (h, dim) of the layer after the ReLU; (0, 0) if there is none.
        second_bias: (dim,) of that layer; (0,) if there is none.
        residual: (1,) 1 if what enters the ReLU is added to what the second layer returns.
    """

    feature_weight: Floats
    row: NDArray[np.int32]
    weight: QuantizedRows
    bias: Floats
    second: QuantizedRows
    second_bias: Floats
    residual: Floats

    @classmethod
    def of(
        cls,
        feature_weight: Floats,
        weight: Floats,
        bias: Floats,
        second: tuple[Floats, Floats] | None = None,
        *,
        residual: bool = False,
    ) -> Self:
        """Quantize the layers of a network; `second` are the weights and the bias of that layer."""
        inner, inner_bias = second or (np.empty((0, 0), np.float32), np.empty(0, np.float32))
        return cls(
            feature_weight,
            np.arange(len(weight), dtype=np.int32),
            QuantizedRows.of(weight),
            bias,
            QuantizedRows.of(inner),
            inner_bias,
            np.array([residual], np.float32),
        )

    @property
    def dim(self) -> int:
        """The length of the embeddings."""
        return len(self.second_bias) or len(self.bias)

    def without_rare(self, X: sp.csr_matrix, *, beside_others: bool = False) -> Self:
        """Return the embedder without features that only one row of X has, if they are many.

        Beside other models, which know such features, many are dropped more freely.
        """
        row, weight = drop_rare(self.weight, X, beside_others)
        return self._replace(row=row, weight=weight)

    def add_to_files(self, files: Files) -> None:
        """Add the arrays to a model's files, as `embedder.…`."""
        for field, part in self._asdict().items():
            if isinstance(part, QuantizedRows):
                part.add_to_files(files, f"embedder.{field}")
            else:
                files.arrays[f"embedder.{field}"] = part

    @classmethod
    def describe(cls, files: Files) -> Schema:
        """Return the schema of what `add_to_files` adds; embeddings have the size "dim"."""
        second = files.arrays.get("embedder.second_bias")
        is_deep = second is not None and second.size > 0
        h = "embedder.h" if is_deep else "dim"
        arrays = {
            "feature_weight": floats("n_features"),
            "bias": floats(h),
            "second_bias": floats("dim") if is_deep else floats(0, empty=True),
            "residual": floats(1, least=0, most=1),
        }
        arrays["row"] = describe_places("embedder.n_rows")
        named = {f"embedder.{name}": array for name, array in arrays.items()}
        layers = QuantizedRows.describe("embedder.weight", "embedder.n_rows", h)
        layers |= QuantizedRows.describe("embedder.second", *((h, "dim") if is_deep else (0, 0)))
        return Schema(arrays=named, rules=[_check_residual] if is_deep else []) | layers

    @classmethod
    def from_files(cls, files: Files) -> Self:
        """Take back what `add_to_files` wrote."""
        arrays = files.arrays
        return cls(
            arrays["embedder.feature_weight"],
            arrays["embedder.row"],
            QuantizedRows.from_files(files, "embedder.weight"),
            arrays["embedder.bias"],
            QuantizedRows.from_files(files, "embedder.second"),
            arrays["embedder.second_bias"],
            arrays["embedder.residual"],
        )


def drop_rare(
    weight: QuantizedRows, X: sp.csr_matrix, beside_others: bool = False
) -> tuple[NDArray[np.int32], QuantizedRows]:
    """Return where the weights of each feature of X are, -1 for none, and these weights.

    Half of all features occur in a single document. Where documents are long, such a feature adds
    next to nothing: on held-out questions of 70 features, P@1, P@5 and PSP@5 of glas, mnn and dxml
    fall by 0.07 at most without them, by 0.03 in the mean. Titles of 14 features lose 0.09, so they
    keep theirs. But a fusion of 466,000 titles loses 0.03 at most if mnn, once trained, reads new
    ones without, 23 of 143 MB.
    Half of 522 MB go with the features of one or two of them, and 0.8 of P@1 of glas alone; half of
    the dimensions would cost 0.9.
    """
    beside = weight.n_bytes if beside_others else 0
    kept = count_values(X.indices, X.shape[1]) >= (
        LEAST_OF_LARGE if beside >= LARGE else LEAST_SEEN
    )
    can_spare = beside >= MANY or X.nnz >= LONG_DOCUMENT * X.shape[0]
    if weight.n_bytes < WORTH_DROPPING or not can_spare or not kept.any():
        kept[:] = True
    row = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
    return row, weight if kept.all() else weight.select(np.flatnonzero(kept))


def describe_places(n_rows: str) -> Array:
    """Declare where the weights of each feature are: rows below a size, or -1."""
    content = Content(
        f"whole numbers from -1 to below {n_rows}",
        lambda array, sizes: bool(array.min() >= -1 and array.max() < sizes[n_rows]),
    )
    return Array((np.int32,), ("n_features",), content)


def _check_residual(files: Files, sizes: Sizes) -> None:
    if files.arrays["embedder.residual"][0] and sizes["embedder.h"] != sizes["dim"]:
        raise ValueError(f"{sizes['embedder.h']} neurons cannot be added to {sizes['dim']}")


def embed_rows(embedder: Embedder, rows: Rows, normalize: bool) -> Floats:
    """Return the unit embeddings of all rows; no row's depends on how many there are.

    There is no matrix product, as BLAS adds in another order for other shapes.
    """
    n = len(rows.start) - 1
    size = min(ROWS_PER_TASK, max(1, -(-n // n_threads())))
    tasks = [(embedder, rows, a, min(a + size, n), normalize) for a in range(0, n, size)]
    if len(tasks) == 1:  # one document is answered faster than a thread is started
        return _embed(*tasks[0])
    return np.concatenate(run_tasks(_embed, tasks, [1.0] * len(tasks)))


@njit(nogil=True, cache=True)
def _embed(embedder: Embedder, rows: Rows, first: int, last: int, normalize: bool) -> Floats:
    dim = len(embedder.second_bias) or len(embedder.bias)
    embedded = np.empty((last - first, dim), np.float32)
    for i in range(first, last):
        squares = 0.0
        for cell in range(rows.start[i], rows.start[i + 1]):
            value = rows.values[cell] * embedder.feature_weight[rows.columns[cell]]
            squares += np.float64(value) ** 2
        scale = (
            np.float32(1 / np.sqrt(squares))
            if normalize and squares > LEAST_SQUARES
            else np.float32(1)
        )
        x = embedder.bias.copy()
        for cell in range(rows.start[i], rows.start[i + 1]):
            column = rows.columns[cell]
            value = rows.values[cell] * embedder.feature_weight[column] * scale
            if embedder.row[column] >= 0:
                add_row(embedder.weight, embedder.row[column], value, x)
        if len(embedder.second_bias):
            y = embedder.second_bias.copy()
            for j in range(len(x)):
                if x[j] > 0:
                    add_row(embedder.second, j, x[j], y)
            x = x + y if embedder.residual[0] else y
        squares = 0.0
        for j in range(dim):
            squares += np.float64(x[j]) ** 2
        scale = np.float32(1 / np.sqrt(squares)) if squares > LEAST_SQUARES else np.float32(0)
        for j in range(dim):
            embedded[i - first, j] = x[j] * scale
    return embedded
