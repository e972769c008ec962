"""Rank-AE in training: equations (1) to (5), the network, and its task.

    I, V, e_j   cells, values, words (n_features, C)   words of a document, tf-idf, word vectors
    V' = v_j·e_j                                       spatial attention: no parameters
    A           σ(F2·δ(F1·V'))                         channel attention (5), r = `reduction`
    x'          pooled (B, C)                          the words V' ∘ A of a document, averaged
    x_h, y_h    embed, encode (B, dim)                 F(x), E(y): one vector from two sides
    y'          decode, then labels (n_labels, dim)    D: scores of all labels
    λ, m        balance, margin                        L_h + λ·L_ae (1), ranking loss (2) to (4)

What the paper prints and what we do by default differ in four places, each of which is a parameter:
`output`, `start`, `residual`, `pooling`.

This module needs torch, a trained model does not: `reader.py` predicts with what it exports.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.evaluation.metrics import evaluate
from longtail.models.rank_ae.reader import Reader
from longtail.models.rank_ae.sequence import BiLSTM
from longtail.runtime.quantized import QuantizedRows
from longtail.runtime.rows import Rows, pairs_of, view_rows
from longtail.text.tokens import TokenRows
from longtail.topk import TopK
from longtail.training import losses
from longtail.training.draws import dropout
from longtail.training.layers import (
    EVERY,
    RowAdam,
    SparseBatch,
    drop_cells,
    multiply,
    read_once,
    take_rows,
)

if TYPE_CHECKING:
    from longtail.models.rank_ae.model import RankAE

WORD_SPREAD = 0.1  # of the first word vectors, where nothing else says how large they are
LAYER_SPREAD = 0.01  # of the layers with a residual connection


# -- the paper's equations ----------------------------------------------------------------------


def attend(words: Tensor, F1: Tensor, F2: Tensor) -> Tensor:
    """Return F2·δ(F1·e) of each word (n, C), of which equation (5) takes the sigmoid.

    δ is the ReLU and there are no biases, so F2·δ(F1·v·e) = v·F2·δ(F1·e) for every v ≥ 0: the
    network runs once for each distinct word of a batch, not once for each word of each document.
    """
    return F.linear(F.relu(F.linear(words, F1)), F2)


def ranking(scores: Tensor, relevant: Tensor, m: float) -> Tensor:
    """Equations (2) to (4): every label against the hardest one of the other side, O(L)."""
    lowest = scores.masked_fill(~relevant, torch.inf).amin(1, keepdim=True)
    highest = scores.masked_fill(relevant, -torch.inf).amax(1, keepdim=True)
    L_P = ((m + scores - lowest).relu() * ~relevant).sum()  # (3)
    L_N = ((m + highest - scores).relu() * relevant).sum()  # (4)
    return (L_P + L_N) / len(scores)


def ranking_over_all(
    z: Tensor,
    V: Tensor,
    bias: Tensor,
    documents: Tensor,
    labels: Tensor,
    m: float,
    sigmoid: bool = False,
) -> Tensor:
    """Return `ranking` of the scores z·Vᵀ + b, which exist one piece at a time.

    Args:
        z: (B, d) documents.
        V: (L, d) labels.
        bias: (L,) of the labels.
        documents: (P,) the document of each relevant pair.
        labels: (P,) its label.
        m: the margin.
        sigmoid: whether y' are the sigmoids of the scores.
    """
    loss: Tensor = _RankingOverAll.apply(z, V, bias, documents, labels, m, sigmoid)  # type: ignore[no-untyped-call]
    return loss


class _RankingOverAll(torch.autograd.Function):
    """Loss and gradients in one pass, as `longtail.training.losses` does it."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        V: Tensor,
        bias: Tensor,
        documents: Tensor,
        labels: Tensor,
        m: float,
        sigmoid: bool,
    ) -> Tensor:
        device = z.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else z.dtype
        z_low, V_low, bias_low = z.to(low), V.to(low), bias.to(low)
        loss = z.new_zeros((), dtype=torch.float32)
        d_z = torch.empty_like(z_low)
        d_V = torch.zeros(V.shape, dtype=torch.float32, device=V.device)
        d_bias = torch.zeros(len(V), dtype=torch.float32, device=V.device)
        size = piece_size(device, len(V))
        with torch.autocast(device, enabled=False):
            for first in range(0, len(z), size):
                part = z_low[first : first + size]
                scores = torch.addmm(bias_low, part, V_low.T)  # (size, L)
                relevant = _mark_pairs(documents, labels, first, scores.shape)
                loss += (_rank_sigmoids if sigmoid else _rank_piece)(scores, relevant, m)
                torch.mm(scores, V_low, out=d_z[first : first + size])
                d_V += scores.T @ part
                d_bias += scores.sum(0, dtype=torch.float32)
        ctx.save_for_backward(d_z.to(z.dtype), d_V.to(V.dtype), d_bias.to(bias.dtype))
        ctx.n = len(z)
        return loss / len(z)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor = gradients[0] / ctx.n
        d_z, d_V, d_bias = ctx.saved_tensors
        return d_z * factor, d_V * factor, d_bias * factor, None, None, None, None


def piece_size(device_type: str, n_labels: int) -> int:
    """Return how many documents are scored at a time; the loss holds several such tables."""
    return max(1, losses.PIECE.get(device_type, losses.PIECE["cuda"]) // 4 // n_labels)


def _mark_pairs(documents: Tensor, labels: Tensor, first: int, shape: torch.Size) -> Tensor:
    """Return the table of which documents, counted from `first`, carry which labels."""
    row = documents - first
    inside = (row >= 0) & (row < shape[0])  # to select these would make a GPU wait for its host
    marked = torch.zeros(shape, dtype=torch.int8, device=labels.device)
    place = row.clamp(0, shape[0] - 1) * shape[1] + labels
    marked.view(-1).index_add_(0, place, inside.to(torch.int8))
    return marked.bool()


def _rank_piece(scores: Tensor, relevant: Tensor, m: float) -> Tensor:
    """Return the summed loss of a piece and leave its gradient in `scores`."""
    lowest = scores.masked_fill(~relevant, torch.inf).min(1, keepdim=True)
    highest = scores.masked_fill(relevant, -torch.inf).max(1, keepdim=True)
    too_high = (scores + m - lowest.values).relu_().mul_(~relevant)
    too_low = (highest.values + m - scores).relu_().mul_(relevant)
    loss = too_high.sum(dtype=torch.float32) + too_low.sum(dtype=torch.float32)
    high, low = too_high > 0, too_low > 0
    scores.copy_(high).sub_(low.to(scores.dtype))
    scores.scatter_add_(1, lowest.indices, -high.sum(1, keepdim=True).to(scores.dtype))
    scores.scatter_add_(1, highest.indices, low.sum(1, keepdim=True).to(scores.dtype))
    return loss


def _rank_sigmoids(scores: Tensor, relevant: Tensor, m: float) -> Tensor:
    """Do the same for y' = σ(scores), which bfloat16 could not tell apart near 1."""
    y = scores.float().sigmoid()
    slope = y * (1 - y)
    loss = _rank_piece(y, relevant, m)
    scores.copy_(y * slope)
    return loss


# -- words of a batch -----------------------------------------------------------------------------


class _Spread(torch.autograd.Function):
    """From a row for each touched feature to a row for each cell."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, order: Tensor, start: Tensor) -> Tensor:
        ctx.save_for_backward(order, start)
        place = torch.empty_like(order)
        every = torch.arange(len(table), device=table.device)
        place[order] = torch.repeat_interleave(every, torch.diff(start), output_size=len(order))
        return table.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        order, start = ctx.saved_tensors
        return _sum_runs(gradients[0].contiguous(), order, start), None, None


class _Pool(torch.autograd.Function):
    """From a row for each cell to the sum of each document's."""

    @staticmethod
    def forward(ctx: Any, cells: Tensor, start: Tensor) -> Tensor:
        every = torch.arange(len(start) - 1, device=start.device)
        document = torch.repeat_interleave(every, torch.diff(start), output_size=len(cells))
        ctx.save_for_backward(document)
        return _sum_runs(cells, torch.arange(len(cells), device=start.device), start)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None


def _sum_runs(table: Tensor, index: Tensor, start: Tensor) -> Tensor:
    """Return for each i the sum of table[index[c]] over start[i] ≤ c < start[i + 1]."""
    return F.embedding_bag(index, table, start.long(), mode="sum", include_last_offset=True)


# -- the network ----------------------------------------------------------------------------------


class RankAENetwork(nn.Module):
    """The maps F (words to x_h), E (labels to y_h) and D (either to scores)."""

    def __init__(
        self,
        model: "RankAE",
        n_features: int,
        n_labels: int,
        C: int,
        *,
        signed: bool = False,
        word_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.model, self.signed = model, signed
        h, narrow = model.dim, max(1, C // model.reduction)
        words = torch.randn(n_features, word_dim or C)
        words *= WORD_SPREAD if model.spread is None else model.spread
        self.words = read_once(nn.Parameter(words))
        self.squeeze = nn.Parameter(torch.randn(narrow, C) * model.gain / C**0.5)  # F1
        self.excite = nn.Parameter(torch.randn(C, narrow) / narrow**0.5)  # F2
        self.project = nn.Linear(C, h)
        self.encode_first = read_once(nn.Parameter(torch.empty(n_labels, h)))
        self.encode_bias = nn.Parameter(torch.zeros(h))
        self.encode_second, self.decode_first = nn.Linear(h, h), nn.Linear(h, h)
        self.labels = nn.Parameter(torch.empty(n_labels, h))
        self.bias = nn.Parameter(torch.zeros(n_labels))
        (self._begin_same if model.start == "same" else self._begin_random)()

    @torch.no_grad()
    def _begin_same(self) -> None:
        """Let the autoencoder return its labels from the first step on.

        Both of its ends begin with the same vectors, and the layers between pass them on.
        """
        first = F.normalize(torch.randn(self.labels.shape), dim=1)
        self.encode_first.copy_(first)
        self.labels.copy_(first)
        for layer in (self.encode_second, self.decode_first):
            if self.model.residual:
                nn.init.normal_(layer.weight, std=LAYER_SPREAD)
            else:
                nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    @torch.no_grad()
    def _begin_random(self) -> None:
        """Begin with layers whose outputs are about as large as their inputs (Glorot)."""
        for layer in (self.encode_second, self.decode_first):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.xavier_uniform_(self.encode_first)
        nn.init.xavier_uniform_(self.labels)

    @torch.no_grad()
    def begin_with(self, vectors: NDArray[np.float32]) -> None:
        """Take given word vectors; those without one, rows of zeros, are random and as large.

        With a `spread`, all are brought to it.
        """
        known = torch.from_numpy(vectors.any(axis=1))
        given = torch.from_numpy(vectors)[known]
        size, spread = given.square().mean().sqrt(), self.model.spread
        if spread is None:
            self.words.mul_(size / WORD_SPREAD)
            self.words[known] = given
        else:
            self.words[known] = given * (spread / size)

    def gather(
        self, rows: Any, chosen: NDArray[np.int64], mine: slice = EVERY
    ) -> dict[str, Tensor]:
        """Return those of the documents `chosen` that are `mine`, as `embed_batch` reads them."""
        return SparseBatch.of(rows, chosen, len(self.words), mine)._asdict()

    def embed_batch(self, batch: dict[str, Tensor]) -> Tensor:
        """F: return x_h (B, h); training drops cells."""
        cells = SparseBatch.from_batch(batch)
        return self.embed(drop_cells(cells, self.model.keep) if self.training else cells)

    def embed(self, cells: SparseBatch) -> Tensor:
        """F for the cells of rows."""
        v = cells.value[:, None]
        e = take_rows(self.words, cells.touched)  # (U, C), each word once
        tables = [e]
        if self.model.attention:
            tables.append(attend(e, self.squeeze, self.excite))
            if self.signed:
                tables.append(attend(-e, self.squeeze, self.excite))
        table = torch.cat([each.float() for each in tables], 1)
        table = _Spread.apply(table, cells.order, cells.touched_start)  # type: ignore[no-untyped-call]
        spread = table.chunk(len(tables), 1)  # each (nnz, C)
        M = v * spread[0]  # V', the spatial attention
        if self.model.attention:
            excited = torch.where(v < 0, spread[2], spread[1]) if self.signed else spread[1]
            M = M * torch.sigmoid(v.abs() * excited)  # V' ∘ A, the channel attention
        x: Tensor = _Pool.apply(M, cells.start)  # type: ignore[no-untyped-call]
        return self.finish(x, torch.diff(cells.start))

    def finish(self, x: Tensor, n_words: Tensor) -> Tensor:
        """Return x_h (B, h) from the sums (B, C) of so many words V' ∘ A."""
        if self.model.pooling == "unit":
            x = F.normalize(x, dim=1)
        else:
            x = x / n_words.clamp_min(1)[:, None]
        x_h: Tensor = self.project(x)  # (B, C) to (B, h)
        return x_h.float()

    def encode(self, labels: SparseBatch) -> Tensor:
        """E: return y_h (B, h)."""
        y = multiply(labels, self.encode_first) + self.encode_bias
        dropped = dropout(F.relu(y), self.model.dropout, self.training)
        z: Tensor = self.encode_second(dropped).float()
        return y.float() + z if self.model.residual else z

    def decode(self, latent: Tensor) -> Tensor:
        """The first layer of D: return what the labels' vectors are multiplied with (B, h)."""
        z = F.relu(self.decode_first(latent))
        if self.model.residual:
            z = latent + z
        return dropout(z, self.model.dropout, self.training)

    def export(self, weights: NDArray[np.float32]) -> Reader:
        """Return F and the first layer of D for prediction; `weights` are the features'."""
        layers: list[Tensor] = [self.squeeze.T, self.excite.T]
        for layer in (self.project, self.decode_first):
            layers += [layer.weight.T, layer.bias]
        arrays = (layer.contiguous().numpy() for layer in layers)
        row = np.arange(len(self.words), dtype=np.int32)
        return Reader(weights, row, QuantizedRows.of(self.words.numpy()), *arrays)

    def export_bilstm(self) -> BiLSTM | None:
        """Return the LSTM for prediction, where there is one."""
        return None


@dataclass
class RankAETask:
    """Equation (1), as the training loop's Task."""

    model: "RankAE"
    net: RankAENetwork
    X: sp.csr_matrix | TokenRows  # rows, or the words of texts
    Y: sp.csr_matrix
    held_out: tuple[sp.csr_matrix | TokenRows, sp.csr_matrix] | None
    sampled: int | None

    def __post_init__(self) -> None:
        """View the rows."""
        self.module: nn.Module = self.net
        self.n_documents = self.Y.shape[0]
        self.rows, self.pairs = _view(self.X), view_rows(self.Y)

    def batch(
        self, rows: NDArray[np.int64], rng: np.random.Generator, mine: slice = EVERY
    ) -> dict[str, Tensor]:
        """Return the words of the documents, their labels, and the labels sampled."""
        batch = self.net.gather(self.rows, rows, mine)
        own = rows[mine]
        for name, tensor in SparseBatch.of(self.pairs, own, self.Y.shape[1])._asdict().items():
            batch[f"y.{name}"] = tensor
        documents, labels = pairs_of(self.pairs, own)
        if self.sampled is not None:  # then a label is known by its place among the candidates
            more = rng.integers(self.Y.shape[1], size=self.sampled)
            candidates = np.unique(np.concatenate([pairs_of(self.pairs, rows)[1], more]))
            labels = np.searchsorted(candidates, labels)
            batch["candidates"] = torch.from_numpy(candidates)
        batch["documents"], batch["labels"] = map(torch.from_numpy, (documents, labels))
        return batch

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Equation (1); a document without labels has neither y_h nor anything to rank."""
        model, net = self.model, self.net
        labels = SparseBatch(*(batch[f"y.{name}"] for name in SparseBatch._fields))
        x_h = net.embed_batch(batch)
        y_h = net.encode(labels)
        labelled = torch.diff(labels.start) > 0
        L_h = (x_h - y_h).square().mean(1).mul(labelled).mean()
        return L_h + model.balance * self._reconstruct(net.decode(y_h), batch)

    def _reconstruct(self, z: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """L_ae: the ranking loss, or binary cross-entropy in its place."""
        model, net, pairs = self.model, self.net, (batch["documents"], batch["labels"])
        if self.sampled is None and model.loss == "bce":
            return losses.bce_over_all(z, net.labels, net.bias, *pairs)
        if self.sampled is None:
            sigmoid = model.output == "sigmoid"
            return ranking_over_all(z, net.labels, net.bias, *pairs, model.margin, sigmoid)
        candidates = batch["candidates"]
        scores = z @ take_rows(net.labels, candidates).T + net.bias[candidates]  # (B, candidates)
        relevant = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
        relevant[pairs] = True
        if model.loss == "bce":
            return losses.bce(scores.float(), relevant)
        y = scores.float().sigmoid() if model.output == "sigmoid" else scores.float()
        return ranking(y, relevant, model.margin)

    def optimizers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        """Return lazy Adam for the matrices of which a batch touches rows, Adam for the rest."""
        net = self.net
        by_row = [net.words, net.encode_first]
        if self.sampled is not None:
            by_row.append(read_once(net.labels))
        taken = {id(weight) for weight in by_row}
        rest = [weight for weight in net.parameters() if id(weight) not in taken]
        form = self.model.optimizer_state
        lazy: list[torch.optim.Optimizer] = [
            RowAdam(weight, learning_rate, form=form) for weight in by_row
        ]
        return [*lazy, torch.optim.Adam(rest, learning_rate, fused=True)]

    @torch.no_grad()
    def validate(self) -> dict[str, float] | None:
        """Return the metrics on the held-out documents."""
        if self.held_out is None:
            return None
        X, Y = self.held_out
        net, found, rows = self.net, [], _view(X)
        for first in range(0, Y.shape[0], 1024):
            chosen = np.arange(first, min(first + 1024, Y.shape[0]))
            batch = net.gather(rows, chosen)
            x_h = net.embed_batch({name: batch[name].to(net.bias.device) for name in batch})
            z = net.decode(x_h)
            scores = torch.addmm(net.bias, z, net.labels.T)  # (1024, L)
            found.append(scores.topk(min(5, len(net.bias)), dim=1).indices.cpu().numpy())
        labels = np.concatenate(found).astype(np.int32)
        return evaluate(TopK(labels, np.zeros(labels.shape, np.float32)), Y)


def _view(documents: sp.csr_matrix | TokenRows) -> Rows | TokenRows:
    return documents if isinstance(documents, TokenRows) else view_rows(documents)
