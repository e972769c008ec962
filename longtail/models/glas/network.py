"""GLaS in training: equations (1) to (3), the network, and algorithm 2.

    x, φ(x)     cells, phi (B, dim)          documents and their unit embeddings
    V, v_y      labels (n_labels, dim)       label embeddings, unit vectors
    h_y         scores (B, C)                φ(x)·v_y of the batch's candidate labels
    A = YᵀY     co-occurrence (sparse)       how many documents carry both labels; Z its diagonal
    U           similarity (R, R)            the block of ½(AZ⁻¹ + Z⁻¹A) for a batch's labels
    λ, ρ, c     strength, keep, margin
    s, b        scale, bias                  score = s·φ·v_y + b

This module needs torch, a trained model does not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.evaluation.metrics import evaluate
from longtail.labels.tree import multiply_in_blocks
from longtail.models.embedder import Embedder
from longtail.runtime.compiled import njit
from longtail.runtime.mapped import cut_sizes, is_mapped
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.runtime.rows import Rows, pairs_of, view_rows
from longtail.topk import TopK
from longtail.training import losses
from longtail.training.draws import current_part
from longtail.training.draws import dropout as drop
from longtail.training.layers import (
    EVERY,
    NormalizedLinear,
    RowAdam,
    SparseBatch,
    SparseLinear,
    drop_cells,
    read_once,
    take_rows,
)
from longtail.training.places import (
    find_place,
    find_places,
    keep_known,
    list_distinct,
    may_have,
    number_labels,
)
from longtail.training.processes import Processes
from longtail.training.split import (
    add_up,
    assemble_rows,
    draw_rows,
    find_best,
    gather_documents,
    gather_rows,
    keep_largest,
    softmax_among,
)

if TYPE_CHECKING:
    from longtail.models.glas.model import Embedding, GLaS, Similarity

BLOCK = 1024  # labels whose inner products a batch regularizes
# The size of a label's first vector. It is small against Adam's steps, so that labels quickly turn
# to their documents; with 1 instead, P@5 on held-out documents of bibtex is a point lower.
LABEL_SPREAD = 0.03
# Of labels that lie in files: pairs of all of them, and of one; and pairs counted at a time.
MOST_PAIRS, LEAST_PAIRS, BLOCK_OF_PAIRS = 1 << 28, 64, 1 << 25
FEWEST_PAIRS = 1 << 20  # that are worth a thread
SHORTEST = 1e-12  # length of a document that has a direction, as in `F.normalize`


# -- the paper's equations ----------------------------------------------------------------------


def margin_loss(
    scores: Tensor, own: Tensor, relevant: Tensor, c: float, sharing: Processes | None = None
) -> Tensor:
    """Equation (1) for one sampled relevant label y: Σ_{y'∉L} [h_y' − h_y + c]₊.

    Args:
        scores: (B, C) of the candidates.
        own: (B,) the column of y; −1 for documents without labels.
        relevant: (B, C) whether the document carries the candidate.
        c: the margin.
        sharing: the processes that hold the other candidates; `own` is −1 where they hold y.
    """
    return _violations(scores, own, relevant, c, sharing).sum() / len(scores)


def mined_margin_loss(
    scores: Tensor,
    own: Tensor,
    relevant: Tensor,
    c: float,
    k: int,
    sharing: Processes | None = None,
) -> Tensor:
    """Stochastic negative mining (Reddi et al. 2019): only the k hardest candidates count."""
    violations = _violations(scores, own, relevant, c, sharing)
    hardest = violations.topk(min(k, violations.shape[1]), dim=1).values
    if sharing is not None:
        hardest = keep_largest(hardest, k, sharing)
    return hardest.sum() / len(scores)


def _violations(
    scores: Tensor, own: Tensor, relevant: Tensor, c: float, sharing: Processes | None
) -> Tensor:
    """Return [h_y' − h_y + c]₊ (B, C), 0 for relevant y' and for documents without labels."""
    has_own = (own >= 0)[:, None]
    place = torch.where(own >= 0, own, scores.shape[1])[:, None]  # 0 stands behind the last
    own_scores = F.pad(scores, (0, 1)).gather(1, place)  # (B, 1)
    if sharing is not None:
        own_scores = add_up(own_scores.float(), sharing)
        has_own = sharing.sum(has_own.float()) > 0
    return (scores - own_scores + c).relu() * (~relevant & has_own)


def spread_out(gram: Tensor) -> Tensor:
    """Equation (2): the mean of (v_y·v_y')²; `gram` is VᵀV."""
    return gram.square().mean()


def glas(gram: Tensor, U: Tensor) -> Tensor:
    """Equation (3): 1/K² ‖VᵀV − U‖²_F."""
    return (gram - U).square().mean()


def gravity(phi: Tensor, V: Tensor) -> Tensor:
    """Krichene et al. 2018: the mean of (φ·v_y)² over all pairs, from the two Gram matrices."""
    return (phi.T @ phi / len(phi) * (V.T @ V / len(V))).sum()


def similarity(A: Tensor, n_documents: int, measure: "Similarity" = "arithmetic") -> Tensor:
    """Return U from the co-occurrence counts A (R, R); 0 for labels without documents."""
    Z = A.diagonal()
    return similarity_of_pairs(A, Z[:, None], Z[None, :], n_documents, measure)


def similarity_of_pairs(
    both: Tensor, one: Tensor, other: Tensor, n_documents: int, measure: "Similarity"
) -> Tensor:
    """Return u_yy' of pairs: the documents that carry both labels, the one, the other."""
    A, row, column = both, one.clamp_min(1), other.clamp_min(1)
    if measure == "arithmetic":  # ½(F(y|y') + F(y'|y))
        return (A / row + A / column) / 2
    if measure == "geometric":  # √(F(y|y')·F(y'|y)), theorem B.1
        return A / (row * column).sqrt()
    if measure == "jaccard":
        return A / (row + column - A).clamp_min(1)
    information = (A.clamp_min(1) * n_documents / (row * column)).log()
    most = (n_documents / A.clamp_min(1)).log()
    # Labels that every document carries have no information; as equals they count as 1.
    share = torch.where(most > 0, information / most.clamp_min(1e-12), 1.0)
    return torch.where(A > 0, share.clamp_min(0), 0.0)


# -- the network ----------------------------------------------------------------------------------


def unit_documents(x: Tensor) -> Tensor:
    """Return x/‖x‖ (B, dim); what has no length stays 0, and has no gradient.

    Before the first step biases are 0, and so is a document without cells, or whose neurons are
    all dropped. `F.normalize` multiplies its gradient by 10¹²: Adam then remembers squares of such
    a size that the biases hardly move again.
    """
    length: Tensor = x.norm(dim=1, keepdim=True)
    return x / length.masked_fill(length < SHORTEST, torch.inf)


class GLaSNetwork(nn.Module):
    """The embedding map φ, linear or with a ReLU layer, and the label embeddings V."""

    def __init__(
        self,
        n_features: int,
        n_labels: int,
        dim: int,
        embedding: "Embedding",
        share: float,
        *,
        lazy: bool = True,
        own: slice = EVERY,
    ):
        super().__init__()
        self.embedding, self.lazy = embedding, lazy
        self.first = SparseLinear(n_features, dim, exact=not lazy)
        self.second = None if embedding == "linear" else NormalizedLinear(dim, dim)
        self.labels = nn.Parameter(LABEL_SPREAD * draw_rows(n_labels, dim, own))
        # A label that is neither near nor far should begin with its usual share of documents.
        share = min(share, 0.5)
        usual = float(np.log(share / (1 - share)))
        # Its logarithm, as Adam's steps are too small for numbers of this size.
        self.log_scale = nn.Parameter(torch.tensor(max(10.0, -2.5 * usual)).log())
        self.bias = nn.Parameter(torch.tensor([usual]))

    def embed(self, cells: SparseBatch, dropout: float = 0.0) -> Tensor:
        """Return φ(x), unit vectors (B, dim)."""
        x = self.first(cells)  # (B, dim)
        if self.second is not None:
            y = self.second(drop(F.relu(x), dropout, self.training))  # (B, dim)
            x = x + y if self.embedding == "residual" else y
        return unit_documents(x.float())

    @property
    def scale(self) -> Tensor:
        """Return s, the length that the labels' weights share."""
        return self.log_scale.exp()

    def all_labels(self) -> Tensor:
        """Return V (n_labels, dim)."""
        return F.normalize(self.labels, dim=1)

    def some_labels(self, which: Tensor) -> Tensor:
        """Return the rows `which` of V, leaving all others alone if the network is lazy."""
        taken = take_rows(self.labels, which) if self.lazy else self.labels[which]
        return F.normalize(taken, dim=1)

    def export(self, weights: NDArray[np.float32]) -> Embedder:
        """Return φ for prediction, with the lengths multiplied in; `weights` are the features'."""
        self.first.measure()
        weight = (self.first.weight * self.first.scales()).cpu().numpy()
        bias = self.first.bias.cpu().numpy()
        if self.second is None:
            return Embedder.of(weights, weight, bias)
        second = self.second.weights().T.contiguous().cpu().numpy(), self.second.bias.cpu().numpy()
        return Embedder.of(weights, weight, bias, second, residual=self.embedding == "residual")


@dataclass
class GLaSTask:
    """Algorithm 2, as the training loop's Task."""

    model: "GLaS"
    net: GLaSNetwork
    X: sp.csr_matrix
    Y: sp.csr_matrix
    thinned: sp.csr_matrix  # Y, with some labels only of documents that have very many
    held_out: tuple[sp.csr_matrix, sp.csr_matrix] | None
    sampled: int | None
    device_type: str
    sharing: Processes | None = None  # among which the labels are split

    def __post_init__(self) -> None:
        """View the rows and count which labels go together."""
        self.module: nn.Module = self.net
        self.n_documents = self.X.shape[0]
        self.lies_in_files = is_mapped(self.X)
        self.rows, self.pairs = view_rows(self.X), view_rows(self.Y)
        self.together = None
        self.table: Tensor | None = None
        if self.model.regularizer == "glas":
            self.together = view_rows(count_together(self.Y, self.thinned))
        self.split = () if self.sharing is None else ("labels",)
        has_table = self.model.has_table(self.Y.shape[1], self.device_type)
        self.has_table = has_table and self.sharing is None

    def batch(
        self, rows: NDArray[np.int64], rng: np.random.Generator, mine: slice = EVERY
    ) -> dict[str, Tensor]:
        """Return the cells of the documents, their labels, and the labels sampled for them."""
        model = self.model
        batch: dict[str, Any] = SparseBatch.of(self.rows, rows, self.X.shape[1], mine)._asdict()
        scored = rows[mine] if self.sharing is None else rows
        documents, labels = pairs_of(self.pairs, scored)
        own = _draw_labels(self.pairs, rows, rng.random(len(rows)))  # y_1, …, y_B of line 12
        distinct = rng.permutation(list_distinct(own))
        block = distinct[:BLOCK] if model.regularized is None else self._draw_block(own, rng)
        if self.together is not None and not self.has_table:
            batch["A"] = torch.from_numpy(_take_block(self.together, block))
        scores_some = self.sampled is not None or self.sharing is not None
        if scores_some:  # then a label is known by its place among those that are scored
            batch["regularized"] = torch.from_numpy(block)
            find = self._choose_scored(distinct, block, rng, batch)
            own, block, labels = find(own), find(block), find(labels)
            documents, labels = keep_known(documents, labels)
        if self.sharing is not None:
            batch["block_place"] = torch.from_numpy(np.flatnonzero(block >= 0))
            block = block[block >= 0]
        if self.sharing is None:
            own = own[mine]
        for name, array in (("own", own), ("block", block), ("documents", documents)):
            batch[name] = torch.from_numpy(array)
        batch["labels"] = torch.from_numpy(labels)
        return batch

    def _choose_scored(
        self,
        distinct: NDArray[np.int64],
        block: NDArray[np.int64],
        rng: np.random.Generator,
        batch: dict[str, Any],
    ) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        """Choose which labels to score; return what finds labels among them, −1 for others."""
        sharing = self.sharing
        if self.sampled is None and sharing is not None:
            return partial(_find_own, sharing=sharing)
        more = rng.integers(self.Y.shape[1], size=self.sampled)
        candidates = list_distinct(np.concatenate([distinct, block, more]))
        if sharing is not None:
            candidates = candidates[candidates % sharing.count == sharing.rank]
        held = candidates if sharing is None else candidates // sharing.count
        batch["candidates"] = torch.from_numpy(held)
        return partial(find_places, number_labels(candidates))

    def _draw_block(self, own: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the distinct labels of the batch, and of as many other documents as it takes."""
        n = max(0, (self.model.regularized or 0) - len(own))
        others = rng.integers(self.n_documents, size=n)
        drawn = np.concatenate([own, _draw_labels(self.pairs, others, rng.random(n))])
        return np.asarray(rng.permutation(list_distinct(drawn)), np.int64)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Lines 13 to 18: dropout, the loss of the documents, the regularizer."""
        model, net = self.model, self.net
        cells = drop_cells(SparseBatch.from_batch(batch), model.keep)
        phi = net.embed(cells, model.dropout)
        if self.sharing is not None:
            phi = gather_documents(phi, current_part().n_documents or len(phi), self.sharing)
        V = net.all_labels() if self.sampled is None else net.some_labels(batch["candidates"])
        if self.sampled is None and (
            model.loss == "bce" or (model.loss == "softmax" and self.sharing is None)
        ):
            loss = self._loss_over_all(phi, V, batch)
        else:
            loss = self._loss_of_candidates(phi, V, batch)
        if model.regularizer == "none" or not model.strength:
            return loss
        return loss + model.strength * self._regularize(phi, V, batch)

    def _loss_over_all(self, phi: Tensor, V: Tensor, batch: dict[str, Tensor]) -> Tensor:
        net = self.net
        over_all = losses.bce_over_all if self.model.loss == "bce" else losses.softmax_over_all
        return over_all(phi * net.scale, V, net.bias, batch["documents"], batch["labels"])

    def _loss_of_candidates(self, phi: Tensor, V: Tensor, batch: dict[str, Tensor]) -> Tensor:
        model, net, own, sharing = self.model, self.net, batch["own"], self.sharing
        scores = phi @ V.T  # (B, C)
        relevant = torch.zeros(scores.numel(), dtype=torch.bool, device=scores.device)
        pairs = batch["documents"] * scores.shape[1] + batch["labels"]
        relevant.index_fill_(0, pairs, True)  # `relevant[…] = True` waits for a GPU
        relevant = relevant.view(scores.shape)
        if model.loss == "margin":
            return margin_loss(scores, own, relevant, model.margin, sharing)
        if model.loss == "mining":
            return mined_margin_loss(scores, own, relevant, model.margin, model.mined, sharing)
        scores = (scores * net.scale + net.bias).float()
        if model.loss == "softmax" and sharing is not None:
            return softmax_among(scores, relevant, sharing)
        return (losses.bce if model.loss == "bce" else losses.softmax)(scores, relevant)

    def _regularize(self, phi: Tensor, V: Tensor, batch: dict[str, Tensor]) -> Tensor:
        block = self._take_block(V, batch)  # (R, dim)
        if not len(block):
            return phi.new_zeros(())
        share = 1 if self.sharing is None else self.sharing.count  # each adds its part
        return self._regularize_block(phi, block, batch) / share

    def _take_block(self, V: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return the labels whose inner products count, whoever holds them."""
        rows = V.index_select(0, batch["block"])
        if self.sharing is None:
            return rows
        return assemble_rows(rows, batch["block_place"], len(batch["regularized"]), self.sharing)

    def _regularize_block(self, phi: Tensor, block: Tensor, batch: dict[str, Tensor]) -> Tensor:
        model = self.model
        if model.regularizer == "gravity":
            return gravity(phi, block)
        if model.regularizer == "spread-out":
            return spread_out(block @ block.T)
        return glas(block @ block.T, self._similarity_of(batch))

    def _similarity_of(self, batch: dict[str, Tensor]) -> Tensor:
        """Return U for the labels of the block."""
        if "A" in batch:
            return similarity(batch["A"], self.n_documents, self.model.similarity)
        if self.table is None:
            self.table = self._build_table(batch["block"].device)
        labels = batch.get("regularized", batch["block"])
        return self.table[labels[:, None], labels[None, :]].float()

    def _build_table(self, device: torch.device) -> Tensor:
        """Return U for all labels, in half precision, of which a GPU reads blocks quickly."""
        if self.together is None:
            raise RuntimeError("the labels that go together have not been counted")
        n_labels = self.Y.shape[1]
        start, columns, values = (torch.from_numpy(part).to(device) for part in self.together)
        table = torch.zeros(n_labels, n_labels, dtype=torch.float16, device=device)
        rows = torch.repeat_interleave(torch.diff(start), output_size=len(columns))
        counts = torch.zeros(n_labels, device=device)
        counts[columns[rows == columns].long()] = values[rows == columns]
        pairs = similarity_of_pairs(
            values, counts[rows], counts[columns.long()], self.n_documents, self.model.similarity
        )
        table[rows, columns.long()] = pairs.half()
        return table

    def optimizers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        """Return lazy Adam for the matrices of which a batch touches rows, Adam for the rest."""
        net, form = self.net, self.model.optimizer_state
        lazy: list[torch.optim.Optimizer] = []
        if net.lazy or form != "float32":
            layer = net.first if net.lazy else None
            lazy.append(RowAdam(net.first.weight, learning_rate, layer=layer, form=form))
        if net.lazy and self.sampled is not None:
            read_once(net.labels)
        if form != "float32" or (net.lazy and self.sampled is not None):
            lazy.append(RowAdam(net.labels, learning_rate, form=form))
        taken = {id(p) for optimizer in lazy for p in optimizer.param_groups[0]["params"]}
        rest = [p for p in net.parameters() if id(p) not in taken]
        return [*lazy, torch.optim.Adam(rest, learning_rate, fused=True)]

    def join(self) -> GLaSNetwork:
        """Return the network with the labels of all processes, which are then on the CPU."""
        if self.sharing is not None:
            self.net.labels = nn.Parameter(gather_rows(self.net.labels, self.sharing))
        return self.net

    def validate(self) -> dict[str, float] | None:
        """Return the metrics on the held-out documents."""
        return None if self.held_out is None else self.measure(*self.held_out)

    @torch.no_grad()
    def measure(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> dict[str, float]:
        """Return the metrics on documents, by the weights as they are."""
        lengths = self.net.first.squares.clone()
        self.net.first.measure()  # the weights may be averages
        V, device = self.net.all_labels(), self.net.bias.device
        found = []
        for first in range(0, X.shape[0], 1024):
            chosen = np.arange(first, min(first + 1024, X.shape[0]))
            cells = SparseBatch.of(view_rows(X), chosen, X.shape[1])
            phi = self.net.embed(SparseBatch(*(part.to(device) for part in cells)))
            best = find_best(phi @ V.T, min(5, self.Y.shape[1]), self.sharing)
            found.append(best.cpu().numpy())
        self.net.first.squares.copy_(lengths)
        labels = np.concatenate(found).astype(np.int32)
        return evaluate(TopK(labels, np.zeros(labels.shape, np.float32)), Y)


def _find_own(labels: NDArray[np.int64], sharing: Processes) -> NDArray[np.int64]:
    """Return where this process holds the labels, −1 for those that it does not."""
    is_own = (labels >= 0) & (labels % sharing.count == sharing.rank)
    return np.where(is_own, labels // sharing.count, -1)


def count_together(Y: sp.csr_matrix, thinned: sp.csr_matrix | None = None) -> sp.csr_matrix:
    """Return A = YᵀY: how many documents carry both labels.

    Pairs are counted in `thinned`, where it is given; Z, the diagonal, always counts all documents.
    """
    pairs = Y if thinned is None else thinned
    ones = sp.csr_matrix(
        (np.ones(pairs.nnz, np.float32), pairs.indices, pairs.indptr), shape=Y.shape
    )
    A = _multiply_in_blocks(ones) if is_mapped(Y) else _multiply_on_all_cores(ones)
    if pairs.nnz == Y.nnz:
        return A
    Z = np.bincount(Y.indices, minlength=Y.shape[1]).astype(np.float32)
    return sp.csr_matrix(A + sp.diags(Z - A.diagonal()))


def _multiply_on_all_cores(Y: sp.csr_matrix) -> sp.csr_matrix:
    """Return YᵀY, some labels at a time on each core."""
    by_label = Y.T.tocsr()
    n_cells = by_label @ np.diff(Y.indptr).astype(np.float64)
    at_once = max(FEWEST_PAIRS, int(n_cells.sum()) // (8 * n_threads()))
    cuts = cut_sizes(n_cells.astype(np.int64), at_once)
    costs = [float(at_once)] * len(cuts)
    parts = run_tasks(lambda first, last: by_label[first:last] @ Y, cuts, costs)
    return sp.csr_matrix(sp.vstack(parts, "csr")) if len(parts) > 1 else by_label @ Y


def _multiply_in_blocks(Y: sp.csr_matrix) -> sp.csr_matrix:
    """Return YᵀY in a file, some labels at a time; of those that have more, the commonest pairs."""
    most = max(LEAST_PAIRS, MOST_PAIRS // max(1, Y.shape[1]))
    return multiply_in_blocks(Y.T.tocsr(), Y, BLOCK_OF_PAIRS, most)


def _draw_labels(
    pairs: Rows, rows: NDArray[np.int64], draws: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return one of each document's labels, chosen by draws from [0, 1); −1 if it has none."""
    first = pairs.start[rows]
    counts = pairs.start[rows + 1] - first
    at = np.where(counts > 0, first + (draws * counts).astype(np.int64), 0)
    return np.where(counts > 0, pairs.columns[at], -1).astype(np.int64)


@njit(nogil=True, cache=True)
def _take_block(A: Rows, chosen: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return A[chosen][:, chosen]."""
    places = number_labels(chosen)
    marks = places.marks
    block = np.zeros((len(chosen), len(chosen)), np.float32)
    for i in range(len(chosen)):
        for cell in range(A.start[chosen[i]], A.start[chosen[i] + 1]):
            if may_have(marks, A.columns[cell]):
                j = find_place(places, A.columns[cell])
                if j >= 0:
                    block[i, j] = A.values[cell]
    return block
