"""MNN: documents and their label sets meet as vectors of high cosine.

Zhao et al., "Matching Neural Network for Extreme Multi-Label Learning", 2021. One averaging network
embeds a document's features, another one its labels. Training makes the cosine of a document and
its own label set high, that of a document and other documents' label sets low. No distance between
labels is needed for that, so that documents which carry rare labels only are learned from as well.

The symbols of the paper are listed in `network.py`, beside its equations.

Departures: the paper gives none of its settings and does not say how it ranks labels. We rank by
the cosine with each single label, or by the labels of the nearest training documents, each of which
counts e^(c/T); which way, how many and which T is chosen on held-out documents, after which all
documents are trained on. Neighbours are looked for among vectors half-way between a document's and
its label set's. The default loss is not (11), which learns from one negative of a document, but
from all pairs of the batch: c(x_i, y_j) is pulled towards the overlap of y_i and y_j, to which a
softmax over the batch is added. Means are left as sums, which have the same
cosines. A ReLU layer can be added to f_x.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.models.embedder import Embedder, embed_rows
from longtail.models.neural import (
    Device,
    Neural,
    Schedule,
    choose_batch_size,
    hold_out,
    require_torch,
    weigh_features,
    weigh_rows,
)
from longtail.progress import Progress
from longtail.runtime.rows import view_rows
from longtail.runtime.store import Files
from longtail.search.index import Index, build_index
from longtail.search.voters import aggregate, weigh_votes
from longtail.text.tfidf import Tfidf
from longtail.topk import NO_LABEL, TopK

if TYPE_CHECKING:
    from longtail.models.mnn.network import MNNTask, RankingChoice
    from longtail.training.config import TrainingConfig
    from longtail.training.memory import Needs

Embedding = Literal["average", "residual"]
Loss = Literal["graded", "softmax", "hardest"]
Rank = Literal["labels", "neighbours"]

PRECISION = "float32"  # cosines near 1 differ by less than bf16 can tell
LARGEST_BATCH = {"cpu": 1024, "cuda": 4096}  # its square is what a step costs
# Of many neighbours, the last few have little to say: on 476k titles, 0.95 in place of 0.99 costs a
# fifth of a point and answers four times as fast.
RECALL = {"labels": 0.99, "neighbours": 0.95}
HELD_SHARE, MOST_HELD = 0.1, 5000  # documents by which to choose how labels are ranked


class MNN(Neural):
    """Two averaging networks that bring documents and their label sets together.

    Args:
        dim: length of the embeddings of documents and label sets.
        embedding: the mean of a document's feature embeddings, or that and a ReLU layer's output.
        loss: hardest is the paper's equation (11); softmax and graded learn from all pairs of a
            batch.
        negatives: how many other documents' label sets count for a document (the paper's h).
        margin: cosines of negatives up to this are harmless (hardest; the paper's m).
        contrast: weight of the softmax that is added to the graded loss.
        keep: share of a document's features that feature dropout keeps (the paper's p).
        dropout: share of the ReLU layer's outputs that are dropped in training.
        rank: by the cosine with each label, or by the nearest training documents; none chooses.
        n_neighbours: how many training documents are asked; none chooses.
        temperature: a neighbour's vote falls by e with so much less cosine; none chooses.
        blend: how far neighbours are moved from their documents to their label sets, 0 to 1.
        idf: weight the features of rows by how rare they are; texts have such weights already.
        normalize: scale every document's row to length 1.
        epochs: passes over the documents.
        batch_size: documents in a step; none makes about 128 steps of an epoch, more where that
            would be too many for the device.
        learning_rate: of Adam, at its highest.
        schedule: how the learning rate falls.
        valid: share of the documents held out to choose the best epoch and how to rank; 0 takes
            the last epoch, and if there is something to choose, trains twice: without a tenth of
            the documents (at most 5,000) to choose by these, then with all.
        patience: stop after so many epochs that were no better (with valid only).
        device: where to train.
        seed: fixes everything that is random.
        tfidf: how texts become rows.
    """

    name: ClassVar[str] = "mnn"
    summary: ClassVar[str] = "documents and label sets as vectors; labels of the nearest documents"
    choose_when: ClassVar[str] = "documents carry many labels, or only rare ones"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"loss": "hardest", "embedding": "average", "blend": 0.0},
    }

    embedder_: Embedder
    index_: Index
    ids_: NDArray[np.int32]
    neighbours_: sp.csr_matrix
    rank_: Rank
    n_neighbours_: int
    temperature_: float

    def __init__(
        self,
        *,
        dim: int = 256,
        embedding: Embedding = "average",
        loss: Loss = "graded",
        negatives: int = 32,
        margin: float = 0.3,
        contrast: float = 0.1,
        keep: float = 0.75,
        dropout: float = 0.3,
        rank: Rank | None = None,
        n_neighbours: int | None = None,
        temperature: float | None = None,
        blend: float = 0.5,
        idf: bool = True,
        normalize: bool = True,
        epochs: int = 10,
        batch_size: int | None = None,
        learning_rate: float = 0.006,
        schedule: Schedule = "linear",
        valid: float = 0.0,
        patience: int | None = None,
        device: Device = "auto",
        seed: int = 0,
        tfidf: Tfidf | None = None,
    ):
        self.dim = dim
        self.embedding = embedding
        self.loss = loss
        self.negatives = negatives
        self.margin = margin
        self.contrast = contrast
        self.keep = keep
        self.dropout = dropout
        self.rank = rank
        self.n_neighbours = n_neighbours
        self.temperature = temperature
        self.blend = blend
        self.idf = idf
        self.normalize = normalize
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.valid = valid
        self.patience = patience
        self.device = device
        self.seed = seed
        self.tfidf = tfidf

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        for name in ("dim", "negatives", "epochs"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        enough = self.n_neighbours is None or self.n_neighbours >= 1
        self.require("n_neighbours", enough, "at least 1, or none")
        ranks = (None, "labels", "neighbours")
        self.require("rank", self.rank in ranks, "'labels' or 'neighbours' or none")
        self.require("margin", -1 <= self.margin <= 1, "from -1 to 1")
        self.require("blend", 0 <= self.blend <= 1, "from 0 to 1")
        self.require("contrast", 0 <= self.contrast < np.inf, "a number, 0 or more")
        warm = self.temperature is None or 1e-4 <= self.temperature < np.inf
        self.require("temperature", warm, "a number, 0.0001 or more, or none")
        self.check_training()

    # -- learning -----------------------------------------------------------------------------

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Choose how to rank, train the networks, prepare documents or labels for search."""
        require_torch("MNN")
        from longtail.training.processes import choose_device

        kind = choose_device(self.device).type
        most = min(choose_batch_size(X.shape[0]), LARGEST_BATCH[kind])
        batch_size = self.batch_size or most
        self._plan_memory(X, Y, batch_size, kind, progress)
        weights = weigh_features(X) if self.idf else np.ones(X.shape[1], np.float32)
        rows = weigh_rows(X, weights, self.normalize)
        plan = self.make_config(self.epochs, batch_size, precision=PRECISION)
        choice = None if self.valid else self._try(rows, Y, plan, progress)
        task = self._prepare(rows, Y, self.valid)
        self.train_task(task, plan, X, Y, progress)
        self._keep(task, choice, weights, X, Y, progress)

    def _try(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, plan: "TrainingConfig", progress: Progress
    ) -> "RankingChoice | None":
        """Train without some documents and choose how to rank by these; None: nothing to choose."""
        if not self._is_open():
            return None
        from longtail.models.mnn.network import choose_ranking
        from longtail.training.loop import train

        task = self._prepare(X, Y, min(HELD_SHARE, MOST_HELD / X.shape[0]))
        if task.held_out is None:
            return None
        held, task.held_out = task.held_out, None  # the last epoch is kept, as later
        train(task, plan, device=self.device, seed=self.seed, progress=progress)
        task.held_out = held
        return choose_ranking(task)

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

        if task.held_out is not None:
            choice = choose_ranking(task)
        net = task.net.cpu().requires_grad_(False)
        self.rank_ = self.rank or (choice.rank if choice else "neighbours")
        self.n_neighbours_ = self.n_neighbours or (choice.n_neighbours if choice else 30)
        self.temperature_ = self.temperature or (choice.temperature if choice else 0.05)
        self.embedder_ = net.export(weights)
        documents = embed_rows(self.embedder_, view_rows(X), self.normalize)
        self.ids_, self.neighbours_ = np.empty(0, np.int32), Y[:0]
        if self.rank_ == "labels":
            self.ids_ = np.unique(Y.indices).astype(np.int32)  # labels that training has seen
            vectors = unit_labels(net).numpy()[self.ids_]
        else:
            labelled = np.flatnonzero(np.diff(Y.indptr))
            self.neighbours_, documents = Y[labelled], documents[labelled]
            vectors = _blend(documents, embed_sets(net, self.neighbours_).numpy(), self.blend)
        # Half precision is enough, and the folder keeps no more of it.
        self.index_ = build_index(
            vectors.astype(np.float16).astype(np.float32),
            queries=documents,
            recall=RECALL[self.rank_],
            recall_at=10 if self.rank_ == "labels" else self.n_neighbours_,
            seed=self.seed,
            progress=progress,
        )

    # -- memory -------------------------------------------------------------------------------

    def _plan_memory(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, batch_size: int, kind: str, progress: Progress
    ) -> None:
        """Say what training will take, or stop with what to change."""
        others: dict[str, dict[str, Any]] = {"dim=64": {"dim": 64}, "dim=32": {"dim": 32}}
        alternatives = {
            name: type(self)(**{**self.get_parameters(), **other})._needs(X, Y, batch_size)
            for name, other in others.items()
        }
        self.say_memory(self._needs(X, Y, batch_size), kind, alternatives, progress)

    def _needs(self, X: sp.csr_matrix, Y: sp.csr_matrix, batch_size: int) -> "Needs":
        """Return the bytes that training takes."""
        from longtail.training.memory import Needs

        n_cells, n_pairs = (batch_size * -(-matrix.nnz // X.shape[0]) for matrix in (X, Y))
        touched = min(n_cells, X.shape[1]) + min(n_pairs, Y.shape[1])
        second = 0 if self.embedding == "average" else self.dim**2
        parameters = 4 * (self.dim * (X.shape[1] + Y.shape[1]) + second)
        square = 6 * batch_size**2 + min(batch_size * min(n_pairs, Y.shape[1]), 1 << 26)
        step = 4 * (8 * batch_size * self.dim + square) + 40 * (n_cells + n_pairs)
        search = 0 if self.rank == "labels" else 4 * 3 * X.shape[0] * self.dim  # after training
        return Needs(
            parameters=parameters,
            gradients=4 * (touched * self.dim + second),
            optimizer=2 * parameters,
            activations=max(step, search),
            best=parameters if self.valid else 0,
        )

    # -- predicting -----------------------------------------------------------------------------

    def predict_rows(self, X: sp.csr_matrix, k: int) -> TopK:
        """Embed the documents, then rank by the cosines with labels, or by the neighbours'."""
        queries = embed_rows(self.embedder_, view_rows(X), self.normalize)
        if self.rank_ == "labels":
            places, cosines = self.index_.search(queries, k)
            scores = np.clip((1 + cosines) / 2, 0, 1).astype(np.float32)
            return _widen(TopK(self.ids_[places], scores), k)
        ids, cosines = self.index_.search(queries, self.n_neighbours_)
        return aggregate(ids, weigh_votes(cosines, self.temperature_), self.neighbours_, k)

    def add_to_files(self, files: Files) -> None:
        """Add f_x, the vectors that are searched, and the labels of the neighbours."""
        self.embedder_.add_to_files(files)
        self.index_.add_to_files(files, "vectors")
        files.arrays["vectors.vectors"] = self.index_.vectors.astype(np.float16)
        files.arrays["label_ids"] = self.ids_
        files.arrays["neighbours.start"] = self.neighbours_.indptr.astype(np.int64)
        files.arrays["neighbours.labels"] = self.neighbours_.indices.astype(np.int32)
        files.config["ranking"] = {
            "rank": self.rank_,
            "n_neighbours": self.n_neighbours_,
            "temperature": self.temperature_,
        }

    def restore(self, files: Files) -> None:
        """Take back what was saved; raise ValueError for parts that do not fit together."""
        self.embedder_ = Embedder.from_files(files, self.n_features_)
        files.arrays["vectors.vectors"] = files.arrays["vectors.vectors"].astype(np.float32)
        self.index_ = Index.from_files(files, "vectors")
        ranking = files.config["ranking"]
        self.rank_, self.n_neighbours_ = ranking["rank"], int(ranking["n_neighbours"])
        self.temperature_ = float(ranking["temperature"])
        start, labels = files.arrays["neighbours.start"], files.arrays["neighbours.labels"]
        shape = (len(start) - 1, len(self.label_names_))
        self.neighbours_ = sp.csr_matrix((np.ones(len(labels), np.float32), labels, start), shape)
        self.ids_ = files.arrays["label_ids"]
        self._check_parts()

    def _check_parts(self) -> None:
        """Raise ValueError unless the parts fit together; compiled code does not check again."""
        n_labels = len(self.label_names_)
        if self.rank_ not in ("labels", "neighbours"):
            raise ValueError(f"there is no way {self.rank_!r} to rank labels")
        if self.n_neighbours_ < 1 or not 1e-4 <= self.temperature_ < np.inf:
            raise ValueError(f"{self.n_neighbours_} neighbours at {self.temperature_} cannot be")
        n = len(self.ids_) if self.rank_ == "labels" else self.neighbours_.shape[0]
        found, expected = self.index_.vectors.shape, (n, self.embedder_.dim)
        if found != expected:
            raise ValueError(f"vectors of shape {found}, expected {expected}")
        for ids in (self.ids_, self.neighbours_.indices):
            if len(ids) and not (ids.min() >= 0 and ids.max() < n_labels):
                raise ValueError(f"labels from {ids.min()} to {ids.max()}, of {n_labels}")


def _blend(
    documents: NDArray[np.float32], sets: NDArray[np.float32], share: float
) -> NDArray[np.float32]:
    """Return unit vectors between the documents and their label sets; `share` is the sets'."""
    vectors = (1 - share) * documents + share * sets
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def _widen(top: TopK, k: int) -> TopK:
    """Fill up with no labels where there are fewer than k."""
    missing = ((0, 0), (0, k - top.k))
    if k == top.k:
        return top
    return TopK(
        np.pad(top.labels, missing, constant_values=NO_LABEL),
        np.pad(top.scores, missing),
    )
