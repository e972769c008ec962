"""What Adam remembers of the weights of a table: in 32, 16 or 8 bits, or in the host's memory.

    mean (n, d)     Adam's m, the running mean of each weight's gradient
    square (n, d)   Adam's v, that of the gradient's square

Both are computed in float32; only what is kept from step to step is coarser. A step of v may be a
thousandth of v, less than 16 or 8 bits can tell apart. So numbers are rounded at random, to the
one or the other neighbour, such that the expected value is exact. The random numbers are those of
the step, by torch's generator.

bfloat16: the upper half of a float32.
int8: one byte a number, with one scale for each 128 columns of a row: the power of two that is
    above all of them, so that it seldom changes, and numbers with it. Of m, q means (q/127)² with
    its sign, of v (q/255)⁴: steps are finer near 0. A v above 0 never becomes 0, as m is divided
    by its root.
host: float32 in RAM; the rows of a step travel to the GPU and back. On a CPU it is float32.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

OptimizerState = Literal["float32", "bfloat16", "int8", "host"]

COLUMNS = 128  # of a row that share a scale
M_POWER, M_TOP = 2, 127
V_POWER, V_TOP = 4, 255
HALF = 16  # bits
SMALLEST = -126  # exponent of a scale


class Moments:
    """What Adam remembers of a table, in one of the forms."""

    def __init__(self, weight: Tensor, form: OptimizerState) -> None:
        on_host = form == "host" and weight.device.type != "cpu"
        self.form: OptimizerState = "float32" if form == "host" and not on_host else form
        self.device = weight.device

    @property
    def is_plain(self) -> bool:
        """Whether the numbers are just what and where the optimizer needs them."""
        return self.form == "float32"

    @property
    def is_on_host(self) -> bool:
        """Whether the numbers lie in RAM though the weights do not."""
        return self.form == "host"

    def begin(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the memory of weights that were never moved."""
        n, width = weight.shape
        place = "cpu" if self.is_on_host else self.device
        kinds = {"int8": (torch.int8, torch.uint8), "bfloat16": (torch.int16, torch.int16)}
        mean, square = kinds.get(self.form, (torch.float32, torch.float32))
        state = {
            "mean": torch.zeros(n, width, dtype=mean, device=place),
            "square": torch.zeros(n, width, dtype=square, device=place),
            "steps": torch.zeros(n, dtype=torch.float32, device=self.device),
        }
        if self.form == "int8":
            scales = torch.zeros(n, -(-width // COLUMNS), dtype=torch.int8, device=place)
            state |= {"mean_scale": scales, "square_scale": scales.clone()}
        return state

    def fetch(self, state: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        """Return the memory of some rows in float32, beside the weights."""
        steps = state["steps"].index_select(0, rows)
        if self.is_on_host:
            rows = rows.cpu()
        kept = {name: state[name].index_select(0, rows) for name in state if name != "steps"}
        return {"mean": self._read("mean", kept), "square": self._read("square", kept)} | {
            "steps": steps
        }

    def _read(self, name: str, kept: dict[str, Tensor]) -> Tensor:
        if self.form == "bfloat16":
            return _from_half(kept[name])
        if self.form == "int8":
            top, power = (M_TOP, M_POWER) if name == "mean" else (V_TOP, V_POWER)
            return _from_bytes(kept[name], kept[f"{name}_scale"], top, power)
        return kept[name].to(self.device)

    def keep(self, state: dict[str, Tensor], rows: Tensor, moved: dict[str, Tensor]) -> None:
        """Put back what `fetch` returned, after a step."""
        state["steps"].index_copy_(0, rows, moved["steps"])
        if self.is_on_host:
            rows = rows.cpu()
        written = {"mean": moved["mean"], "square": moved["square"]}
        if self.form == "bfloat16":
            written = {name: _to_half(value) for name, value in written.items()}
        elif self.form == "int8":
            mean, mean_scale = _to_bytes(moved["mean"], M_TOP, M_POWER)
            square, square_scale = _to_bytes(moved["square"], V_TOP, V_POWER)
            square = torch.where(moved["square"] > 0, square.clamp_min(1), square)
            written = {"mean": mean, "square": square}
            written |= {"mean_scale": mean_scale, "square_scale": square_scale}
        for name, value in written.items():
            kept = state[name]
            kept.index_copy_(0, rows, value.to(kept.device, kept.dtype))


def _to_half(x: Tensor) -> Tensor:
    """Return the upper 16 bits, rounded at random by what the lower ones say."""
    draws = torch.randint(1 << HALF, x.shape, dtype=torch.int32, device=x.device)
    return ((x.contiguous().view(torch.int32) + draws) >> HALF).to(torch.int16)


def _from_half(bits: Tensor) -> Tensor:
    return (bits.to(torch.int32) << HALF).view(torch.float32)


def _to_bytes(x: Tensor, top: int, power: int) -> tuple[Tensor, Tensor]:
    """Return q with the sign of x, and the exponents of the scales."""
    scales = _find_scales(x)
    share = torch.ldexp(x.abs(), -_spread(scales, x.shape[1]))  # of the scale, below 1
    low = (share ** (1 / power) * top).floor()
    value, above = (low / top) ** power, ((low + 1) / top) ** power
    up = torch.rand_like(x) < (share - value) / (above - value)
    return (low + up).clamp_max(top) * x.sign(), scales.to(torch.int8)


def _from_bytes(q: Tensor, scales: Tensor, top: int, power: int) -> Tensor:
    q = q.float()
    return torch.ldexp((q.abs() / top) ** power, _spread(scales.int(), q.shape[1])) * q.sign()


def _find_scales(x: Tensor) -> Tensor:
    """Return for each 128 columns the exponent of the power of two above all of them."""
    n, width = x.shape
    parts = F.pad(x, (0, -width % COLUMNS)).view(n, -1, COLUMNS)
    _, exponents = torch.frexp(parts.abs().amax(2))
    return exponents.clamp(SMALLEST, 127)


def _spread(scales: Tensor, width: int) -> Tensor:
    """Return the exponent of each column."""
    return scales.repeat_interleave(COLUMNS, 1)[:, :width]
