"""How likely a true label is to have been recorded, after Jain et al. (KDD 2016).

The propensity p_l = 1 / (1 + C·(N_l + B)^(-A)) with C = (log N - 1)(B + 1)^A takes N, the number of
training documents, and N_l, how many of them carry l, from the training split; labels never seen
there have N_l = 0. Below three training documents C would be negative; it is then 0, and PSP@k
equals the sum of hits over the best possible sum.
"""

import numpy as np
from numpy.typing import NDArray

from longtail.errors import ParameterError, suggest

PROPENSITIES = {"default": (0.55, 1.5), "wikipedia": (0.5, 0.4), "amazon": (0.6, 2.6)}


def propensity_constants(name: str) -> tuple[float, float]:
    """Return A and B of the propensities that `name` means."""
    if name not in PROPENSITIES:
        raise ParameterError(
            f"The 'propensity' parameter must be one of {', '.join(PROPENSITIES)}. "
            f"Got {name!r} instead{suggest(name, PROPENSITIES)}"
        )
    return PROPENSITIES[name]


def inverse_propensity(
    n_documents: int, label_counts: NDArray[np.int64], a: float, b: float
) -> NDArray[np.float64]:
    """Return 1/p of each label, by how many of the training documents carry it."""
    c = max(np.log(max(n_documents, 1)) - 1, 0) * (b + 1) ** a
    inverse: NDArray[np.float64] = 1 + c * (label_counts + b) ** -a
    return inverse
