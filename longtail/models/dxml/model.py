"""DXML: a network learns to put documents where the vectors of their labels are.

Zhang et al., "Deep Extreme Multi-label Learning", ICMR 2018. Labels that occur together are
neighbours in a graph, whose nodes DeepWalk turns into vectors. A document should lie at the mean
of its labels' vectors; a network learns to put it there from its features. A new document gets the
labels of the training documents that lie nearest to it.

The symbols of the paper are listed in `network.py`, beside its equations.

Departures: in a graph as dense as that of bibtex all labels are near each other, and so are their
vectors; V is therefore whitened, but not wholly, so that something of the graph stays (`whiten`).
Frequent labels are thinned out of the walks, as word2vec does and DeepWalk does not (`subsample`).
Rows of V and f_y have length 1, as f_x has (`unit_labels`). What enters the ReLU is added to what
W_2 returns (residual=False is figure 1, within about a point). Neighbours count by
exp(cosine/temperature). Adam is quicker than SGD and not worse. Input cells are dropped, as in
GLaS. There are clusters only where looking at all documents is slow, and enough of them are
searched to find 95 % of the neighbours (searched=1 is the paper's way). k-means compares
directions: f_x has length 1, so that only the centres differ, by their length, from those of
equation (4). `preset=paper` has the paper's own values, and where it gives none (batch, epochs,
clusters, dropout, window) what was best on held-out documents; a step takes the mean of its batch,
where (3) sums over all documents (`sum_losses`).

Documents keep their rows, which take less space than their vectors: so a model can take in new ones
at once, and go on training with old and new ones when it should (`partial_fit`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import as_dataset
from longtail.errors import TrainingError
from longtail.evaluation.metrics import evaluate_documents
from longtail.labels.graph import LARGEST_CORPUS
from longtail.labels.hierarchy import check_hierarchy
from longtail.labels.pairs import estimate_product, thin_labels
from longtail.models.contract import Documents
from longtail.models.cost import DeviceType, Facts
from longtail.models.dxml.label_vectors import count_walks, make_label_vectors, place_new_labels
from longtail.models.embedder import Embedder, embed_rows
from longtail.models.leaving_out import weigh_sides
from longtail.models.neural import (
    NeuralRows,
    batch_bytes,
    choose_batch_size,
    count_cells,
    estimate_trainings,
    find_useful,
    require_torch,
    share_to_choose,
    share_to_spare,
    weighed_bytes,
)
from longtail.progress import SILENT, Progress
from longtail.runtime.mapped import Extent
from longtail.runtime.memory import Needs, Stage, size_of, train_stage
from longtail.runtime.quantized import QuantizedRows
from longtail.runtime.rows import (
    add_matrix,
    describe_matrix,
    hold_out,
    round_values,
    take_matrix,
    view_rows,
    weigh_rows,
)
from longtail.runtime.schema import Schema
from longtail.runtime.settings import at_least, between, configurable, learned, setting, share
from longtail.runtime.store import Files
from longtail.search.index import Index, build_index, build_on
from longtail.search.voters import Neighbours, Voters, choose_voting
from longtail.topk import TopK

if TYPE_CHECKING:
    from longtail.models.dxml.network import DXMLNetwork, Embedding

Floats = NDArray[np.float32]

WALK_SECONDS = 4e-6  # of a step of a walk, at dim=300 and window=5
NUMBERS = (3, 5, 7, 10, 15, 20, 30, 50, 80, 120)  # of neighbours, to choose from
USUAL_NUMBER = 20  # of neighbours, where there is nothing to choose by
RECALL = 0.95  # of the neighbours, where there are clusters; 0.99 takes four times as long for +0.3
MOST_SEARCHED = 20_000  # documents for one query; that takes one or two milliseconds
PART = 0.75  # of a document's features that stand for a new document's
UPDATE_SHARE = 4  # an update trains for a quarter of the epochs


@configurable
class DXML(NeuralRows):
    """The labels of the nearest documents, in a space made of the graph of labels."""

    name: ClassVar[str] = "dxml"
    summary: ClassVar[str] = "labels of the nearest documents, in a space made of a label graph"
    choose_when: ClassVar[str] = "new documents and labels keep coming"
    can_update: ClassVar[bool] = True
    has_embeddings: ClassVar[bool] = True
    member_order: ClassVar[int | None] = 6
    member_reason: ClassVar[str] = "places documents in the graph of labels"
    milliseconds: ClassVar[float] = 1.5
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "dim": 100,
            "hidden": 256,
            "residual": False,
            "hierarchical": True,
            "subsample": 0.0,
            "whiten": 0.0,
            "unit_labels": False,
            "keep": 1.0,
            "dropout": 0.2,
            "idf": False,
            "temperature": 0.0,
            "clusters": 1,
            "searched": 1,
            "optimizer": "sgd",
            "learning_rate": 0.015,
            "schedule": "constant",
            "batch_size": 16,
            "epochs": 20,
        },
    }

    dim: int = setting(
        300, "length of the vectors of labels and documents (the paper's l)", at_least(1)
    )
    weighted: bool = setting(
        False, "let labels that occur together often be visited more often by the walks"
    )
    hierarchy: str | None = setting(
        None,
        "a file that gives the edges of the graph in place of co-occurrence: a parent and a child "
        "a line, separated by a tab; or a SKOS vocabulary (.ttl, .rdf)",
    )
    walks: int | None = setting(
        None,
        "walks from each label; none makes a million steps in all, at least 4 walks",
        between(1, 1_000_000),
    )
    walk_length: int = setting(40, "labels in a walk", between(2, 10_000))
    window: int = setting(
        5, "labels before and after one in a walk that it is made similar to", between(1, 10_000)
    )
    hierarchical: bool = setting(
        False,
        "learn vectors from the walks by hierarchical softmax, as DeepWalk does, in place of "
        "negative sampling",
    )
    subsample: float = setting(
        0.001,
        "thin labels out of the walks that are more than this share of them, the more the more "
        "frequent they are, as word2vec does; 0 keeps all, as DeepWalk does",
        share(),
    )
    whiten: float | None = setting(
        None,
        "how far the cosines of different labels are shrunk: 0 leaves what the walks found, 1 "
        "leaves nothing of it unless there are more labels than dimensions; none leaves the less, "
        "the more labels a document carries",
        between(0, 1),
    )
    label_vectors: Literal["graph", "orthogonal", "random"] = setting(
        "graph",
        "made of the graph, or drawn at random to see what the graph is worth: any directions, or "
        "orthogonal ones as far as there are dimensions",
    )
    unit_labels: bool = setting(
        True,
        "scale the vectors of labels, and their mean over a document's labels, to length 1; false "
        "takes both as they are (the paper's f_y)",
    )
    hidden: int = setting(512, "neurons of the network's first layer", at_least(1))
    linear: bool = setting(False, "leave the ReLU out (the paper's figure 2)")
    residual: bool = setting(
        True, "add what enters the ReLU to what the second layer returns; hidden is then dim"
    )
    keep: float = 0.8
    dropout: float = setting(
        0.2, "share of the last layer's outputs that are dropped in training", share()
    )
    neighbours: int | None = setting(
        None,
        "how many documents vote (the paper's k); none chooses by held-out documents, for which "
        "the network is trained twice if there are fewer than 100,000",
        at_least(1),
    )
    temperature: float = setting(
        0.05, "the lower, the more the nearest of them count; 0 counts all alike", at_least(0)
    )
    clusters: int | None = setting(
        None,
        "how many clusters of documents there are (the paper's m); none makes some where looking "
        "at all documents is slow",
        at_least(1),
    )
    searched: int | None = setting(
        None,
        "in how many clusters to look; none takes as many as hold 95 % of the neighbours, but at "
        "most about 20,000 documents",
        at_least(1),
    )
    optimizer: Literal["adam", "sgd"] = setting("adam", "adam, or SGD with momentum")
    sum_losses: bool = setting(
        False, "add the losses of a batch, as equation (3) does, in place of taking their mean"
    )
    momentum: float = setting(0.9, "of SGD", share())
    weight_decay: float = setting(0.0005, "of SGD", at_least(0))
    epochs: int = 12
    learning_rate: float = 0.002

    embedder_: Embedder = learned()
    label_vectors_: QuantizedRows = learned()  # V, to train further and to place new labels
    voters_: Voters = learned()
    rows_: sp.csr_matrix = learned()

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        super().check_parameters()
        if self.hierarchy is not None:
            check_hierarchy(self.hierarchy)

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Measured on four data sets."""
        return estimate_trainings(facts, cpu=(9, 1.0), cuda=(10, 0.12))

    def work(self, facts: Facts) -> float:
        """Every epoch passes over all documents, along all dimensions."""
        return self.epochs * self.dim

    def extra_seconds(self, facts: Facts) -> float:
        """Walks through the graph of labels take their own time."""
        if self.label_vectors != "graph":
            return super().extra_seconds(facts)
        n_walks = self.walks or count_walks(facts.n_labels, self.walk_length)
        steps = n_walks * facts.n_labels * self.walk_length
        walking = WALK_SECONDS * steps * (self.dim / 300) * (self.window / 5)
        return super().extra_seconds(facts) + walking

    # -- algorithm 1 --------------------------------------------------------------------------

    def fit(
        self,
        data: Documents,
        labels: Any = None,
        *,
        text: str | Sequence[str] | None = None,
        progress: Progress | bool = SILENT,
    ) -> Self:
        """Learn as every model does; a hierarchy is matched with the labels' names."""
        dataset = as_dataset(data, labels, text=text)
        self._names = list(dataset.label_names)
        return super().fit(dataset, progress=progress)

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Make label vectors of the graph, train the network, cluster what it makes."""
        require_torch("DXML")
        from longtail.training.processes import choose_device

        device_type, others = choose_device(self.device).type, ({"dim": 100}, {"dim": 32})
        self.say_memory(lambda m: m.needs_of(X, Y, device_type), others, progress, device_type)
        useful = find_useful(X, Y)
        X, Y = X[useful], Y[useful]
        vectors = make_label_vectors(self, Y, self._names, progress)  # lines 1 and 2
        neighbours, share = self.neighbours, 0.0
        if neighbours is None and not self.valid:
            share = share_to_spare(X.shape[0])
            if not share:
                neighbours = self._try_neighbours(X, Y, vectors, progress)
        kept, held = hold_out(X.shape[0], share, self.seed)
        some = (X[kept], Y[kept]) if share else (X, Y)
        embedder, validated = self._train(*some, vectors, progress)  # lines 3 and 4
        if neighbours is None:
            neighbours = self._choose_neighbours(embedder, X, Y, held if share else validated)
        index = self._cluster(embedder, X, neighbours, progress)  # line 5
        self.embedder_, self.label_vectors_ = embedder, QuantizedRows.of(vectors)
        self.voters_ = Voters(index, Y, neighbours, self.temperature)
        self.rows_ = round_values(X)

    def _train(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, vectors: Floats, progress: Progress
    ) -> tuple[Embedder, NDArray[np.int64]]:
        """Lines 3 and 4: return the trained network and which documents were held out."""
        from longtail.models.dxml.network import new_network

        weights = self.weigh(X)
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
        return net.cpu().requires_grad_(False).export(weights).without_rare(X), held

    def sized_for(self, n_documents: int, device: DeviceType) -> Self:
        """Return the same model with all that depends on the number of documents given."""
        sized = super().sized_for(n_documents, device)
        if self.valid or self.neighbours is not None:
            return sized
        return sized.with_parameters(valid=share_to_spare(n_documents))

    @property
    def _width(self) -> int:
        """The number of hidden neurons."""
        return self.dim if self.residual and not self.linear else self.hidden

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> Needs:
        """Return what the graph, its vectors, the network and the search take."""
        n, n_labels = Y.shape
        thinned = thin_labels(Y, self.seed, SILENT)
        n_edges = estimate_product(thinned, thinned)
        n_seen = n_labels if isinstance(Y, Extent) else len(np.unique(Y.indices))
        own = size_of(X, Y)  # the documents with features and labels, which it keeps
        vectors, walked_vectors = 4 * n_labels * self.dim, 4 * n_seen * self.dim
        words = 60 * n_labels + 200 * n_seen  # as gensim knows the labels
        walks = 4 * min(LARGEST_CORPUS, n_seen * self.walk_length)
        graph = {"label graph": 24 * n_edges + 24 * Y.nnz, "rows": own}
        walked = {
            "label graph": 12 * n_edges,
            "walks": walks + words,
            "label vectors": 2 * walked_vectors,
            "rows": own,
        }
        # Labels that stand alone are not whitened; their directions are drawn.
        whitened = {
            "label graph": 12 * n_edges,
            "walks": words,
            "label vectors": max(5 * walked_vectors, 2 * vectors - walked_vectors),
            "rows": own,
        }
        held = own + weighed_bytes(X) + vectors
        if self.neighbours is None and not self.valid:
            held += own  # of the trial
        # k-means on all documents compares copies of length 1.
        copies = 11 if self.clusters is None else 15
        searched = {"documents": copies * n * self.dim, "rows": own, "label vectors": vectors}
        network = self._train_needs(X, device_type, held), Stage(searched)
        if self.label_vectors != "graph":
            return Stage({"label vectors": 2 * vectors, "rows": own}), *network
        return Stage(graph), Stage(walked), Stage(whitened), *network

    def _train_needs(self, X: sp.csr_matrix, device_type: str, held: int) -> Stage:
        """Return what it takes to train the network."""
        n_features, batch_size = X.shape[1], self.batch_size or choose_batch_size(X.shape[0])
        n_cells = count_cells(X, batch_size)
        second = self._width * self.dim
        parameters = 4 * (n_features * self._width + second)
        touched = n_features if self.optimizer == "sgd" else min(n_cells, n_features)
        remembered = {"optimizer": parameters}
        if self.optimizer == "adam":
            first, others = parameters - 4 * second, 4 * second + 2 * n_features
            remembered = self.remembered(first, others, device_type)
        return train_stage(
            device_type,
            parameters=parameters,
            gradients=4 * (touched * self._width + second),
            **remembered,
            activations=4 * batch_size * (3 * self._width + 6 * self.dim)
            + batch_bytes(n_cells, n_features),
            best=parameters if self.valid else 0,
            held=held,
        )

    # -- the number of neighbours ---------------------------------------------------------------

    @property
    def choices(self) -> dict[str, Any]:
        """How many neighbours vote."""
        return {"neighbours": self.voters_.n_neighbours}

    def _try_neighbours(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, vectors: Floats, progress: Progress
    ) -> int:
        """Train on most of the documents, return what is best for the others."""
        kept, held = hold_out(X.shape[0], share_to_choose(X.shape[0]), self.seed)
        if not len(held):
            return USUAL_NUMBER
        trial = self.with_parameters()
        if self.run_dir is not None:
            trial.run_dir = self.run_dir / "neighbours"
            trial.resume, trial.checkpoint_seconds = self.resume, self.checkpoint_seconds
        seconds = self.seconds_left(2)
        trial.stop_at = None if seconds is None else time.monotonic() + seconds
        embedder, _ = trial._train(X[kept], Y[kept], vectors, progress)
        return self._choose_neighbours(embedder, X, Y, held)

    def _choose_neighbours(
        self, embedder: Embedder, X: sp.csr_matrix, Y: sp.csr_matrix, held: NDArray[np.int64]
    ) -> int:
        """Return the number of neighbours that ranks the labels of the held-out ones best."""
        kept = np.setdiff1d(np.arange(X.shape[0]), held)
        places = embed_rows(embedder, view_rows(X), self.normalize)
        index = cluster(
            places[kept],
            places[held],
            max(NUMBERS),
            clusters=self.clusters,
            searched=self.searched,
            seed=self.seed,
        )
        ids, cosines = index.search(places[held], max(NUMBERS))
        numbers = [n for n in NUMBERS if n <= ids.shape[1]]
        if not numbers:
            return USUAL_NUMBER
        wanted = Y[held]
        return choose_voting(
            ids,
            cosines,
            Y[kept],
            lambda top: evaluate_documents(top, wanted, k=5)["nDCG@5"].percent(),
            numbers=numbers,
            temperatures=[self.temperature],
        ).n_neighbours

    # -- algorithm 2 --------------------------------------------------------------------------

    def read_rows(self, X: sp.csr_matrix) -> Neighbours:
        """Put the documents into the space; find their neighbours there."""
        places = embed_rows(self.embedder_, view_rows(X), self.normalize)  # line 1
        return self.voters_.find(places)  # lines 2 and 3

    def predict_rows(self, X: Neighbours, k: int) -> TopK:
        """Rank the labels of the neighbours."""
        return self.voters_.rank_labels(X, k)  # lines 4 and 5

    def score_rows(self, X: Neighbours, candidates: NDArray[np.int32]) -> Floats:
        """Count the votes of the neighbours for the candidates; without any, it is 0."""
        return self.voters_.score_labels(X, candidates)

    def _cluster(
        self, embedder: Embedder, X: sp.csr_matrix, neighbours: int, progress: Progress
    ) -> Index:
        """Line 5 of algorithm 1: embed the documents and divide them."""
        from longtail.training.processes import choose_device

        build = partial(
            cluster,
            embed_rows(embedder, view_rows(X), self.normalize),
            self._embed_parts(embedder, X),
            neighbours,
            clusters=self.clusters,
            searched=self.searched,
            seed=self.seed,
            progress=progress,
        )
        device = choose_device(self.device).type
        return build_on(device, lambda where: build(device=where), progress)

    def _embed_parts(self, embedder: Embedder, X: sp.csr_matrix) -> Floats:
        """Embed documents that lack some of their features: they lie as new ones may lie."""
        rng = np.random.default_rng(self.seed)
        some = X[np.sort(rng.choice(X.shape[0], min(1000, X.shape[0]), replace=False))]
        some.data = some.data * (rng.random(some.nnz) < PART)
        return embed_rows(embedder, view_rows(some), self.normalize)

    # -- incremental learning -------------------------------------------------------------------

    def explain_row(self, X: sp.csr_matrix, label: int | None) -> NDArray[np.float32]:
        """Say of a label without votes what brings the row nearer to its documents than others."""
        asked = np.array([[-1 if label is None else label]], np.int32)
        if label is None or self.score_documents(X, asked).any():
            return super().explain_row(X, label)

        def embed(rows: sp.csr_matrix) -> NDArray[np.float32]:
            return embed_rows(self.embedder_, view_rows(rows), self.normalize)

        return weigh_sides(X, embed, *self.voters_.find_sides(embed(X), label))

    @property
    def n_kept(self) -> int:
        """How many documents vote."""
        return int(self.rows_.shape[0])

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Take in new documents, after going on with training from the present weights if asked."""
        all_X, all_Y = sp.vstack([self.rows_, X], "csr"), self.voters_.join_labels(Y)
        known = self.label_vectors_.take(slice(None), self.dim)
        vectors = place_new_labels(known, all_Y, self.n_kept, unit=self.unit_labels, seed=self.seed)
        if train:
            embedder = self._train_further(all_X, all_Y, vectors, progress)
            index = self._cluster(embedder, all_X, self.voters_.n_neighbours, progress)
        else:
            embedder = self.embedder_
            places = embed_rows(embedder, view_rows(X), self.normalize)
            index = cast(Index, self.voters_.index).extend(places)
        self.embedder_, self.label_vectors_ = embedder, QuantizedRows.of(vectors)
        self.voters_ = replace(self.voters_, index=index, Y=all_Y)
        self.rows_ = round_values(all_X)

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

    # -- saving -----------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the network, the label vectors, and the documents with their rows and labels."""
        self.embedder_.add_to_files(files)
        self.voters_.add_to_files(files)
        add_matrix(files, "rows", self.rows_, rounded=True)
        self.label_vectors_.add_to_files(files, "label_vectors")

    def describe(self, files: Files) -> Schema:
        """Return the schema of the network, the label vectors and the documents."""
        return (
            Embedder.describe(files)
            | QuantizedRows.describe("label_vectors", "n_labels", "dim")
            | Voters.describe(files, "dim")
            | describe_matrix("rows", "voters.n", rounded=True)
        )

    def restore(self, files: Files) -> None:
        """Take back what was saved."""
        self.embedder_ = Embedder.from_files(files)
        self.voters_ = Voters.from_files(files, len(self.label_names_))
        self.rows_ = take_matrix(files, "rows", len(self.voters_.index), self.n_features_)
        self.label_vectors_ = QuantizedRows.from_files(files, "label_vectors")


def cluster(
    vectors: Floats,
    queries: Floats,
    n: int,
    *,
    clusters: int | None = None,
    searched: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress = SILENT,
) -> Index:
    """Line 5 of algorithm 1: divide the documents by k-means, if there are many or it is asked for.

    Args:
        vectors: where the documents lie.
        queries: where new documents may lie, to measure the recall by.
        n: how many neighbours will be searched for.
        clusters: how many to make; 1 for none.
        searched: how many to search; by default those that hold 95 % of the neighbours (99 % where
            that is quick), but no more than hold 20,000 documents.
        device: where to divide them: "cpu" or "cuda".
        seed: fixes the clusters.
        progress: shows the rounds of k-means.
    """
    if clusters == 1:
        return build_index(vectors, method="exact")
    index = build_index(
        vectors,
        method="auto" if clusters is None else "approximate",
        queries=queries,
        recall=RECALL,
        recall_at=n,
        n_lists=clusters,
        sampled=clusters is None,
        device=device,
        seed=seed,
        progress=progress,
    )
    most = searched or max(1, MOST_SEARCHED * index.n_lists // len(index))
    if searched is not None or index.n_probes > most:
        index.set_probes(min(most, index.n_lists), queries, n)
    return index.to("cpu")  # which frees the GPU's memory
