"""DXML: a network learns to put documents where the vectors of their labels are.

Zhang et al., "Deep Extreme Multi-label Learning", ICMR 2018. Labels that occur together are
neighbours in a graph, whose nodes DeepWalk turns into vectors. A document should lie at the mean
of its labels' vectors; a network learns to put it there from its features. A new document gets the
labels of the training documents that lie nearest to it.

The symbols of the paper are listed in `network.py`, beside its equations.

Departures: V is whitened and its rows have length 1. In a graph as dense as that of bibtex all
labels are near each other, and so are their vectors; on held-out documents whitening is worth four
points of P@1 there and six on delicious, seven on both with the network of figure 1. f_y has length
1, as f_x has. What enters the ReLU is added to what W_2 returns (residual=False is figure 1):
better on stackexchange and yso, worse on delicious. Neighbours count by exp(cosine/temperature).
Adam is quicker than SGD and not worse. Input cells are dropped, as in GLaS. There are clusters only
where looking at all documents is slow, and enough of them are searched to find 95 % of the
neighbours (searched=1 is the paper's way). `preset=paper` has the paper's own values; it does not
say the size of a batch or the number of epochs.

Documents keep their rows, which take less space than their vectors: so a model can take in new ones
at once, and go on training with old and new ones when it should (`partial_fit`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import as_dataset
from longtail.errors import TrainingError
from longtail.labels.graph import build_graph, draw_directions, embed_labels
from longtail.labels.hierarchy import check_hierarchy, link_labels
from longtail.models.base import Documents
from longtail.models.dxml.neighbours import (
    CHOICES,
    USUAL,
    Neighbours,
    choose_number,
    cluster,
    extend_index,
)
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
from longtail.progress import SILENT, Progress
from longtail.runtime.rows import view_rows
from longtail.runtime.store import Files
from longtail.search.index import Index
from longtail.search.kernels import to_unit
from longtail.text.tfidf import Tfidf
from longtail.topk import TopK

if TYPE_CHECKING:
    from longtail.models.dxml.network import DXMLNetwork, Embedding
    from longtail.training.memory import Needs

Floats = NDArray[np.float32]

FEWEST_STEPS = 1_000_000  # of all walks together, unless a label would get more than it needs
FEWEST_WALKS, MOST_WALKS = 4, 1000  # from each label
HELD_OUT, MOST_HELD_OUT = 0.1, 5000  # documents that choose the number of neighbours
PART = 0.75  # of a document's features that stand for a new document's
UPDATE_SHARE = 4  # an update trains for a quarter of the epochs


class DXML(Neural):
    """The labels of the nearest documents, in a space made of the graph of labels.

    Args:
        dim: length of the vectors of labels and documents (the paper's l).
        weighted: let labels that occur together often be visited more often by the walks.
        hierarchy: a file that gives the edges of the graph in place of co-occurrence: a parent and
            a child a line, separated by a tab; or a SKOS vocabulary (.ttl, .rdf).
        walks: walks from each label; none makes a million steps in all, at least 4 walks.
        walk_length: labels in a walk.
        window: labels before and after one in a walk that it is made similar to.
        whiten: how far directions that many labels share are shortened, from 0 to 1.
        hidden: neurons of the network's first layer.
        linear: leave the ReLU out (the paper's figure 2).
        residual: add what enters the ReLU to what the second layer returns; hidden is then dim.
        keep: share of the input cells that training keeps.
        dropout: share of the last layer's outputs that are dropped in training.
        idf: weight the features of rows by how rare they are; texts have such weights already.
        normalize: scale every document's row to length 1.
        neighbours: how many documents vote (the paper's k); none chooses by held-out documents,
            for which the network is trained twice.
        temperature: the lower, the more the nearest of them count; 0 counts all alike.
        clusters: how many clusters of documents there are (the paper's m); none makes some where
            looking at all documents is slow.
        searched: in how many clusters to look; none takes as many as hold 95 % of the neighbours,
            but at most about 20,000 documents.
        optimizer: adam, or SGD with momentum.
        momentum: of SGD.
        weight_decay: of SGD.
        epochs: passes over the documents.
        batch_size: documents in a step; none makes about 128 steps of an epoch.
        learning_rate: of the optimizer, at its highest.
        schedule: how the learning rate falls.
        valid: share of the documents held out to choose the best epoch; 0 takes the last one.
        patience: stop after so many epochs that were no better (with valid only).
        device: where to train.
        seed: fixes everything that is random.
        tfidf: how texts become rows.
    """

    name: ClassVar[str] = "dxml"
    summary: ClassVar[str] = "labels of the nearest documents, in a space made of a label graph"
    choose_when: ClassVar[str] = "new documents and labels keep coming, or there is a hierarchy"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "dim": 100,
            "hidden": 256,
            "residual": False,
            "whiten": 0.0,
            "keep": 1.0,
            "dropout": 0.2,
            "idf": False,
            "temperature": 0.0,
            "clusters": 4,
            "searched": 1,
            "optimizer": "sgd",
            "learning_rate": 0.015,
            "schedule": "constant",
            "batch_size": 16,
            "epochs": 40,
        },
    }

    embedder_: Embedder
    label_vectors_: Floats
    documents_: Neighbours
    neighbours_: int

    def __init__(
        self,
        *,
        dim: int = 300,
        weighted: bool = False,
        hierarchy: str | None = None,
        walks: int | None = None,
        walk_length: int = 40,
        window: int = 5,
        whiten: float = 1.0,
        hidden: int = 512,
        linear: bool = False,
        residual: bool = True,
        keep: float = 0.8,
        dropout: float = 0.2,
        idf: bool = True,
        normalize: bool = True,
        neighbours: int | None = None,
        temperature: float = 0.05,
        clusters: int | None = None,
        searched: int | None = None,
        optimizer: Literal["adam", "sgd"] = "adam",
        momentum: float = 0.9,
        weight_decay: float = 0.0005,
        epochs: int = 12,
        batch_size: int | None = None,
        learning_rate: float = 0.002,
        schedule: Schedule = "linear",
        valid: float = 0.0,
        patience: int | None = None,
        device: Device = "auto",
        seed: int = 0,
        tfidf: Tfidf | None = None,
    ):
        self.dim = dim
        self.weighted = weighted
        self.hierarchy = hierarchy
        self.walks = walks
        self.walk_length = walk_length
        self.window = window
        self.whiten = whiten
        self.hidden = hidden
        self.linear = linear
        self.residual = residual
        self.keep = keep
        self.dropout = dropout
        self.idf = idf
        self.normalize = normalize
        self.neighbours = neighbours
        self.temperature = temperature
        self.clusters = clusters
        self.searched = searched
        self.optimizer = optimizer
        self.momentum = momentum
        self.weight_decay = weight_decay
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
        for name in ("dim", "window", "hidden", "epochs"):
            self.require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("walks", "neighbours", "clusters", "searched"):
            value = getattr(self, name)
            self.require(name, value is None or value >= 1, "at least 1, or none")
        self.require("walk_length", 2 <= self.walk_length <= 10_000, "between 2 and 10000")
        if self.hierarchy is not None:
            check_hierarchy(self.hierarchy)
        self.require("whiten", 0 <= self.whiten <= 1, "from 0 to 1")
        for name in ("temperature", "weight_decay"):
            self.require(name, 0 <= getattr(self, name) < np.inf, "a number, 0 or more")
        self.require("momentum", 0 <= self.momentum < 1, "from 0 to below 1")
        self.check_training()

    # -- algorithm 1 --------------------------------------------------------------------------

    def fit(self, data: Documents, labels: Any = None, *, progress: Progress = SILENT) -> Self:
        """Learn as every model does; a hierarchy is matched with the labels' names."""
        dataset = as_dataset(data, labels)
        self._names = list(dataset.label_names)
        return super().fit(dataset, progress=progress)

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Make label vectors of the graph, train the network, cluster what it makes."""
        require_torch("DXML")
        useful = _useful(X, Y)
        X, Y = X[useful], Y[useful]
        self._plan_memory(X, Y.shape[1], progress)
        vectors = self._embed_labels(Y, progress)  # lines 1 and 2
        neighbours = self.neighbours
        if neighbours is None and not self.valid:
            neighbours = self._try_neighbours(X, Y, vectors, progress)
        embedder, held = self._train(X, Y, vectors, progress)  # lines 3 and 4
        if neighbours is None:
            neighbours = self._choose_neighbours(embedder, X, Y, held)
        index = self._cluster(embedder, X, neighbours, progress)  # line 5
        self.embedder_, self.label_vectors_ = embedder, vectors
        self.documents_, self.neighbours_ = Neighbours(index, X, Y), neighbours

    def _embed_labels(self, Y: sp.csr_matrix, progress: Progress) -> Floats:
        """Lines 1 and 2: return V, from co-occurrence or from the hierarchy."""
        if self.hierarchy is None:
            graph = build_graph(Y, weighted=self.weighted)
        else:
            graph = link_labels(self.hierarchy, self._names, progress)
        n_connected = max(1, int((graph.degrees > 0).sum()))
        enough = -(-FEWEST_STEPS // (self.walk_length * n_connected))
        vectors = embed_labels(
            graph,
            self.dim,
            n_walks=self.walks or int(np.clip(enough, FEWEST_WALKS, MOST_WALKS)),
            length=self.walk_length,
            window=self.window,
            whiten=self.whiten,
            seed=self.seed,
            progress=progress,
        )
        return vectors[: Y.shape[1]]  # a hierarchy may have more nodes than labels

    def _train(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, vectors: Floats, progress: Progress
    ) -> tuple[Embedder, NDArray[np.int64]]:
        """Lines 3 and 4: return the trained network and which documents were held out."""
        from longtail.models.dxml.network import new_network

        weights = weigh_features(X) if self.idf else np.ones(X.shape[1], np.float32)
        embedding: Embedding = "linear" if self.linear else "residual" if self.residual else "relu"
        net = new_network(X.shape[1], self._width, self.dim, embedding, self.seed)
        return self._train_network(net, weights, X, Y, vectors, self.epochs, progress)

    def _train_network(
        self,
        net: "DXMLNetwork",
        weights: Floats,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        vectors: Floats,
        epochs: int,
        progress: Progress,
    ) -> tuple[Embedder, NDArray[np.int64]]:
        from longtail.models.dxml.network import DXMLTask

        kept, held = hold_out(X.shape[0], self.valid, self.seed)
        rows = weigh_rows(X, weights, self.normalize)
        task = DXMLTask(self, net, rows, Y, vectors, kept, held)
        plan = self.make_config(epochs, self.batch_size or choose_batch_size(len(kept)))
        self.train_task(task, plan, X, Y, progress)
        return net.cpu().requires_grad_(False).export(weights), held

    @property
    def _width(self) -> int:
        """The number of hidden neurons."""
        return self.dim if self.residual and not self.linear else self.hidden

    def _plan_memory(self, X: sp.csr_matrix, n_labels: int, progress: Progress) -> None:
        """Say what training will take, or stop with what to change."""
        from longtail.training.processes import choose_device

        batch_size = self.batch_size or choose_batch_size(X.shape[0])
        n_cells = batch_size * -(-X.nnz // X.shape[0])
        sizes = (X.shape[1], n_labels, batch_size, n_cells)
        others = ({"dim": 100}, {"residual": False, "hidden": 64})
        alternatives = {
            ", ".join(f"{name}={value}" for name, value in other.items()): type(self)(
                **{**self.get_parameters(), **other}
            )._needs(*sizes)
            for other in others
        }
        kind = choose_device(self.device).type
        self.say_memory(self._needs(*sizes), kind, alternatives, progress)

    def _needs(self, n_features: int, n_labels: int, batch_size: int, n_cells: int) -> "Needs":
        """Return the bytes that training takes."""
        from longtail.training.memory import Needs

        second = self._width * self.dim
        parameters = 4 * (n_features * self._width + second)
        touched = n_features if self.optimizer == "sgd" else min(n_cells, n_features)
        vectors = 4 * n_labels * self.dim
        return Needs(
            parameters=parameters,
            gradients=4 * (touched * self._width + second),
            optimizer=parameters if self.optimizer == "sgd" else 2 * parameters,
            activations=4 * batch_size * (3 * self._width + 6 * self.dim) + 40 * n_cells + vectors,
            best=parameters if self.valid else 0,
        )

    # -- the number of neighbours ---------------------------------------------------------------

    def _try_neighbours(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, vectors: Floats, progress: Progress
    ) -> int:
        """Train on most of the documents, return what is best for the others."""
        share = min(HELD_OUT, MOST_HELD_OUT / X.shape[0])
        kept, held = hold_out(X.shape[0], share, self.seed)
        if not len(held):
            return USUAL
        trial = type(self)(**self.get_parameters())
        if self.run_dir is not None:
            trial.run_dir = self.run_dir.with_name(f"{self.run_dir.name}-neighbours")
            trial.resume = self.resume
        embedder, _ = trial._train(X[kept], Y[kept], vectors, progress)
        return self._choose_neighbours(embedder, X, Y, held)

    def _choose_neighbours(
        self, embedder: Embedder, X: sp.csr_matrix, Y: sp.csr_matrix, held: NDArray[np.int64]
    ) -> int:
        """Return the number of neighbours that ranks the labels of the held-out ones best."""
        kept = np.setdiff1d(np.arange(X.shape[0]), held)
        places = embed_rows(embedder, view_rows(X), self.normalize)
        index = cluster(places[kept], places[held], max(CHOICES), seed=self.seed)
        return choose_number(index, Y[kept], places[held], Y[held], self.temperature)

    # -- algorithm 2 --------------------------------------------------------------------------

    def predict_rows(self, X: sp.csr_matrix, k: int) -> TopK:
        """Put the documents into the space; rank the labels of their neighbours there."""
        places = embed_rows(self.embedder_, view_rows(X), self.normalize)  # line 1
        return self.documents_.rank_labels(places, self.neighbours_, self.temperature, k)

    def _cluster(
        self, embedder: Embedder, X: sp.csr_matrix, neighbours: int, progress: Progress
    ) -> Index:
        """Line 5 of algorithm 1: embed the documents and divide them."""
        return cluster(
            embed_rows(embedder, view_rows(X), self.normalize),
            self._embed_parts(embedder, X),
            neighbours,
            clusters=self.clusters,
            searched=self.searched,
            seed=self.seed,
            progress=progress,
        )

    def _embed_parts(self, embedder: Embedder, X: sp.csr_matrix) -> Floats:
        """Embed documents that lack some of their features: they lie as new ones may lie."""
        rng = np.random.default_rng(self.seed)
        some = X[np.sort(rng.choice(X.shape[0], min(1000, X.shape[0]), replace=False))]
        some.data = some.data * (rng.random(some.nnz) < PART)
        return embed_rows(embedder, view_rows(some), self.normalize)

    # -- incremental learning -------------------------------------------------------------------

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Take in new documents, after going on with training from the present weights if asked."""
        useful = _useful(X, Y)
        X, Y = X[useful], Y[useful]
        all_X, all_Y = self.documents_.join(X, Y)
        vectors = self._place_new_labels(all_Y)
        if train:
            embedder = self._train_further(all_X, all_Y, vectors, progress)
            index = self._cluster(embedder, all_X, self.neighbours_, progress)
        else:
            embedder = self.embedder_
            places = embed_rows(embedder, view_rows(X), self.normalize)
            index = extend_index(self.documents_.index, places)
        self.embedder_, self.label_vectors_ = embedder, vectors
        self.documents_ = Neighbours(index, all_X, all_Y)

    def _train_further(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, vectors: Floats, progress: Progress
    ) -> Embedder:
        """Go on from the present weights, for a quarter of the epochs."""
        require_torch("DXML")
        from longtail.models.dxml.network import open_network

        net, weights = open_network(self.embedder_), self.embedder_.feature_weight
        epochs = max(1, self.epochs // UPDATE_SHARE)
        embedder, _ = self._train_network(net, weights, X, Y, vectors, epochs, progress)
        if self.history_.problem is not None:
            raise TrainingError(self.history_.problem)
        return embedder

    def _place_new_labels(self, Y: sp.csr_matrix) -> Floats:
        """Return V with new labels: a direction of their own, moved towards those beside them."""
        V = self.label_vectors_
        beside = Y[:, len(V) :].T @ Y[:, : len(V)]  # (n_new, n_old) how often they are together
        totals = np.maximum(np.asarray(beside.sum(axis=1)), 1)
        new = draw_directions(Y.shape[1] - len(V), V.shape[1], self.seed + len(V))
        return np.concatenate([V, to_unit(np.asarray(new + beside @ V / totals, np.float32))])

    # -- saving -----------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the network, the label vectors, and the documents with their rows and labels."""
        self.embedder_.add_to_files(files)
        self.documents_.add_to_files(files)
        files.arrays["label_vectors"] = self.label_vectors_
        files.config["neighbours"] = self.neighbours_

    def restore(self, files: Files) -> None:
        """Take back what was saved; raise ValueError for parts that do not fit together."""
        n_labels = len(self.label_names_)
        self.embedder_ = Embedder.from_files(files, self.n_features_)
        self.documents_ = Neighbours.from_files(files, self.n_features_, n_labels)
        self.label_vectors_ = files.arrays["label_vectors"]
        dim = self.documents_.index.vectors.shape[1]
        found, expected = self.label_vectors_.shape, (n_labels, self.embedder_.dim)
        if found != expected or dim != self.embedder_.dim:
            raise ValueError(f"label vectors of shape {found}, expected {expected}")
        self.neighbours_ = files.config["neighbours"]
        if type(self.neighbours_) is not int or self.neighbours_ < 1:
            raise ValueError(f"{self.neighbours_!r} neighbours")


def _useful(X: sp.csr_matrix, Y: sp.csr_matrix) -> NDArray[np.int64]:
    """Return the documents with features and labels; those with labels if there are none."""
    labelled = np.diff(Y.indptr) > 0
    useful = labelled & (np.diff(X.indptr) > 0)
    return np.flatnonzero(useful if useful.any() else labelled)
