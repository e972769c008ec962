"""Layers for sparse documents: cost follows the cells of a batch, never the size of a matrix.

    X (B, n_features)   the batch's rows, as `SparseBatch`: cells by document, again by feature
    W (n_features, h)   SparseLinear.weight, of which a batch reads and changes the touched rows

Weight normalization (Salimans & Kingma 2016) with one trainable length g for all neurons of a
layer, as in GLaS, makes neuron j's weights g·w_j/‖w_j‖. In the sparse layer w_j is a column,
so its gradient has a part along w_j in every row. Under gradient descent that part would only
change ‖w_j‖, which is divided away; Adam, which scales each weight's gradient by itself, would
also turn w_j a little. The lazy layer leaves it out: what remains touches the batch's features
alone, and the lengths are kept up to date by `RowAdam` from the rows that it changes. The exact
layer keeps it, so its gradient is dense and a step costs as much as there are features.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.runtime.compiled import njit
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.runtime.rows import Rows
from longtail.training.kernels import has_coarse_kernels, has_triton
from longtail.training.moments import Moments, OptimizerState

ROWS_PER_TASK = 1024  # fixed, so that sums do not depend on the number of threads
EVERY = slice(None)
PART = {"cpu": 1 << 20, "cuda": 1 << 24}  # numbers whose memory is float32 at a time


class SparseBatch(NamedTuple):
    """The cells of a batch of sparse rows, in the order of documents and in that of features.

    Attributes:
        start: (B + 1,) document i has the cells start[i] ≤ c < start[i + 1].
        feature: (nnz,) the feature of each cell.
        value: (nnz,) its value.
        touched: (U,) the features that occur, each once, rising.
        touched_start: (U + 1,) where the cells of each of them begin, in the order of features.
        order: (nnz,) the cells in the order of features.
        document: (nnz,) their documents, in that order.
        cell_place: of each cell of a batch that several processes share, its place among own
            cells, nnz if it is another's; empty if there is but one process.
    """

    start: Tensor
    feature: Tensor
    value: Tensor
    touched: Tensor
    touched_start: Tensor
    order: Tensor
    document: Tensor
    cell_place: Tensor

    @classmethod
    def of(
        cls, rows: Rows, chosen: NDArray[np.int64], n_features: int, mine: slice = EVERY
    ) -> "SparseBatch":
        """Copy those of the `chosen` rows together that are `mine`."""
        arrays = _gather_cells(rows, chosen[mine], np.zeros(n_features, np.int32))
        drawn = _place_cells(rows.start[chosen + 1] - rows.start[chosen], mine)
        return cls(*(torch.from_numpy(array) for array in (*arrays, drawn)))

    @classmethod
    def from_batch(cls, batch: Mapping[str, Tensor]) -> "SparseBatch":
        """Take the fields out of a batch again."""
        return cls(*(batch[name] for name in cls._fields))


@njit(nogil=True, cache=True)
def _gather_cells(
    rows: Rows, chosen: NDArray[np.int64], free: NDArray[np.int32]
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.int64],
    NDArray[np.int32],
    NDArray[np.int64],
    NDArray[np.int32],
]:
    """Return the fields of SparseBatch; `free` is 0 for every feature.

    It counts the cells of each, then says where the next one goes in the order of features.
    """
    start = np.zeros(len(chosen) + 1, np.int32)
    for i in range(len(chosen)):
        start[i + 1] = start[i] + rows.start[chosen[i] + 1] - rows.start[chosen[i]]
    size = start[len(chosen)]
    feature = np.empty(size, np.int32)
    value = np.empty(size, np.float32)
    n_touched = 0
    for i in range(len(chosen)):
        first = rows.start[chosen[i]]
        for offset in range(start[i + 1] - start[i]):
            column = rows.columns[first + offset]
            feature[start[i] + offset] = column
            value[start[i] + offset] = rows.values[first + offset]
            n_touched += free[column] == 0
            free[column] += 1
    touched = np.empty(n_touched, np.int64)  # rising: such a gradient needs no coalescing
    touched_start = np.zeros(n_touched + 1, np.int32)
    at = 0
    for column in range(len(free)):
        if free[column]:
            touched[at], touched_start[at + 1] = column, touched_start[at] + free[column]
            free[column] = touched_start[at]
            at += 1
    order = np.empty(size, np.int64)
    document = np.empty(size, np.int32)
    for i in range(len(chosen)):
        for cell in range(start[i], start[i + 1]):
            at = free[feature[cell]]
            free[feature[cell]] += 1
            order[at] = cell
            document[at] = i
    return start, feature, value, touched, touched_start, order, document


def _place_cells(lengths: NDArray[np.int64], mine: slice) -> NDArray[np.int64]:
    """Return where the random number of each cell goes; `lengths` are those of all documents."""
    if mine == EVERY:
        return np.empty(0, np.int64)
    is_mine = np.zeros(len(lengths), np.bool_)
    is_mine[mine] = True
    mine_too = np.repeat(is_mine, lengths)
    places = np.cumsum(mine_too)
    return np.where(mine_too, places - 1, lengths[mine].sum())


def draw_for_cells(cells: SparseBatch) -> Tensor:
    """Return a number from [0, 1) for each cell, the same however many processes there are."""
    if not len(cells.cell_place):
        return torch.rand_like(cells.value)
    drawn = torch.rand(len(cells.cell_place), device=cells.value.device)
    own = cells.value.new_empty(len(cells.value) + 1)  # the last is for what others need
    return own.index_copy_(0, cells.cell_place, drawn)[:-1]


def drop_cells(cells: SparseBatch, keep: float) -> SparseBatch:
    """Input dropout: keep each cell with probability `keep`, scaled so that sums stay as large.

    Only cells that are not zero are drawn for; a zero would stay one anyway.
    """
    if keep >= 1:
        return cells
    kept = draw_for_cells(cells) < keep
    return cells._replace(value=cells.value * kept / keep)


class _Product(torch.autograd.Function):
    """X @ W for the cells of X; the gradient of W is sparse and holds the touched rows only."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, *cells: Tensor) -> Tensor:
        own = SparseBatch(*cells)
        ctx.save_for_backward(*cells)
        ctx.shape = weight.shape
        return _sum_rows(weight, own.feature, own.start, own.value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own = SparseBatch(*ctx.saved_tensors)
        gradient = gradients[0].float().contiguous()
        rows = _sum_rows(gradient, own.document, own.touched_start, own.value[own.order])
        return (_sparse_rows(own.touched, rows, ctx.shape), *(None,) * len(own))


def _sum_rows(table: Tensor, index: Tensor, start: Tensor, weight: Tensor) -> Tensor:
    """Return for each i the sum of weight[c]·table[index[c]] over start[i] ≤ c < start[i + 1]."""
    return F.embedding_bag(
        index, table, start, mode="sum", per_sample_weights=weight, include_last_offset=True
    )


def _sparse_rows(rows: Tensor, values: Tensor, shape: Iterable[int]) -> Tensor:
    return torch.sparse_coo_tensor(
        rows[None], values, tuple(shape), check_invariants=False, is_coalesced=True
    )


class _Take(torch.autograd.Function):
    """weight[rows] for distinct, rising rows, with a gradient that holds these rows only."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = weight.shape
        return weight.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return _sparse_rows(rows, gradients[0], ctx.shape), None


def multiply(cells: SparseBatch, weight: Tensor) -> Tensor:
    """Return X @ weight (B, h) without making X dense."""
    product: Tensor = _Product.apply(weight, *cells)  # type: ignore[no-untyped-call]
    return product


def take_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """Return weight[rows] for distinct, rising `rows`; the others get no gradient at all."""
    taken: Tensor = _Take.apply(weight, rows)  # type: ignore[no-untyped-call]
    return taken


def read_once(weight: nn.Parameter) -> nn.Parameter:
    """Declare that a step reads `weight` once, by `multiply` or `take_rows`.

    Its gradient then has distinct, rising rows; torch forgets that and would sort them again,
    for which a GPU waits for its host.
    """
    weight.register_post_accumulate_grad_hook(_mark_coalesced)  # type: ignore[no-untyped-call]
    return weight


def _mark_coalesced(weight: Tensor) -> None:
    if weight.grad is not None:
        weight.grad._coalesced_(True)


class SparseLinear(nn.Module):
    """From sparse rows to h neurons, with normalized weights and one trainable length.

    `squares` (h,) holds ‖w_j‖² of every neuron. An optimizer other than RowAdam must call
    `measure` after its steps, unless the layer is exact: it then measures them itself, and has a
    dense gradient.
    """

    squares: Tensor

    def __init__(
        self, n_features: int, n_neurons: int, spread: float = 0.01, *, exact: bool = False
    ):
        super().__init__()
        self.exact = exact
        self.weight = nn.Parameter(torch.empty(n_features, n_neurons).uniform_(-spread, spread))
        if not exact:
            read_once(self.weight)
        # Rows of length 1 then give sums of about 1.
        self.length = nn.Parameter(torch.tensor(float(n_features)).sqrt())
        self.bias = nn.Parameter(torch.zeros(n_neurons))
        self.register_buffer("squares", torch.zeros(n_neurons, dtype=torch.float64))
        self.measure()

    @torch.no_grad()
    def measure(self) -> None:
        """Compute the neurons' lengths from all their weights."""
        self.squares.zero_()
        for block in torch.split(self.weight, 1 << 14):
            self.squares += block.double().square().sum(0)

    def scales(self) -> Tensor:
        """Return g/‖w_j‖ (h,)."""
        squares = self.weight.square().sum(0) if self.exact else self.squares
        return self.length * squares.clamp_min(1e-24).rsqrt().float()

    def forward(self, cells: SparseBatch) -> Tensor:
        """Return g·X·w_j/‖w_j‖ + b_j, (B, h)."""
        return multiply(cells, self.weight) * self.scales() + self.bias


class NormalizedLinear(nn.Module):
    """A dense layer with normalized weights and one trainable length."""

    def __init__(self, n_inputs: int, n_neurons: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_neurons, n_inputs))
        self.length = nn.Parameter(torch.tensor(1.0))
        self.bias = nn.Parameter(torch.zeros(n_neurons))

    def weights(self) -> Tensor:
        """Return g·w_j/‖w_j‖ (n_neurons, n_inputs)."""
        return self.length * F.normalize(self.weight, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return g·w_j/‖w_j‖·x + b_j, (B, n_neurons)."""
        return F.linear(x, self.weights(), self.bias)


class RowAdam(torch.optim.Optimizer):
    """Adam for sparse gradients: rows that a batch does not touch are neither read nor written.

    Each row counts its own steps, so that a rare row is not moved too far when it first occurs
    (with a common count its first step would be three times the usual). The `squares` of a layer
    given as `layer` are kept up to date. What is remembered may be coarser than the weights
    (`moments.py`); a dense gradient, which moves all rows, is for that.
    """

    def __init__(
        self,
        weight: nn.Parameter,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        layer: SparseLinear | None = None,
        form: OptimizerState = "float32",
    ):
        super().__init__([weight], {"lr": lr, "betas": betas, "eps": eps})
        self.layer = layer
        self.moments = Moments(weight, form)
        self.found_inf: Tensor | None = None  # above 0: take no step, as torch's optimizers know it

    def _state_of(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state |= self.moments.begin(weight)
        return state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the rows that have a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                settings = (group["lr"], *group["betas"], group["eps"])
                state = self._state_of(weight)
                if weight.grad.is_sparse:
                    gradient = weight.grad.coalesce()
                    rows, values = gradient._indices()[0], gradient._values()
                else:
                    rows, values = torch.arange(len(weight), device=weight.device), weight.grad
                if self.moments.is_plain or self._has_kernel(weight):
                    self._move(weight, state, rows, values, settings)
                else:
                    self._move_in_parts(weight, state, rows, values, settings)

    def _has_kernel(self, weight: Tensor) -> bool:
        """Whether a kernel reads and writes what is kept in fewer bits."""
        return not self.moments.is_on_host and has_coarse_kernels(weight.device)

    def _move_in_parts(
        self,
        weight: Tensor,
        state: dict[str, Tensor],
        rows: Tensor,
        values: Tensor,
        settings: "Settings",
    ) -> None:
        """Take one step for `rows`, some at a time, whose memory is float32 for as long."""
        size = max(1, PART[weight.device.type] // weight.shape[1])
        parts = zip(torch.split(rows, size), torch.split(values, size), strict=True)
        for some, gradients in parts:
            own, memory = weight.index_select(0, some), self.moments.fetch(state, some)
            places = torch.arange(len(some), device=weight.device)
            self._move(own, memory, places, gradients, settings)
            weight.index_copy_(0, some, own)
            self.moments.keep(state, some, memory)

    def _move(
        self,
        weight: Tensor,
        state: dict[str, Tensor],
        rows: Tensor,
        values: Tensor,
        settings: "Settings",
    ) -> None:
        change: Tensor | None
        if weight.device.type == "cpu":
            change = _move_on_cpu(weight, state, rows, values, settings)
        elif has_triton(weight.device):
            from longtail.training.row_kernels import move_coarse_rows, move_rows

            is_coarse = state["mean"].dtype != torch.float32
            given = weight, state, rows, values, settings, self.found_inf
            move = move_coarse_rows if is_coarse else move_rows
            change = move(*given, measured=self.layer is not None)
        else:
            change = _move_on_gpu(weight, state, rows, values, settings, self.found_inf)
        if self.layer is not None and change is not None:
            self.layer.squares += change


Settings = tuple[float | Tensor, float, float, float]  # a rate may lie on a GPU


def _move_on_gpu(
    weight: Tensor,
    state: dict[str, Tensor],
    rows: Tensor,
    values: Tensor,
    settings: Settings,
    found_inf: Tensor | None = None,
) -> Tensor:
    """Take one step for `rows`; return by how much Σ w² of each column has changed."""
    lr, beta1, beta2, eps = settings
    steps = state["steps"][rows] + 1
    mean = torch.lerp(values.float(), state["mean"][rows], beta1)
    square = torch.lerp(values.float().square(), state["square"][rows], beta2)
    old = weight[rows]
    bias1, bias2 = 1 - beta1**steps, 1 - beta2**steps
    new = old - (lr / bias1)[:, None] * mean / (square.sqrt() / bias2.sqrt()[:, None] + eps)
    if found_inf is not None:
        new = torch.where(found_inf > 0, old, new)
    for target, source in (
        (state["steps"], steps),
        (state["mean"], mean),
        (state["square"], square),
        (weight, new),
    ):
        target.index_copy_(0, rows, source)
    return (new.square() - old.square()).sum(0, dtype=torch.float64)


def _move_on_cpu(
    weight: Tensor, state: dict[str, Tensor], rows: Tensor, values: Tensor, settings: Settings
) -> Tensor:
    """Do the same in one pass over the rows, on all threads."""
    arrays = (
        weight.detach().numpy(),
        state["mean"].numpy(),
        state["square"].numpy(),
        state["steps"].numpy(),
        rows.numpy(),
        values.contiguous().numpy(),
    )
    numbers = tuple(np.float32(number) for number in settings)
    cuts = [*range(0, len(rows), ROWS_PER_TASK), len(rows)]
    tasks: list[Any] = [(*arrays, first, last, *numbers) for first, last in pairwise(cuts)]
    if n_threads() == 1 or len(tasks) < 3:  # to start threads would take longer
        changes = [_move_rows(*task) for task in tasks]
    else:
        changes = run_tasks(_move_rows, tasks, [1.0] * len(tasks))
    return torch.from_numpy(np.sum(changes, axis=0)) if changes else torch.zeros(weight.shape[1])


@njit(nogil=True, cache=True, fastmath={"contract", "nsz", "arcp", "reassoc"})
def _move_rows(
    weight: NDArray[np.float32],
    mean: NDArray[np.float32],
    square: NDArray[np.float32],
    steps: NDArray[np.float32],
    rows: NDArray[np.int64],
    values: NDArray[np.float32],
    first: int,
    last: int,
    lr: np.float32,
    beta1: np.float32,
    beta2: np.float32,
    eps: np.float32,
) -> NDArray[np.float64]:
    one = np.float32(1)
    width = weight.shape[1]
    change = np.zeros(width, np.float64)
    for at in range(first, last):
        row = rows[at]
        steps[row] += one
        rate = lr / (one - beta1 ** steps[row])
        root = one / np.sqrt(one - beta2 ** steps[row])
        for j in range(width):
            gradient = values[at, j]
            m = beta1 * mean[row, j] + (one - beta1) * gradient
            s = beta2 * square[row, j] + (one - beta2) * gradient * gradient
            mean[row, j] = m
            square[row, j] = s
            old = weight[row, j]
            new = old - rate * m / (np.sqrt(s) * root + eps)
            weight[row, j] = new
            change[j] += np.float64((new - old) * (new + old))
    return change
