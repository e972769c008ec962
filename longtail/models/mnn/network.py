"""MNN in training: equations (1) to (11), the two networks, and how labels will be ranked.

    x, w, K      cells                     a document's features, their weights, how many there are
    y, T         labels                    its labels, how many there are
    W'_e, W_e    features, labels          the tables of feature and label embeddings (·, dim)
    f_x, f_y     embed, embed_labels       mean of the rows of features; of labels (B, dim)
    p, r         keep                      feature dropout: share of a document's features kept
    c(x, y)      cosines                   (B, B) for all documents and label sets of a batch
    y_ij         LabelSets.draw            (B, h) label sets of other documents, drawn for each
    h, m         negatives, margin         how many are drawn, and what cosine of theirs is harmless

This module needs torch, a trained model does not.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from longtail.evaluation.metrics import evaluate
from longtail.models.embedder import Embedder
from longtail.models.mnn.model import LARGEST_GATHER, LARGEST_PRODUCT
from longtail.models.neural import find_useful
from longtail.runtime.rows import view_rows
from longtail.search.voters import choose_voting, count_votes, weigh_votes
from longtail.topk import TopK
from longtail.training.draws import current_part
from longtail.training.draws import dropout as drop
from longtail.training.layers import (
    EVERY,
    NormalizedLinear,
    RowAdam,
    SparseBatch,
    draw_for_cells,
    multiply,
    read_once,
)

if TYPE_CHECKING:
    from longtail.models.mnn.model import MNN, Embedding, Rank

FIRST_SCALE = 10.0  # what cosines are multiplied by in the softmax, before it is learned
MANY_DRAWN = 8  # below so many label sets for each drawn, all cosines cost less than copies
LARGEST_TABLE = 1 << 26  # of labels × documents, to count overlaps by
COUNTS = (5, 10, 20, 30, 50, 100, 200)  # numbers of neighbours to choose from
TEMPERATURES = (0.02, 0.03, 0.05, 0.1, 0.2)  # and how fast the weight of a neighbour falls


# -- the paper's equations ----------------------------------------------------------------------


def drop_features(cells: SparseBatch, keep: float) -> SparseBatch:
    """Equations (5) and (6): each feature stays with probability `keep`, the mean is over these.

    A kept value is multiplied by K/‖r‖₁, which makes the sum over the document's features K times
    the mean (6). A document that would lose all its features keeps them.
    """
    if keep >= 1:
        return cells
    kept = (draw_for_cells(cells) < keep).float()
    lengths = torch.diff(cells.start).long()  # K of each document
    document = torch.repeat_interleave(lengths, output_size=len(kept))
    n_kept = torch.zeros(len(lengths), device=kept.device).index_add_(0, document, kept)  # ‖r‖₁
    factor = lengths / n_kept.clamp_min(1)
    kept = torch.where((n_kept == 0)[document], 1.0, kept * factor[document])
    return cells._replace(value=cells.value * kept)


def cosines(x: Tensor, y: Tensor) -> Tensor:
    """Equation (8) for all pairs: c(x_i, y_j), from f_x (B, dim) and f_y (B, dim)."""
    return F.normalize(x, dim=1) @ F.normalize(y, dim=1).T


def positive_loss(c: Tensor) -> Tensor:
    """Equation (9): ¼(1 − c)²."""
    return (1 - c).square() / 4


def negative_loss(c: Tensor, margin: float) -> Tensor:
    """Equation (10): c² where c > m, else 0."""
    return torch.where(c > margin, c.square(), 0.0)


def hardest_loss(own: Tensor, drawn: Tensor, margin: float) -> Tensor:
    """Equation (11), averaged: L₊ of the own label set, and the largest L₋ of the drawn ones.

    Args:
        own: (B,) the cosines of documents and their own label sets.
        drawn: (B, h) the cosines with the label sets that were drawn for each.
        margin: the paper's m.
    """
    return (positive_loss(own) + negative_loss(drawn, margin).amax(1)).mean()


@torch.no_grad()
def find_hardest(x: Tensor, y: Tensor, drawn: Tensor, margin: float) -> Tensor:
    """Return which of the `drawn` rows of y (B, h) has the largest L₋ for each row of x, (B, 1).

    Equation (11) has a gradient for this one alone, so the others need none.
    """
    x, y = F.normalize(x, dim=1), F.normalize(y, dim=1)
    values = drawn.shape[1] * x.shape[1]  # of the sets of one document
    size = max(1, LARGEST_GATHER[x.device.type] // values)
    hardest = []
    for documents, sets in zip(torch.split(x, size), torch.split(drawn, size), strict=True):
        if len(y) < MANY_DRAWN * drawn.shape[1]:
            c = (documents @ y.T).gather(1, sets)  # (size, h)
        else:
            c = (y[sets] @ documents[:, :, None]).squeeze(2)
        place = negative_loss(c, margin).argmax(1, keepdim=True)
        hardest.append(sets.gather(1, place))
    return torch.cat(hardest)


class LabelSets:
    """The different label sets of the training documents, from which negatives are drawn.

    Sorted by their label sets, the documents that carry another set than document i lie before and
    after those which carry i's. A draw is one of them, each with the same chance.

    Attributes:
        numbers: (n,) the number of each document's label set.
        carriers: (n_sets,) a document that carries the set.
        start: (n_sets + 1,) where the carriers of a set begin, in the order of sets.
    """

    def __init__(self, Y: sp.csr_matrix) -> None:
        keys = np.random.default_rng(0).integers(1 << 64, size=Y.shape[1], dtype=np.uint64)
        # Equal sets have equal sums of their labels' keys; others, but for a chance of n²/2⁶⁵, not.
        sums = np.diff(np.cumsum(keys[Y.indices])[Y.indptr[1:] - 1], prepend=np.uint64(0))
        _, self.carriers, self.numbers, counts = np.unique(
            sums, return_index=True, return_inverse=True, return_counts=True
        )
        self.start = np.concatenate(([0], np.cumsum(counts)))
        self._sorted = np.repeat(np.arange(len(counts)), counts)  # the set of each, in that order

    def draw(
        self, documents: NDArray[np.int64], h: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw h training documents for each of these, and return the numbers of their sets (B, h).

        A document may be drawn again. Where all documents carry the same set, it is that one.
        """
        own = self.numbers[documents]
        first, size = self.start[own, None], np.diff(self.start)[own, None]
        n = len(self.numbers)
        drawn = rng.integers(np.maximum(n - size, 1), size=(len(documents), h))
        drawn += np.where(drawn >= first, size, 0)
        return self._sorted[np.minimum(drawn, n - 1)]


# -- our own losses ------------------------------------------------------------------------------


def overlap(labels: SparseBatch) -> Tensor:
    """Return |y_i ∩ y_j| / √(|y_i|·|y_j|) (B, B): the cosines of the documents' label vectors.

    Row i sums, over the labels of i, who else carries them; so the cost follows the pairs.
    """
    n, n_touched, device = len(labels.start) - 1, len(labels.touched), labels.value.device
    width = max(1, LARGEST_TABLE // max(1, n_touched))
    carried = torch.repeat_interleave(  # the label of each pair, by its place among the touched
        torch.diff(labels.touched_start).long(), output_size=len(labels.document)
    )
    of_document = torch.empty_like(carried).scatter_(0, labels.order, carried)
    parts = []
    for first in range(0, n, width):
        carriers = torch.zeros(n_touched, min(width, n - first), device=device)
        pairs = carried, labels.document.long() - first
        if width < n:
            inside = (pairs[1] >= 0) & (pairs[1] < width)
            pairs = carried[inside], pairs[1][inside]
        carriers[pairs] = 1
        starts = labels.start.long()
        part = F.embedding_bag(of_document, carriers, starts, mode="sum", include_last_offset=True)
        parts.append(part)
    lengths = torch.diff(labels.start).clamp_min(1).float().sqrt()
    return torch.cat(parts, dim=1) / (lengths[:, None] * lengths)


def graded_loss(c: Tensor, target: Tensor, h: float, mine: slice = EVERY) -> Tensor:
    """Pull c(x_i, y_j) towards the overlap of y_i and y_j: the own set counts 1, others h in all.

    A set that shares labels with the document's own is thus no full negative. `mine` are the
    documents of the batch whose cosines, with the label sets of all, c holds.
    """
    errors = (c - target).square()
    own = errors.gather(1, _own_columns(c, mine))[:, 0]
    others = (errors.sum(1) - own) / max(1, c.shape[1] - 1)
    return (own + h * others).mean()


def softmax_loss(c: Tensor, target: Tensor, scale: Tensor, mine: slice = EVERY) -> Tensor:
    """Cross-entropy of the own label set among those of the batch; equal sets do not compete."""
    own = _own_columns(c, mine)
    equal = (target > 1 - 1e-5).scatter_(1, own, False)
    scores = (c * scale).masked_fill(equal, -torch.inf)
    return F.cross_entropy(scores, own[:, 0])


def _own_columns(c: Tensor, mine: slice) -> Tensor:
    """Return where each document's own label set stands among all of the batch, (B, 1)."""
    return torch.arange(c.shape[1], device=c.device)[mine, None]


# -- the networks ---------------------------------------------------------------------------------


class MNNNetwork(nn.Module):
    """f_x and f_y: a table each, of which a document's rows are averaged."""

    def __init__(self, n_features: int, n_labels: int, dim: int, embedding: "Embedding"):
        super().__init__()
        self.features = read_once(nn.Parameter(torch.randn(n_features, dim) / dim**0.5))  # W'_e
        self.labels = read_once(nn.Parameter(torch.randn(n_labels, dim) / dim**0.5))  # W_e
        self.second = None if embedding == "average" else NormalizedLinear(dim, dim)
        self.log_scale = nn.Parameter(torch.tensor(FIRST_SCALE).log())

    def embed(self, cells: SparseBatch, dropout: float = 0.0) -> Tensor:
        """Return f_x (B, dim), equation (4) times K."""
        x = multiply(cells, self.features)  # (B, dim)
        if self.second is None:
            return x
        y: Tensor = self.second(drop(F.relu(x), dropout, self.training))  # (B, dim)
        return x + y

    def embed_labels(self, labels: SparseBatch) -> Tensor:
        """Return f_y (B, dim), equation (3) times T."""
        return multiply(labels, self.labels)  # (B, dim)

    def export(self, weights: NDArray[np.float32]) -> Embedder:
        """Return f_x for prediction; `weights` are the features'."""
        table, bias = self.features.numpy(), np.zeros(self.features.shape[1], np.float32)
        if self.second is None:
            return Embedder.of(weights, table, bias)
        second = self.second.weights().T.contiguous().numpy(), self.second.bias.numpy()
        return Embedder.of(weights, table, bias, second, residual=True)


class MNNTask:
    """The training loop's Task; documents without labels, which match nothing, are left out.

    So are those without features: what has no direction has no cosine.
    """

    def __init__(
        self,
        model: "MNN",
        net: MNNNetwork,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        held_out: tuple[sp.csr_matrix, sp.csr_matrix] | None = None,
    ):
        useful = find_useful(X, Y)
        self.model, self.net, self.held_out = model, net, held_out
        self.X, self.Y = X[useful], Y[useful]
        self.module: nn.Module = net
        self.n_documents = len(useful)
        self.rows, self.pairs = view_rows(self.X), view_rows(self.Y)
        self.sets = LabelSets(self.Y) if model.loss == "hardest" else None

    def batch(
        self, rows: NDArray[np.int64], rng: np.random.Generator, mine: slice = EVERY
    ) -> dict[str, Tensor]:
        """Return the documents' features, and the label sets that they are compared with."""
        cells = SparseBatch.of(self.rows, rows, self.X.shape[1], mine)._asdict()
        compared, places = rows, dict[str, Tensor]()
        if self.sets is not None:
            compared, places = self._draw(self.sets, rows, rng, mine)
        labels = SparseBatch.of(self.pairs, compared, self.Y.shape[1])._asdict()
        return {**cells, **{f"label_{name}": part for name, part in labels.items()}, **places}

    def _draw(
        self, sets: LabelSets, rows: NDArray[np.int64], rng: np.random.Generator, mine: slice
    ) -> tuple[NDArray[np.int64], dict[str, Tensor]]:
        """Return carriers of the sets to embed, each set once, and the places of own and drawn."""
        own = sets.numbers[rows[mine]]
        drawn = sets.draw(rows, self.model.negatives, rng)[mine]
        place = np.zeros(len(sets.carriers), np.int64)
        place[own], place[drawn] = 1, 1
        used = np.flatnonzero(place)
        place[used] = np.arange(len(used))
        places = {"own": torch.from_numpy(place[own]), "drawn": torch.from_numpy(place[drawn])}
        return sets.carriers[used], places

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        """Compare the documents of the batch with their own label sets and with others."""
        model, net = self.model, self.net
        cells = drop_features(SparseBatch.from_batch(batch), model.keep)
        labels = SparseBatch(*(batch[f"label_{name}"] for name in SparseBatch._fields))
        x, y = net.embed(cells, model.dropout), net.embed_labels(labels)  # (B, dim), (·, dim)
        if model.loss == "hardest":
            return self._compare_with_drawn(x, y, batch["own"], batch["drawn"])
        mine = current_part().mine
        c, target = cosines(x, y), overlap(labels)[mine]  # (B, B); of several processes, own rows
        if model.loss == "softmax":
            return softmax_loss(c, target, net.log_scale.exp(), mine)
        loss = graded_loss(c, target, model.negatives, mine)
        if not model.contrast:
            return loss
        return loss + model.contrast * softmax_loss(c, target, net.log_scale.exp(), mine)

    def _compare_with_drawn(self, x: Tensor, y: Tensor, own: Tensor, drawn: Tensor) -> Tensor:
        """Return equation (11); `own` (B,) and `drawn` (B, h) are rows of the label sets y."""
        hardest = find_hardest(x, y, drawn, self.model.margin)[:, 0]
        c = F.cosine_similarity(x, y[hardest])
        c = c.masked_fill(hardest == own, -1.0)  # no other set exists; -1 is always harmless
        return hardest_loss(F.cosine_similarity(x, y[own]), c[:, None], self.model.margin)

    def optimizers(self, learning_rate: float) -> list[torch.optim.Optimizer]:
        """Return lazy Adam for the tables, of which a batch touches rows, Adam for the rest."""
        net = self.net
        rest = [net.log_scale, *(net.second.parameters() if net.second is not None else ())]
        return [
            RowAdam(net.features, learning_rate, form=self.model.optimizer_state),
            RowAdam(net.labels, learning_rate, form=self.model.optimizer_state),
            torch.optim.Adam(rest, learning_rate, fused=True),
        ]

    @torch.no_grad()
    def validate(self) -> dict[str, float] | None:
        """Return the metrics of the better way to rank on the held-out documents."""
        if self.held_out is None:
            return None
        return choose_ranking(self).metrics


# -- how labels are ranked ------------------------------------------------------------------------


class RankingChoice(NamedTuple):
    """A way to rank labels, and what it reached on held-out documents."""

    rank: "Rank"
    n_neighbours: int
    temperature: float
    metrics: dict[str, float]


@torch.no_grad()
def choose_ranking(task: MNNTask) -> RankingChoice:
    """Return the way of ranking that is best on the held-out documents, by P@1 + P@3 + P@5.

    What the model's parameters say is not chosen.
    """
    if task.held_out is None:
        raise RuntimeError("there are no held-out documents to choose by")
    model, (X, Y) = task.model, task.held_out
    counts = COUNTS if model.n_neighbours is None else (model.n_neighbours,)
    temperatures = TEMPERATURES if model.temperature is None else (model.temperature,)
    queries = embed_all(task.net, X)
    choices = []
    if model.rank != "neighbours":
        seen = np.unique(task.Y.indices)  # the vectors of other labels mean nothing
        ids, cosine = nearest(queries, unit_labels(task.net)[seen], 5)
        top = TopK(seen[ids].astype(np.int32), cosine)
        choices.append(RankingChoice("labels", counts[0], temperatures[0], evaluate(top, Y)))
    if model.rank != "labels":
        keys = blend(embed_all(task.net, task.X), embed_sets(task.net, task.Y), model.blend)
        ids, similarities = nearest(queries, keys, max(counts))
        n, temperature, _ = choose_voting(
            ids,
            similarities,
            task.Y,
            lambda top: sum_precisions(evaluate(top, Y)),
            numbers=counts,
            temperatures=temperatures,
        )
        weights = weigh_votes(similarities[:, :n], temperature)
        metrics = evaluate(count_votes(ids[:, :n], weights, task.Y, 5), Y)
        choices.append(RankingChoice("neighbours", n, temperature, metrics))
    return max(choices, key=lambda choice: sum_precisions(choice.metrics))


def sum_precisions(metrics: dict[str, float]) -> float:
    """Return P@1 + P@3 + P@5."""
    return sum(metrics[f"P@{k}"] for k in (1, 3, 5))


def blend(documents: Tensor, sets: Tensor, share: float) -> Tensor:
    """Return unit vectors between the documents and their label sets; `share` is the sets'."""
    return F.normalize((1 - share) * documents + share * sets, dim=1)


def unit_labels(net: MNNNetwork) -> Tensor:
    """Return the unit vectors f_y of all single labels."""
    return F.normalize(net.labels, dim=1)


def embed_all(net: MNNNetwork, X: sp.csr_matrix) -> Tensor:
    """Return the unit vectors f_x of all documents, on the network's device."""
    return _embed_in_parts(net.embed, X, net.features.device)


def embed_sets(net: MNNNetwork, Y: sp.csr_matrix) -> Tensor:
    """Return the unit vectors f_y of all documents' label sets, on the network's device."""
    return _embed_in_parts(net.embed_labels, Y, net.labels.device)


def _embed_in_parts(embed: Any, X: sp.csr_matrix, device: torch.device) -> Tensor:
    rows, parts = view_rows(X), []
    for first in range(0, X.shape[0], 4096):
        chosen = np.arange(first, min(first + 4096, X.shape[0]))
        cells = SparseBatch.of(rows, chosen, X.shape[1])
        parts.append(F.normalize(embed(SparseBatch(*(part.to(device) for part in cells))), dim=1))
    return torch.cat(parts)


def nearest(queries: Tensor, keys: Tensor, k: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return ids and cosines (n, k) of the keys with the highest cosines, best first."""
    size = max(1, LARGEST_PRODUCT[keys.device.type] // len(keys))
    ids, values = [], []
    for part in torch.split(queries, size):
        best = (part @ keys.T).topk(min(k, len(keys)), dim=1)
        ids.append(best.indices.to(torch.int32).cpu())
        values.append(best.values.float().cpu())
    return torch.cat(ids).numpy(), torch.cat(values).numpy()
