"""DXML in training: equations (1) to (3) and the network of figure 1.

    V           label_vectors_ (n_labels, dim)   DeepWalk's vectors of the label graph
    x, f_x      cells, (B, dim)                  documents and where the network puts them
    f_y         (B, dim)                         where they belong: the mean of their labels' V
    W_1, W_2    first (n_features, hidden), second (hidden, dim)
    Z_i, m      voters_.index, clusters          k-means clusters of the documents
    k           neighbours

This module needs torch, a trained model does not.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.evaluation.metrics import evaluate
from longtail.models.dxml.model import USUAL_NUMBER
from longtail.models.embedder import Embedder
from longtail.runtime.rows import pairs_of, view_rows
from longtail.search.index import build_index
from longtail.search.voters import count_votes, weigh_votes
from longtail.training.draws import current_part
from longtail.training.draws import dropout as drop
from longtail.training.layers import EVERY, RowAdam, SparseBatch, drop_cells, multiply, read_once

if TYPE_CHECKING:
    from longtail.models.dxml.model import DXML

Embedding = Literal["linear", "relu", "residual"]

SPREAD = 0.02  # of the first layer's weights before training


# -- the paper's equations ----------------------------------------------------------------------


def distance(f_x: Tensor, f_y: Tensor) -> Tensor:
    """Equations (1) and (2): Σ_j h(f_x, f_y), the smooth l1 distance of each row."""
    return F.smooth_l1_loss(f_x, f_y, reduction="none", beta=1.0).sum(1)


def mean_labels(V: Tensor, labels: Tensor, start: Tensor) -> Tensor:
    """Line 3 of algorithm 1: f_y = Vy/nnz(y)."""
    return F.embedding_bag(labels, V, start, mode="mean", include_last_offset=True)


# -- the network ----------------------------------------------------------------------------------


class DXMLNetwork(nn.Module):
    """Figure 1: W_1, ReLU, W_2, dropout, length 1; an update may begin with one linear map."""

    def __init__(self, n_features: int, hidden: int, dim: int, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        weight = torch.empty(n_features, hidden).uniform_(-SPREAD, SPREAD)
        self.first = read_once(nn.Parameter(weight))
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.second: nn.Linear | None = nn.Linear(hidden, dim) if dim else None

    def forward(self, cells: SparseBatch, dropout: float = 0.0) -> Tensor:
        """Return f_x, unit vectors (B, dim)."""
        x = multiply(cells, self.first) + self.bias  # (B, hidden)
        if self.second is not None:
            y = self.second(x if self.embedding == "linear" else F.relu(x))  # (B, dim)
            x = x + y if self.embedding == "residual" else y
        return F.normalize(drop(x.float(), dropout, self.training), dim=1)

    def export(self, weights: NDArray[np.float32]) -> Embedder:
        """Return what embeds documents without torch; two linear layers become one."""
        first, bias = self.first.numpy(), self.bias.numpy()
        if self.second is None:
            return Embedder.of(weights, first, bias)
        second = self.second.weight.T.contiguous().numpy(), self.second.bias.numpy()
        if self.embedding == "linear":
            return Embedder.of(weights, first @ second[0], bias @ second[0] + second[1])
        return Embedder.of(weights, first, bias, second, residual=self.embedding == "residual")


def new_network(
    n_features: int, hidden: int, dim: int, embedding: Embedding, seed: int
) -> DXMLNetwork:
    """Return a network whose weights the seed decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DXMLNetwork(n_features, hidden, dim, embedding)


def open_network(embedder: Embedder) -> DXMLNetwork:
    """Return the network that became `embedder`, to train it further."""
    n_features, hidden = len(embedder.feature_weight), len(embedder.bias)
    dim = len(embedder.second_bias)
    embedding: Embedding = "linear" if dim == 0 else "residual" if embedder.residual[0] else "relu"
    net = DXMLNetwork(n_features, hidden, dim, embedding)
    with torch.no_grad():
        kept = np.flatnonzero(embedder.row >= 0)
        weight = embedder.weight.take(embedder.row[kept], hidden)
        net.first.zero_()[torch.from_numpy(kept)] = torch.from_numpy(weight)
        net.bias.copy_(torch.from_numpy(embedder.bias.copy()))
        if net.second is not None:
            net.second.weight.copy_(torch.from_numpy(embedder.second.take(slice(None), dim).T))
            net.second.bias.copy_(torch.from_numpy(embedder.second_bias.copy()))
    return net


# -- the task -------------------------------------------------------------------------------------


@dataclass
class DXMLTask:
    """Line 4 of algorithm 1, as the training loop's Task.

    Attributes:
        model: holds the parameters.
        net: what is trained.
        X: (n, n_features) rows as the network reads them.
        Y: (n, n_labels) their labels.
        vectors: (n_labels, dim) the labels' vectors V.
        kept: the documents to train on.
        held: the documents that choose the best epoch.
    """

    model: "DXML"
    net: DXMLNetwork
    X: sp.csr_matrix
    Y: sp.csr_matrix
    vectors: NDArray[np.float32]
    kept: NDArray[np.int64]
    held: NDArray[np.int64]

    def __post_init__(self) -> None:
        """View the rows."""
        self.module: nn.Module = self.net
        self.n_documents = len(self.kept)
        self.rows, self.pairs = view_rows(self.X), view_rows(self.Y)
        self._V: Tensor | None = None

    def batch(
        self, rows: NDArray[np.int64], rng: np.random.Generator, mine: slice = EVERY
    ) -> dict[str, Tensor]:
        """Return the cells of the documents, and their labels."""
        cells = SparseBatch.of(self.rows, self.kept[rows], self.X.shape[1], mine)
        batch: dict[str, Any] = cells._asdict()
        chosen = self.kept[rows[mine]]
        _, labels = pairs_of(self.pairs, chosen)
        counts = self.pairs.start[chosen + 1] - self.pairs.start[chosen]
        batch["labels"] = torch.from_numpy(labels)
        batch["label_start"] = torch.from_numpy(np.concatenate(([0], np.cumsum(counts))))
        return batch

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Equation (3): the distances of f_x and f_y, as a sum or their mean."""
        cells = drop_cells(SparseBatch.from_batch(batch), self.model.keep)
        f_x = self.net(cells, self.model.dropout)
        f_y = mean_labels(self._vectors_on(f_x.device), batch["labels"], batch["label_start"])
        if self.model.unit_labels:
            f_y = F.normalize(f_y, dim=1)  # as f_x is
        distances = distance(f_x, f_y)
        if not self.model.sum_losses:
            return distances.mean()
        n_documents = current_part().n_documents or len(distances)  # over all processes
        return distances.sum() * (n_documents / len(distances))

    def _vectors_on(self, device: torch.device) -> Tensor:
        """Return V on the device; it is no parameter, so training does not move it."""
        if self._V is None or self._V.device != device:
            self._V = torch.from_numpy(self.vectors).to(device)
        return self._V

    def optimizers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        """Return lazy Adam for the first layer and Adam for the rest, or SGD with momentum."""
        net, model = self.net, self.model
        if model.optimizer == "sgd":
            net.first.register_post_accumulate_grad_hook(_make_dense)  # type: ignore[no-untyped-call]
            return [
                torch.optim.SGD(
                    net.parameters(),
                    learning_rate,
                    momentum=model.momentum,
                    weight_decay=model.weight_decay,
                )
            ]
        rest = [parameter for parameter in net.parameters() if parameter is not net.first]
        return [
            RowAdam(net.first, learning_rate, form=model.optimizer_state),
            torch.optim.Adam(rest, learning_rate, fused=True),
        ]

    @torch.no_grad()
    def validate(self) -> dict[str, float] | None:
        """Return the metrics of the held-out documents' neighbours."""
        if not len(self.held):
            return None
        index = build_index(
            self._embed(self.kept), method="exact", device=self.net.bias.device.type
        )
        n = self.model.neighbours or USUAL_NUMBER
        ids, cosines = index.search(self._embed(self.held), n)
        top = count_votes(ids, weigh_votes(cosines, self.model.temperature), self.Y[self.kept], 5)
        return evaluate(top, self.Y[self.held])

    def _embed(self, documents: NDArray[np.int64]) -> NDArray[np.float32]:
        device = self.net.bias.device
        parts = []
        for first in range(0, len(documents), 4096):
            cells = SparseBatch.of(self.rows, documents[first : first + 4096], self.X.shape[1])
            parts.append(self.net(SparseBatch(*(part.to(device) for part in cells))).cpu().numpy())
        return np.concatenate(parts)


def _make_dense(weight: Tensor) -> None:
    """SGD with momentum and weight decay moves every weight, touched or not."""
    if weight.grad is not None:
        weight.grad = weight.grad.to_dense()
