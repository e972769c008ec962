"""MNN: documents and their label sets meet as vectors of high cosine.

Zhao et al., "Matching Neural Network for Extreme Multi-Label Learning", 2021. One averaging network
embeds a document's features, another one its labels. Training makes the cosine of a document and
its own label set high, that of a document and other documents' label sets low. No distance between
labels is needed for that, so that documents which carry rare labels only are learned from as well.

The symbols of the paper are listed in `network.py`, beside its equations.

Departures: the paper gives none of its settings and does not say how it ranks labels. We rank by
the cosine with each single label, or by the labels of the nearest training documents, each of which
counts e^(c/T); which way, how many and which T is chosen on held-out documents, after which all
documents are trained on, unless few of them were held out. Neighbours are looked for among vectors
half-way between a document's and its label set's. The default loss is not (11), which learns from
one negative of a document, but from all pairs of the batch: c(x_i, y_j) is pulled towards the
overlap of y_i and y_j, to which a softmax over the batch is added. Means are left as sums, which
have the same cosines. A ReLU layer can be added to f_x. The negatives of (11) are drawn among the
documents with another label set.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.models.cost import DeviceType, Facts
from longtail.models.embedder import Embedder, embed_rows
from longtail.models.leaving_out import weigh_sides
from longtail.models.neural import (
    AHEAD,
    NeuralRows,
    batch_bytes,
    choose_batch_size,
    count_cells,
    estimate_trainings,
    require_torch,
    share_to_choose,
    share_to_spare,
    weighed_bytes,
)
from longtail.models.new_labels import find_directions, find_new_labels
from longtail.progress import Progress
from longtail.runtime.memory import Needs, Stage, size_of, train_stage
from longtail.runtime.quantized import QuantizedRows
from longtail.runtime.rows import hold_out, view_rows, weigh_rows
from longtail.runtime.schema import Schema, Value, indices, look_up
from longtail.runtime.settings import (
    above,
    at_least,
    between,
    configurable,
    learned,
    setting,
    share,
)
from longtail.runtime.store import Files
from longtail.search.index import Index, build_index, build_on
from longtail.search.voters import Neighbours, Voters
from longtail.topk import NO_LABEL, TopK

if TYPE_CHECKING:
    from longtail.models.mnn.network import MNNTask, RankingChoice
    from longtail.training.config import TrainingConfig

Embedding = Literal["average", "residual"]
Loss = Literal["graded", "softmax", "hardest"]
Rank = Literal["labels", "neighbours"]

PRECISION = "float32"  # cosines near 1 differ by less than bf16 can tell
LARGEST_BATCH = {"cpu": 1024, "cuda": 4096}  # its square is what a step costs
# Of many neighbours, the last few have little to say: on 476k titles, 0.95 in place of 0.99 costs a
# fifth of a point and answers four times as fast.
RECALL = {"labels": 0.99, "neighbours": 0.95}
LARGEST_PRODUCT = {"cpu": 1 << 24, "cuda": 1 << 28}  # cosines at once, to choose by these
LARGEST_GATHER = {"cpu": 1 << 20, "cuda": 1 << 26}  # values of drawn label sets at once
USUAL_NUMBER, USUAL_TEMPERATURE = 30, 0.05  # of neighbours, where there is nothing to choose by


@configurable
class MNN(NeuralRows):
    """Two averaging networks that bring documents and their label sets together."""

    name: ClassVar[str] = "mnn"
    summary: ClassVar[str] = "documents and label sets as vectors; labels of the nearest documents"
    choose_when: ClassVar[str] = "documents carry many labels, similar ones similar sets"
    has_embeddings: ClassVar[bool] = True
    can_update: ClassVar[bool] = True
    trains_on: ClassVar[bool] = False
    member_order: ClassVar[int | None] = 5
    member_reason: ClassVar[str] = "finds documents with similar label sets"
    milliseconds: ClassVar[float] = 0.8
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "loss": "hardest",
            "embedding": "average",
            "negatives": 4,
            "margin": 0.0,
        },
    }

    dim: int = setting(256, "length of the embeddings of documents and label sets", at_least(1))
    embedding: Embedding = setting(
        "average", "the mean of a document's feature embeddings, or that and a ReLU layer's output"
    )
    loss: Loss = setting(
        "graded",
        "hardest is the paper's equation (11); softmax and graded learn from all pairs of a batch",
    )
    negatives: int = setting(
        32,
        "how many label sets of other documents are drawn for a document from all documents "
        "(hardest; the paper's h), or what those of the batch weigh together (graded)",
        at_least(1),
    )
    margin: float = setting(
        0.0, "cosines of negatives up to this are harmless (hardest; the paper's m)", between(-1, 1)
    )
    contrast: float = setting(
        0.1, "weight of the softmax that is added to the graded loss", at_least(0)
    )
    keep: float = setting(
        0.75,
        "share of a document's features that feature dropout keeps (the paper's p)",
        above(0, at_most=1),
    )
    dropout: float = setting(
        0.3, "share of the ReLU layer's outputs that are dropped in training", share()
    )
    rank: Rank | None = setting(
        None, "by the cosine with each label, or by the nearest training documents; none chooses"
    )
    n_neighbours: int | None = setting(
        None, "how many training documents are asked; none chooses", at_least(1)
    )
    temperature: float | None = setting(
        None,
        "a neighbour's vote falls by e with so much less cosine; 0 counts all alike, none chooses",
        at_least(0),
    )
    blend: float = setting(
        0.5,
        "how far neighbours are moved from their documents to their label sets, 0 to 1",
        between(0, 1),
    )
    epochs: int = 10
    batch_size: int | None = setting(
        None,
        "documents in a step; none makes about 128 steps of an epoch, more where that would be "
        "too many for the device",
        at_least(1),
    )
    learning_rate: float = 0.006
    valid: float = setting(
        0.0,
        "share of the documents held out to choose the best epoch and how to rank; 0 takes the "
        "last epoch, and if there is something to choose, trains without a tenth of the documents "
        "(at most 5,000) to choose by these, then, where there are fewer than 100,000, with all",
        share(),
    )

    embedder_: Embedder = learned()
    rank_: Rank = learned()
    voters_: Voters | None = learned()  # the training documents, if these rank labels
    index_: Index = learned()  # of the vectors of single labels, or of the voters
    ids_: NDArray[np.int32] = learned()  # the labels in the index; none if documents vote

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Measured on four data sets."""
        return estimate_trainings(facts, cpu=(3, 1.2), cuda=(8, 0.06))

    def work(self, facts: Facts) -> float:
        """Every epoch passes over all documents, along all dimensions."""
        return self.epochs * self.dim

    # -- learning -----------------------------------------------------------------------------

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Choose how to rank, train the networks, prepare documents or labels for search."""
        require_torch("MNN")
        from longtail.training.processes import choose_device

        device_type = choose_device(self.device).type
        batch_size = self._choose_batch_size(X.shape[0], device_type)
        others = [{"dim": 64}, {"dim": 32}]
        if self.loss == "hardest":
            others.append({"negatives": 4})
        self.say_memory(lambda m: m.needs_of(X, Y, device_type), others, progress, device_type)
        weights = self.weigh(X)
        rows = weigh_rows(X, weights, self.normalize)
        plan = self.make_config(self.epochs, batch_size, precision=PRECISION)
        task, choice = self._learn(rows, X, Y, plan, progress)
        self._keep(task, choice, weights, X, Y, progress)

    def sized_for(self, n_documents: int, device: DeviceType) -> Self:
        """Return the same model with all that depends on the number of documents given."""
        valid = self.valid or (share_to_spare(n_documents) if self._is_open() else 0.0)
        batch_size = self._choose_batch_size(n_documents, device)
        return self.with_parameters(batch_size=batch_size, valid=valid)

    def _choose_batch_size(self, n_documents: int, device_type: str) -> int:
        return self.batch_size or min(choose_batch_size(n_documents), LARGEST_BATCH[device_type])

    def _learn(
        self,
        rows: sp.csr_matrix,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        plan: "TrainingConfig",
        progress: Progress,
    ) -> tuple["MNNTask", "RankingChoice | None"]:
        """Train the networks; how to rank is chosen before, or by what the task holds out."""
        share, choice = self.valid, None
        if self._is_open() and not self.valid:
            share = share_to_spare(X.shape[0])
            if not share:
                choice = self._try(rows, Y, plan, progress)
        task = self._prepare(rows, Y, share)
        held = task.held_out
        if not self.valid:
            task.held_out = None  # the last epoch is kept
        self.train_task(task, plan, X, Y, progress)
        task.held_out = held
        return task, choice

    def _try(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, plan: "TrainingConfig", progress: Progress
    ) -> "RankingChoice | None":
        """Train without some documents, choose how to rank by these; None: there are too few."""
        from longtail.models.mnn.network import choose_ranking
        from longtail.training.loop import train

        task = self._prepare(X, Y, share_to_choose(X.shape[0]))
        if task.held_out is None:
            return None
        held, task.held_out = task.held_out, None  # the last epoch is kept, as later
        seconds = self.seconds_left(2)
        train(task, plan, device=self.device, seed=self.seed, progress=progress, seconds=seconds)
        task.held_out = held
        return choose_ranking(task)

    @property
    def choices(self) -> dict[str, Any]:
        """How labels are ranked, and how neighbours vote if these are asked."""
        if self.voters_ is None:
            return {"rank": self.rank_}
        n, temperature = self.voters_.n_neighbours, self.voters_.temperature
        return {"rank": self.rank_, "n_neighbours": n, "temperature": temperature}

    def _is_open(self) -> bool:
        """Whether there is anything to choose."""
        if self.rank == "labels":
            return False
        return None in (self.rank, self.n_neighbours, self.temperature)

    def _prepare(self, X: sp.csr_matrix, Y: sp.csr_matrix, share: float) -> "MNNTask":
        """Return what the trainer needs, with a share of the documents held out."""
        import torch

        from longtail.models.mnn.network import MNNNetwork, MNNTask

        held_out = None
        kept, held = hold_out(X.shape[0], share, self.seed)
        if len(held) and Y[kept].nnz:
            held_out = X[held], Y[held]
            X, Y = X[kept], Y[kept]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = MNNNetwork(X.shape[1], Y.shape[1], self.dim, self.embedding)
        return MNNTask(self, network, X, Y, held_out)

    def _keep(
        self,
        task: "MNNTask",
        choice: "RankingChoice | None",
        weights: NDArray[np.float32],
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        progress: Progress,
    ) -> None:
        """Keep what prediction needs: f_x, and the vectors that are searched."""
        from longtail.models.mnn.network import choose_ranking, embed_sets, unit_labels
        from longtail.training.processes import choose_device

        if task.held_out is not None:
            choice = choose_ranking(task)
        net = task.net.cpu().requires_grad_(False)
        usual = self.rank or "neighbours", self.n_neighbours, self.temperature
        self.rank_, n_neighbours, temperature = choice[:3] if choice else usual
        n_neighbours = USUAL_NUMBER if n_neighbours is None else n_neighbours
        temperature = USUAL_TEMPERATURE if temperature is None else temperature
        self.embedder_ = net.export(weights).without_rare(X, beside_others=self.only_scores)
        documents = embed_rows(self.embedder_, view_rows(X), self.normalize)
        if self.rank_ == "labels":
            self.ids_ = np.unique(task.Y.indices).astype(np.int32)  # labels that training has seen
            vectors = unit_labels(net).numpy()[self.ids_]
        else:
            self.ids_ = np.empty(0, np.int32)
            labelled = np.flatnonzero(np.diff(Y.indptr))
            Y, documents = Y[labelled], documents[labelled]
            vectors = _blend(documents, embed_sets(net, Y).numpy(), self.blend)
        build = partial(
            build_index,
            vectors,
            queries=documents,
            recall=RECALL[self.rank_],
            recall_at=10 if self.rank_ == "labels" else n_neighbours,
            seed=self.seed,
            progress=progress,
        )
        device = choose_device(self.device).type
        index = build_on(device, lambda where: build(device=where), progress)
        self.index_ = index.to("cpu")  # which frees the GPU's memory
        self.voters_ = None
        if self.rank_ == "neighbours":
            self.voters_ = Voters(self.index_, Y, n_neighbours, temperature)

    # -- memory -------------------------------------------------------------------------------

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> Needs:
        """Return what it takes to train, and to prepare the search."""
        (n, n_features), n_labels = X.shape, Y.shape[1]
        batch_size = self._choose_batch_size(n, device_type)
        n_drawn = batch_size * self.negatives if self.loss == "hardest" else 0
        n_sets = min(n, batch_size + n_drawn)
        n_cells, n_pairs = count_cells(X, batch_size), count_cells(Y, n_sets)
        touched = min(n_cells, n_features) + min(n_pairs, n_labels)
        second = 0 if self.embedding == "average" else self.dim**2
        parameters = 4 * (self.dim * (n_features + n_labels) + second)
        compared = 6 * batch_size**2 + min(batch_size * min(n_pairs, n_labels), 1 << 26)
        rows = weighed_bytes(X) + size_of(X, Y)  # those with labels are copied
        if n_drawn:
            at_once = min(LARGEST_GATHER[device_type], n_drawn * self.dim)
            compared = 5 * n_sets * self.dim + 2 * at_once + 4 * (AHEAD + 2) * n_drawn
            rows += 32 * n  # which label sets there are
        train = train_stage(
            device_type,
            parameters=parameters,
            gradients=4 * (touched * self.dim + second),
            **self.remembered(
                parameters - 4 * second, 4 * second + 2 * (n_features + n_labels), device_type
            ),
            activations=4 * (8 * batch_size * self.dim + compared)
            + batch_bytes(n_cells, n_features)
            + batch_bytes(n_pairs, n_labels),
            best=parameters if self.valid else 0,
            held=rows,
        )
        documents = 0 if self.rank == "labels" else 24 * n * self.dim
        search = {"network": parameters, "documents": documents, "rows": rows + size_of(Y)}
        n_held = int(share_to_choose(n) * n) if self._is_open() else 0
        chosen = {
            "network": parameters,
            "documents": 12 * n * self.dim,
            "cosines": 5 * min(LARGEST_PRODUCT[device_type], n_held * n),
            "rows": rows + size_of(X),
        }
        return train, Stage(chosen), Stage(search)

    # -- predicting -----------------------------------------------------------------------------

    def read_rows(self, X: sp.csr_matrix) -> Neighbours | NDArray[np.float32]:
        """Embed the documents; find their neighbours, if these rank labels."""
        queries = embed_rows(self.embedder_, view_rows(X), self.normalize)
        return queries if self.voters_ is None else self.voters_.find(queries)

    def predict_rows(self, X: Neighbours | NDArray[np.float32], k: int) -> TopK:
        """Rank by the cosines with labels, or by the neighbours'."""
        if self.voters_ is not None:
            return self.voters_.rank_labels(cast(Neighbours, X), k, fill=False)
        places, cosines = self.index_.search(cast("NDArray[np.float32]", X), k)
        return _widen(TopK(self.ids_[places], _as_scores(cosines)), k)

    def score_rows(
        self, X: Neighbours | NDArray[np.float32], candidates: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Compare with the candidates alone; labels that training has not seen get 0."""
        if self.voters_ is not None:
            return self.voters_.score_labels(cast(Neighbours, X), candidates)
        place_of = np.full(len(self.label_names_) + 1, -1, np.int32)  # and -1 is its own
        place_of[self.ids_] = np.arange(len(self.ids_), dtype=np.int32)
        places = place_of[candidates]
        cosines = self.index_.score(cast("NDArray[np.float32]", X), places)
        return np.where(places >= 0, _as_scores(cosines), np.float32(0))

    def explain_row(self, X: sp.csr_matrix, label: int | None) -> NDArray[np.float32]:
        """Say of a label without votes what brings the row nearer to its documents than others."""
        asked = np.array([[-1 if label is None else label]], np.int32)
        if self.voters_ is None or label is None or self.score_documents(X, asked).any():
            return super().explain_row(X, label)

        def embed(rows: sp.csr_matrix) -> NDArray[np.float32]:
            return embed_rows(self.embedder_, view_rows(rows), self.normalize)

        return weigh_sides(X, embed, *self.voters_.find_sides(embed(X), label))

    # -- updating -------------------------------------------------------------------------------

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Let new documents vote, each where its features place it, or place new labels by them."""
        places = embed_rows(self.embedder_, view_rows(X), self.normalize)
        if self.voters_ is None:
            self._add_labels(places, Y)
            return
        self.index_ = cast(Index, self.voters_.index).extend(self._blend_more(places, Y))
        self.voters_ = replace(self.voters_, index=self.index_, Y=self.voters_.join_labels(Y))

    def _blend_more(self, documents: NDArray[np.float32], Y: sp.csr_matrix) -> NDArray[np.float32]:
        """Move new documents towards those that carry their labels, as the others were moved.

        Otherwise they would be nearer to any document than the others, and outvote them.
        """
        voters = cast(Voters, self.voters_)
        known = sp.csr_matrix(Y[:, : voters.Y.shape[1]])
        sets = np.asarray(known @ _scale(voters.Y.T @ voters.index.vectors))
        blended = _blend(documents, _scale(sets), self.blend)
        return np.where(sets.any(axis=1, keepdims=True), blended, documents)

    def _add_labels(self, documents: NDArray[np.float32], Y: sp.csr_matrix) -> None:
        """Give new labels the directions of their documents; other labels stay."""
        new = find_new_labels(self.training_counts_, Y)
        placed = find_directions(documents, Y, new)
        ids = np.concatenate([self.ids_, new.astype(np.int32)])
        order = np.argsort(ids)
        if (order[:-1] < order[1:]).all():  # all of them are behind the others
            self.index_ = self.index_.extend(placed)
        else:
            vectors = np.concatenate([self.index_.vectors, placed])[order]
            self.index_ = Index(QuantizedRows.of(vectors), self.index_.dim, self.index_.metric)
        self.ids_ = ids[order]

    # -- saving ---------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add f_x, the vectors that are searched, and the labels of the neighbours."""
        self.embedder_.add_to_files(files)
        files.config["rank"] = self.rank_
        if self.voters_ is not None:
            self.voters_.add_to_files(files)
        else:
            self.index_.add_to_files(files, "labels")
            files.arrays["label_ids"] = self.ids_

    def describe(self, files: Files) -> Schema:
        """Return the schema of f_x, and of the documents or the labels that are searched."""
        shared = Schema(config={"rank": Value(Rank)}) | Embedder.describe(files)
        if look_up(files.config, "rank") == "neighbours":
            return shared | Voters.describe(files, "dim")
        ids = Schema(arrays={"label_ids": indices("n_ranked", into="n_labels", rising=True)})
        return shared | ids | Index.describe(files, "labels", "n_ranked", "dim")

    def restore(self, files: Files) -> None:
        """Take back what was saved."""
        self.embedder_ = Embedder.from_files(files)
        self.rank_, self.voters_ = files.config["rank"], None
        self.ids_ = np.empty(0, np.int32)
        if self.rank_ == "neighbours":
            self.voters_ = Voters.from_files(files, len(self.label_names_))
            self.index_ = cast(Index, self.voters_.index)
        else:
            self.index_ = Index.from_files(files, "labels")
            self.ids_ = files.arrays["label_ids"]


def _blend(
    documents: NDArray[np.float32], sets: NDArray[np.float32], share: float
) -> NDArray[np.float32]:
    """Return unit vectors between the documents and their label sets; `share` is the sets'."""
    return _scale((1 - share) * documents + share * sets)


def _scale(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors of length 1; those of length 0 stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def _as_scores(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return cosines as scores from 0 to 1."""
    return np.clip((1 + cosines) / 2, 0, 1).astype(np.float32)


def _widen(top: TopK, k: int) -> TopK:
    """Fill up with no labels where there are fewer than k."""
    missing = ((0, 0), (0, k - top.k))
    if k == top.k:
        return top
    return TopK(
        np.pad(top.labels, missing, constant_values=NO_LABEL),
        np.pad(top.scores, missing),
    )
