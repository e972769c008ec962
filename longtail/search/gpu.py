"""Search on a GPU, by torch: it finds candidates, and the compiled code of a CPU decides.

What it finds is what a CPU finds, bit for bit. Products of quantized vectors and rounded queries
are whole numbers, which float64 adds up exactly in any order: so the same lists are probed, and the
same projections are the best. Products of the vectors themselves are taken in float32, with a bound
for their rounding; all that may be among the best go to the CPU.

The code runs on torch's own CPU device too ("cpu:0"), which is how it is tested without a GPU.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import MissingExtraError, ParameterError
from longtail.runtime.device import chosen_device
from longtail.runtime.quantized import QuantizedRows
from longtail.search.kernels import Floats, Ids, InvertedLists, largest_query_value

TF32_ROUNDING = 2.0**-10  # of a product, if torch may round its matrices to TF32
ROWS_AT_ONCE = 1 << 16  # quantized vectors that are in float64 at the same time
LARGEST_BLOCK = 1 << 26  # products at once


class QuantizedOnDevice:
    """Quantized vectors, for products with rounded queries that are those of `kernels`."""

    def __init__(self, torch: Any, device: str, rows: QuantizedRows, dim: int) -> None:
        self.torch, self.dim = torch, dim
        self.values = _copy(torch, rows.codes[:, :dim], device)  # (n, dim)
        self.scale = _copy(torch, rows.scale, device).double()  # (n,)

    def multiply(self, queries: Floats) -> Any:
        """Return the products (m, n) with each query, to a scale of its own, in float64."""
        torch = self.torch
        rows = torch.from_numpy(queries).to(self.values.device).double()  # (m, dim)
        scale = rows.abs().amax(1, keepdim=True) / largest_query_value(self.dim)
        rounded = torch.where(scale > 0, torch.round(rows / scale), 0.0)
        blocks = torch.split(self.values, ROWS_AT_ONCE)
        return torch.cat([rounded @ block.double().T for block in blocks], 1) * self.scale

    def nearest(self, queries: Floats) -> Ids:
        """Return for each query the vector with the highest product, the first of equals."""
        torch, n = self.torch, len(self.values)
        found = []
        places = torch.arange(n, device=self.values.device)
        rows = max(1, LARGEST_BLOCK // n)
        for first in range(0, len(queries), rows):
            products = self.multiply(queries[first : first + rows])
            highest = products.amax(1, keepdim=True)
            found.append(torch.where(products == highest, places, n).amin(1))
        return np.asarray(torch.cat(found).to(torch.int32).cpu().numpy(), np.int32)


class VectorsOnDevice:
    """The vectors as a tensor, with what an approximate search needs to choose among them."""

    def __init__(self, torch: Any, device: str, rows: QuantizedRows, dim: int) -> None:
        self.torch = torch
        scale = _copy(torch, rows.scale, device)[:, None]
        self.vectors = _copy(torch, rows.codes[:, :dim], device) * scale  # (n, dim)
        self.lengths = torch.linalg.vector_norm(self.vectors, dim=1)  # (n,)
        self.centres: QuantizedOnDevice | None = None
        self.list_of: Any = None
        self.projected: QuantizedOnDevice | None = None

    def add_lists(self, lists: InvertedLists, list_of: Ids) -> None:
        """Take in the inverted lists, and which of them holds each vector."""
        device, dim = self.vectors.device, self.vectors.shape[1]
        self.centres = QuantizedOnDevice(self.torch, device, lists.centres, dim)
        self.list_of = self.torch.from_numpy(list_of).to(device).long()

    def add_projected(self, projected: QuantizedRows, dim: int) -> None:
        """Take in the projections of the vectors, which have `dim` dimensions."""
        self.projected = QuantizedOnDevice(self.torch, self.vectors.device, projected, dim)

    def in_lists(self, queries: Floats, n_probes: int) -> Any:
        """Return which vectors (m, n) lie in the `n_probes` best lists of each query."""
        if self.centres is None:
            raise RuntimeError("there are no lists on the device")
        scores = self.centres.multiply(queries).float()  # (m, n_lists)
        least = scores.topk(n_probes, dim=1).values[:, -1:]
        above, equal = scores > least, scores == least
        left = n_probes - above.sum(1, keepdim=True)  # places for equals, the first of them first
        probed = above | (equal & (equal.cumsum(1) <= left))
        return probed[:, self.list_of]

    def best_projected(self, queries: Floats, wanted: int) -> Any:
        """Return which vectors (m, n) have the `wanted` highest products of projections."""
        if self.projected is None:
            raise RuntimeError("there are no projections on the device")
        scores = self.projected.multiply(queries).float()
        return scores >= scores.topk(wanted, dim=1).values[:, -1:]

    def rank_projected(self, queries: Floats, wanted: Ids) -> Ids:
        """Return how many vectors have a higher product than each of a query's `wanted` ones."""
        if self.projected is None:
            raise RuntimeError("there are no projections on the device")
        torch, rows = self.torch, max(1, LARGEST_BLOCK // len(self.vectors))
        ranks = []
        for first in range(0, len(queries), rows):
            scores = self.projected.multiply(queries[first : first + rows]).float()  # (m, n)
            places = torch.from_numpy(wanted[first : first + rows]).to(scores.device).long()
            own = scores.gather(1, places)  # (m, k)
            higher = [(scores > own[:, j : j + 1]).sum(1) for j in range(own.shape[1])]
            ranks.append(torch.stack(higher, 1))
        return np.asarray(torch.cat(ranks).cpu().numpy(), np.int32)

    def candidates(
        self, queries: Floats, k: int, width: int, allowed: Any = None
    ) -> tuple[Ids, NDArray[np.bool_]]:
        """Return (m, width) ids, -1 for none, and for which queries no others can be better.

        Args:
            queries: (m, dim).
            k: how many are wanted.
            width: how many candidates there is room for.
            allowed: which vectors (m, n) are looked at; None for all.
        """
        torch, device = self.torch, self.vectors.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            rows = torch.from_numpy(queries).to(device)
            products = rows @ self.vectors.T  # (m, n)
            lengths = torch.linalg.vector_norm(rows, dim=1)[:, None]
            slack = lengths * (self.lengths * self._rounding())
            if allowed is not None:
                products = products.masked_fill(~allowed, -torch.inf)
            low, _ = torch.topk(products - slack, k, dim=1)
            high, ids = torch.topk(products + slack, width, dim=1)
            possible = high >= low[:, -1:]
            whole = ~possible[:, -1] if width < len(self.vectors) else possible[:, 0]
            whole &= torch.isfinite(low[:, -1]) & (lengths[:, 0] > 0)
            ids = torch.where(possible, ids, -1)
        return ids.to(torch.int32).cpu().numpy(), whole.cpu().numpy()

    def _rounding(self) -> float:
        """Return how far a product can be off, for a query and a vector of length 1."""
        exact = self.torch.get_float32_matmul_precision() == "highest"
        return (0 if exact else TF32_ROUNDING) + (int(self.vectors.shape[1]) + 1) * 2.0**-23


def require_device(device: str) -> Any:
    """Return torch, or say why there is no such device to search on."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError.of(
            f"Searching on the device '{device}' needs torch", "deep"
        ) from error
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ParameterError(f"There is no GPU to search on. Got the device {device!r}; use 'cpu'.")
    return torch


def copy_to(device: str, rows: QuantizedRows, dim: int) -> VectorsOnDevice:
    """Copy vectors of `dim` dimensions to a GPU, or say why that cannot be."""
    return VectorsOnDevice(require_device(device), device, rows, dim)


def _copy(torch: Any, array: NDArray[Any], device: str) -> Any:
    """Return a tensor on the device; what torch reads from may not be read-only."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)


def find_nearest(device: str, vectors: Floats, centres: QuantizedRows) -> Ids:
    """Return for each vector the centre with the highest product."""
    torch = require_device(device)
    return QuantizedOnDevice(torch, device, centres, vectors.shape[1]).nearest(vectors)


def multiply_transposed(device: str, vectors: Floats) -> Floats:
    """Return vectorsᵀ·vectors (dim, dim)."""
    torch = require_device(device)
    rows = torch.from_numpy(vectors).to(device)
    return np.asarray((rows.T @ rows).cpu().numpy(), np.float32)


def gpu_is_there() -> bool:
    """Whether torch is installed and knows a GPU; this imports torch."""
    if chosen_device() == "cpu":
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a GPU had too little memory, so that a CPU has to do the work."""
    import torch

    return isinstance(error, torch.cuda.OutOfMemoryError)
