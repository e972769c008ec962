"""GLaS: documents and labels as points on one sphere, labels that co-occur side by side.

Guo et al., "Breaking the Glass Ceiling for Embedding-Based Classifiers for Large Output Spaces",
NeurIPS 2019. A small network maps a document to a unit vector, every label has a unit vector, and
the labels with the largest inner products are predicted. Such models overfit; so the inner
products of labels are pulled towards how often the labels co-occur, and input cells are dropped.

The symbols of the paper are listed in `network.py`, beside its equations.

Departures: the loss is BCE over all labels where these fit, which is far better than sampled
margins; the paper's own losses are options. s is the shared length of the label layer's weights,
which (1) does without and BCE needs. With many features, φ is the sum of a linear and a ReLU
layer's outputs, better than either alone. The block U is that of the batch's distinct labels, at
most 1024. Kept cells are divided by ρ, so that training and prediction see sums of one size.
PMI is normalized to at most 1 and cut at 0, as inner products of unit vectors have to meet it.
Adam takes the place of SGD. It is lazy, without the part of weight normalization's gradient that
reaches every feature (`lazy`). Rows of counts are weighted by idf, of which the paper says nothing.
The preset "paper" is nearer to the paper, and still departs from it: it mines the hardest labels,
which the paper names as an alternative to (1) and which suits our sets best on the whole
(`loss=margin` is (1)); blocks and batches have other sizes; kept cells, Adam and idf are as above.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.labels.pairs import estimate_product, thin_labels
from longtail.models.cost import Facts
from longtail.models.embedder import Embedder, embed_rows
from longtail.models.neural import (
    SPLIT_HELP,
    NeuralRows,
    batch_bytes,
    count_cells,
    require_torch,
    weighed_bytes,
)
from longtail.models.new_labels import (
    find_directions,
    find_new_labels,
    mean_of_known,
    mean_products,
    put_labels,
)
from longtail.progress import SILENT, Progress
from longtail.runtime.memory import Needs, Stage, train_stage
from longtail.runtime.rows import hold_out, view_rows, weigh_rows
from longtail.runtime.schema import Schema, number
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
from longtail.search.gpu import gpu_is_there
from longtail.search.index import Index, build_index
from longtail.search.pca import (
    build_label_index,
    describe_index,
    label_index_bytes,
    open_index,
    worth_searching,
)
from longtail.topk import TopK

if TYPE_CHECKING:
    from longtail.models.glas.network import GLaSTask
    from longtail.training.processes import Processes

Floats = NDArray[np.float32]
Embedding = Literal["linear", "relu", "residual"]
Loss = Literal["bce", "softmax", "margin", "mining"]
Regularizer = Literal["glas", "spread-out", "gravity", "none"]
Similarity = Literal["arithmetic", "geometric", "pmi", "jaccard"]

ALL_LABELS = {"cpu": 50_000, "cuda": 2_000_000}  # up to so many, every batch scores all labels
UNCACHED = 10_000  # features whose vectors no cache holds
FEW_FEATURES = 10_000  # a linear map has too little to choose from
N_EXAMPLES = 2000  # documents by which the recall of the search is measured
LARGEST_TABLE = 50_000  # labels whose similarities a GPU holds all at once
MOST_SAMPLED = 10_000_000
MOST_REGULARIZED = 8192
LEAST_BATCH = 16  # documents, however many steps an epoch should have
SAMPLED = 4096  # beyond, so many labels at random join those of the batch
LARGEST_UNPREPARED = 1 << 26  # numbers of label vectors that thousands of searches may read in full


@configurable
class GLaS(NeuralRows):
    """Unit embeddings of documents and labels, with co-occurring labels kept side by side."""

    name: ClassVar[str] = "glas"
    summary: ClassVar[str] = "unit embeddings of documents and labels, co-occurring ones near"
    choose_when: ClassVar[str] = "labels go together, or there is a GPU to train on"
    has_embeddings: ClassVar[bool] = True
    can_update: ClassVar[bool] = True
    trains_on: ClassVar[bool] = False
    member_order: ClassVar[int | None] = 7
    member_order_of_rows: ClassVar[int | None] = 4
    member_reason: ClassVar[str] = "learns which labels go together"
    cheaper_presets: ClassVar[Sequence[str]] = ("fast",)
    milliseconds: ClassVar[float] = 0.4
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fast": {"dim": 256},
        "large": {"dim": 3072, "epochs": 4, "keep": 0.95, "dropout": 0.7},
        "paper": {
            "dim": 1024,
            "embedding": "relu",
            "loss": "mining",
            "margin": 0.3,
            "mined": 30,
            "batch_size": 4096,
            "epoch_steps": 290,
            "strength": 10.0,
            "keep": 0.8,
            "dropout": 0.0,
            "lazy": False,
            "epochs": 10,
            "learning_rate": 0.003,
            "valid": 0.1,
            "patience": 3,
        },
    }

    dim: int = setting(
        1024, "length of the embeddings of documents and labels (the paper's d)", at_least(1)
    )
    embedding: Embedding | None = setting(
        None,
        "a linear map, one with a ReLU layer, or the sum of both (residual); none takes relu with "
        "up to 10,000 features, residual with more",
    )
    loss: Loss = setting(
        "bce",
        "over all labels or over the sampled ones; margin is the paper's equation (1), mining the "
        "same for the hardest labels only",
    )
    sampled: int | None = setting(
        None,
        "how many random labels join those of the batch in the loss; 0 takes all labels, none "
        "does so where they fit",
        between(0, MOST_SAMPLED),
    )
    margin: float = setting(
        0.5, "by how much a relevant label must be ahead of others (margin, mining)", at_least(0)
    )
    mined: int = setting(10, "how many of the hardest labels count (mining)", at_least(1))
    regularizer: Regularizer = setting("glas", "what keeps the label embeddings apart")
    strength: float = setting(
        1000.0,
        "weight of the regularizer (the paper's λ; 10 with its margin loss); gravity, which pulls "
        "at documents too, needs about a thousandth of what the others need",
        at_least(0),
    )
    regularized: int | None = setting(
        None,
        "of how many documents' labels a step regularizes the inner products; none takes the "
        "documents of the batch",
        between(1, MOST_REGULARIZED),
    )
    similarity: Similarity = setting(
        "arithmetic", "what inner product the regularizer glas wants of two labels"
    )
    keep: float = setting(
        0.9,
        "share of the input cells that input dropout keeps (the paper's ρ)",
        above(0, at_most=1),
    )
    dropout: float = setting(
        0.3, "share of the ReLU layer's outputs that are dropped in training", share()
    )
    epoch_steps: int | None = setting(
        None,
        "least number of steps in an epoch: with fewer documents, batches are smaller than "
        "batch_size, down to 16 documents",
        at_least(1),
    )
    lazy: bool = setting(
        True,
        "Adam moves the features of a batch alone and leaves out what weight normalization adds "
        "to the gradient of all others; false is exact, and slower the more features there are",
    )
    averaging: bool = setting(
        False, "end with the mean of the weights of the second half of training"
    )
    split_labels: bool | None = setting(None, SPLIT_HELP)

    embedder_: Embedder = learned()
    index_: Index = learned()
    scale_: float = learned()
    bias_: float = learned()

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Three products of matrices a pass; on a CPU also work for each score and each word."""
        model = cls(**(cls.presets[preset] if preset else {}))
        epochs = model.choose_epochs(facts.n_documents)
        sampled = model._n_sampled(facts.n_labels, facts.device)
        n_scored = facts.n_labels
        if sampled is not None:
            n_scored = min(n_scored, sampled + model.choose_batch(facts.n_documents))
        inner = facts.n_values / facts.n_documents + model.dim + n_scored
        flops = 6 * model.dim * epochs * facts.n_documents * inner
        if facts.device == "cuda":
            return float(3 + flops / 6e13)
        n_scores = epochs * facts.n_documents * n_scored
        n_read = epochs * facts.n_values * model.dim if facts.n_features > UNCACHED else 0
        return float(2 + 0.02 * 128 * epochs + flops / 5.2e10 + 2e-8 * n_scores + 2.5e-9 * n_read)

    def work(self, facts: Facts) -> float:
        """Every epoch passes over all labels, along all dimensions."""
        return self.choose_epochs(facts.n_documents) * self.dim

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Train the network, then prepare it for single documents and the labels for search."""
        require_torch("GLaS")
        from longtail.training.processes import choose_device

        device_type = choose_device(self.device).type
        batch_size = self.choose_batch(X.shape[0])
        others = (
            {"optimizer_state": "int8"},
            {"dim": 128},
            {"sampled": SAMPLED},
            {"dim": 128, "sampled": SAMPLED},
        )

        def needs(model: GLaS, shards: int = 1) -> Needs:
            return model.needs_of(X, Y, device_type, shards)

        sharing = self.share_labels(needs, Y.shape[1], device_type)
        shards = 1 if sharing is None else sharing.count
        self.say_memory(lambda model: needs(model, shards), others, progress, device_type)
        weights = self.weigh(X)
        pairs = thin_labels(Y, self.seed, progress) if self.regularizer == "glas" else Y
        rows = weigh_rows(X, weights, self.normalize)
        task = self.prepare(rows, Y, pairs, device_type, sharing)
        plan = self.make_config(
            self.choose_epochs(X.shape[0]),
            batch_size,
            averaging="mean" if self.averaging else None,
        )
        self.train_task(task, plan, X, Y, progress)
        net = task.join().requires_grad_(False)
        self.embedder_ = net.export(weights).without_rare(X, beside_others=self.only_scores)
        labels = net.all_labels().cpu().numpy()
        self.scale_, self.bias_ = float(net.scale), float(net.bias)
        if self.only_scores and labels.size <= LARGEST_UNPREPARED:
            self.index_ = build_index(labels, method="exact")
        else:
            self._build_search(labels, X, device_type, progress)

    def prepare_search(self, X: sp.csr_matrix, progress: Progress) -> None:
        """Let a search look at some of the labels, or at some of their dimensions first."""
        if not self.has_search:
            on_gpu = self.device != "cpu" and gpu_is_there()
            self._build_search(self.index_.vectors, X, "cuda" if on_gpu else "cpu", progress)

    @property
    def has_search(self) -> bool:
        """Whether a search need not look at all of so many labels in full."""
        return not self.index_.exact or not worth_searching(len(self.index_), self.dim)

    def _build_search(
        self, labels: Floats, X: sp.csr_matrix, device_type: str, progress: Progress
    ) -> None:
        """Build the index of the labels, by some documents of X."""
        examples = np.random.default_rng(self.seed).permutation(X.shape[0])[:N_EXAMPLES]
        queries = embed_rows(self.embedder_, view_rows(X[np.sort(examples)]), self.normalize)
        self.index_ = build_label_index(
            labels, queries, seed=self.seed, device=device_type, progress=progress
        ).to("cpu")  # which frees the GPU's memory until many documents are predicted

    def prepare(
        self,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        pairs: sp.csr_matrix,
        device_type: str,
        sharing: "Processes | None" = None,
    ) -> "GLaSTask":
        """Return what the trainer needs; some documents are held out if `valid` says so."""
        import torch

        from longtail.models.glas.network import GLaSNetwork, GLaSTask
        from longtail.training.split import own_rows

        held_out = None
        if self.valid:
            kept, held = hold_out(X.shape[0], self.valid, self.seed)
            held_out = (X[held], Y[held]) if len(held) else None
            X, Y, pairs = X[kept], Y[kept], pairs[kept]
        n_labels = Y.shape[1]
        gpus = [torch.cuda.current_device()] if device_type == "cuda" else []
        with torch.random.fork_rng(devices=gpus), torch.device(device_type):
            torch.manual_seed(self.seed)
            share = Y.nnz / (Y.shape[0] * n_labels)
            sizes = X.shape[1], n_labels, self.dim
            embedding, own = self._map(X.shape[1]), own_rows(sharing)
            network = GLaSNetwork(*sizes, embedding, share, lazy=self.lazy, own=own)
        sampled = self._n_sampled(n_labels, device_type)
        return GLaSTask(self, network, X, Y, pairs, held_out, sampled, device_type, sharing)

    def choose_epochs(self, n_documents: int) -> int:
        """Return how many passes were about the best on held-out documents of sets of that size."""
        return self.epochs or int(np.clip(round(2 + 75_000 / n_documents), 3, 8))

    def choose_batch(self, n_documents: int) -> int:
        """Return how many documents a step takes, so that an epoch has enough steps."""
        size = super().choose_batch(n_documents)
        if self.epoch_steps is None:
            return size
        return min(size, max(LEAST_BATCH, -(-n_documents // self.epoch_steps)))

    def _map(self, n_features: int) -> Embedding:
        """Return which embedding map suits so many features."""
        return self.embedding or ("relu" if n_features <= FEW_FEATURES else "residual")

    def _n_sampled(self, n_labels: int, device_type: str) -> int | None:
        """Return how many labels to sample for a batch, None if it scores all."""
        if self.sampled is None:
            return SAMPLED if n_labels > ALL_LABELS[device_type] else None
        return self.sampled or None

    def needs_of(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str, shards: int = 1
    ) -> Needs:
        """Return what it takes to count pairs of labels, to train, and to prepare the search.

        `shards` is among how many processes the labels are split.
        """
        from longtail.training.losses import PIECE

        (n, n_features), n_labels = X.shape, Y.shape[1]
        batch_size = self.choose_batch(n)
        n_cells = count_cells(X, batch_size)
        second = 0 if self._map(n_features) == "linear" else self.dim**2
        sampled = self._n_sampled(n_labels, device_type)
        block = self.regularized or 0
        n_scored = n_labels if sampled is None else min(n_labels, sampled + batch_size + block)
        n_scored, n_held = -(-n_scored // shards), -(-n_labels // shards)
        n_scores = batch_size * n_scored
        if sampled is None and self.loss in ("bce", "softmax"):
            n_scores = min(n_scores, max(PIECE[device_type], n_held))
        layers, labels = 4 * (n_features * self.dim + second), 4 * n_labels * self.dim
        held = 4 * n_held * self.dim  # by one process
        n_pairs = self._count_pairs(Y)
        table = 2 * n_labels**2 if n_pairs and self.has_table(n_labels, device_type) else 0
        rows = weighed_bytes(X)
        train = train_stage(
            device_type,
            parameters=layers + held,
            gradients=self._gradient_bytes(n_cells, n_features, n_scored, n_held) + 4 * second,
            **self.remembered(
                4 * n_features * self.dim + held, 4 * second + 2 * n_features, device_type
            ),
            activations=4 * (6 * batch_size * self.dim + 5 * n_scored * self.dim + 3 * n_scores)
            + batch_bytes(n_cells, n_features)
            + 16 * block**2
            + table,
            averages=layers + held if self.averaging else 0,
            best=layers + held if self.valid else 0,
            held=rows + 8 * n_pairs,
        )
        counting = {"parameters": layers + held, "pairs of labels": 16 * n_pairs, "rows": rows}
        index = label_index_bytes(n_labels, self.dim, min(n, N_EXAMPLES))
        search = {
            "network": 2 * layers,
            "labels": 2 * labels,
            "index": index,
            "rows": rows + 8 * n_pairs,
        }
        return Stage(counting), train, Stage(search)

    def _gradient_bytes(self, n_cells: int, n_features: int, n_scored: int, n_labels: int) -> int:
        """Return what the gradients of both ends take; dense ones also pass through a square."""
        if self.lazy:
            return 4 * (min(n_cells, n_features) + n_scored) * self.dim
        return 4 * (3 * n_features + n_labels) * self.dim

    def _count_pairs(self, Y: sp.csr_matrix) -> int:
        """Return about how many pairs of labels go together, as far as these are counted."""
        if self.regularizer != "glas":
            return 0
        thinned = thin_labels(Y, self.seed, SILENT)
        return estimate_product(thinned, thinned)

    def has_table(self, n_labels: int, device_type: str) -> bool:
        """Whether a GPU holds the similarities of all labels; otherwise they come by batch."""
        return device_type == "cuda" and n_labels <= LARGEST_TABLE

    def read_rows(self, X: sp.csr_matrix) -> Floats:
        """Embed the documents."""
        return embed_rows(self.embedder_, view_rows(X), self.normalize)

    def predict_rows(self, X: Floats, k: int) -> TopK:
        """Search the labels with the largest inner products."""
        if self.device != "cpu":
            self.index_.for_batch(len(X))
        labels, products = self.index_.search(X, k)
        return TopK(labels, self._as_probabilities(products))

    def score_rows(self, X: Floats, candidates: NDArray[np.int32]) -> Floats:
        """Multiply with the candidates alone, also with those that no search would find."""
        scores = self._as_probabilities(self.index_.score(X, candidates))
        return np.where(candidates >= 0, scores, np.float32(0))

    def _as_probabilities(self, products: Floats) -> Floats:
        margins = products.astype(np.float64) * self.scale_ + self.bias_
        with np.errstate(over="ignore"):  # 1 / (1 + inf) is 0
            return (1 / (1 + np.exp(-margins))).astype(np.float32)

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Place new labels by the embeddings of their documents; other labels stay.

        A new vector is shorter than 1 if it would otherwise score higher for its own documents than
        labels that were known do for theirs: it has been made of these very documents.
        """
        before, documents = self.training_counts_, self.read_rows(X)
        new = find_new_labels(before, Y)
        vectors = find_directions(documents, Y, new)
        usual = mean_of_known(documents, Y, before, self.index_.vectors)
        if usual is not None:
            own = mean_products(documents, Y[:, new], vectors)
            vectors *= np.clip(usual / np.maximum(own, 1e-6), 0, 1).astype(np.float32)[:, None]
        apart = -documents.mean(axis=0)  # where nothing is found that looks like these documents
        self.index_ = put_labels(self.index_, new, vectors, Y.shape[1], apart)

    def add_to_files(self, files: Files) -> None:
        """Add the embedding map, the labels' index, scale and bias."""
        self.embedder_.add_to_files(files)
        self.index_.add_to_files(files, "labels")
        files.config["scale"], files.config["bias"] = self.scale_, self.bias_

    def describe(self, files: Files) -> Schema:
        """Return the schema of the embedding map, the labels' index, scale and bias."""
        numbers = Schema(config={"scale": number(), "bias": number()})
        index = describe_index(files, "labels", "n_labels", "dim")
        return numbers | Embedder.describe(files) | index

    def restore(self, files: Files) -> None:
        """Take back what was saved."""
        self.embedder_ = Embedder.from_files(files)
        self.index_ = open_index(files, "labels")
        self.scale_, self.bias_ = files.config["scale"], files.config["bias"]
