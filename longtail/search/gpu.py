"""Candidates from a GPU: a matrix product with a margin for its rounding; a CPU decides."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from longtail.errors import MissingExtraError, ParameterError
from longtail.search.kernels import Floats, Ids

GPU_ROUNDING = 2.0**-10  # of a product, if its matrices are rounded to TF32


class VectorsOnDevice:
    """The vectors as a tensor, with a bound for the rounding of their products."""

    def __init__(self, torch: Any, device: str, vectors: Floats) -> None:
        self.torch = torch
        self.vectors = torch.from_numpy(vectors).to(device)
        rounding = GPU_ROUNDING + vectors.shape[1] * 2.0**-23
        self.slack = torch.linalg.vector_norm(self.vectors, dim=1) * rounding  # (n,)

    def candidates(self, queries: Floats, k: int, width: int) -> tuple[Ids, NDArray[np.bool_]]:
        """Return (m, width) ids, -1 for none, and for which queries no others can be better."""
        torch, device = self.torch, self.vectors.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            rows = torch.from_numpy(queries).to(device)
            products = rows @ self.vectors.T  # (m, n)
            slack = torch.linalg.vector_norm(rows, dim=1)[:, None] * self.slack
            low, _ = torch.topk(products - slack, k, dim=1)
            high, ids = torch.topk(products + slack, width, dim=1)
            possible = high >= low[:, -1:]
            whole = ~possible[:, -1] if width < len(self.vectors) else possible[:, 0]
            ids = torch.where(possible, ids, -1)
        return ids.to(torch.int32).cpu().numpy(), whole.cpu().numpy()


def copy_to(device: str, vectors: Floats) -> VectorsOnDevice:
    """Copy the vectors to a GPU, or say why that cannot be."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            f"Searching on the device '{device}' needs torch, which is not installed; "
            "install it with: pip install 'longtail[deep]'"
        ) from error
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ParameterError(f"There is no GPU to search on. Got the device {device!r}; use 'cpu'.")
    return VectorsOnDevice(torch, device, vectors)
