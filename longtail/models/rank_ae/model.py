"""Rank-AE: documents and label sets in one latent space, from which labels are ranked.

Wang et al., "Ranking-Based Autoencoder for Extreme Multi-label Classification", NAACL 2019. An
autoencoder maps a document's label set to a latent vector and back; a network with attention maps
its words to the same vector. To predict, the words' vector is decoded. The decoder learns to rank:
every label only meets the hardest label of the other side, which costs O(L).

The symbols of the paper are listed in `network.py`, beside its equations.

Departures that `preset=paper` sets back: y' are plain scores, not probabilities (`output`). The
second layer of E and the first of D have a residual connection (`residual`), and both ends begin
with the same label vectors (`start`): otherwise, when documents have many labels, the ranking loss
stays where all scores are equal at all but a few settings. x' has length 1, so that long documents
count as much as short ones (`pooling`). Input dropout (`keep`) and dropout of hidden values are not
in the paper. Words are weighted by how rare they are (`idf`), and rows have length 1 (`normalize`).

Departures that it leaves: dense rows are scaled by each column's spread. With very many labels, L_P
and L_N look at those of the batch and some random ones (`sampled`; 0 takes all); L_P is then a sum
over fewer labels and is not scaled up, so that L_N and L_h weigh more beside it than in the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import DataError, ParameterError
from longtail.evaluation.explanation import Explanation, explain_terms
from longtail.models.cost import Facts, estimate_by_document
from longtail.models.neural import (
    NeuralRows,
    batch_bytes,
    choose_batch_size,
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
from longtail.models.rank_ae.reader import (
    LEAST_SPREAD,
    Options,
    Reader,
    describe_reader,
    factor_words,
    fit_score_curve,
    read_rows,
    weigh_words,
)
from longtail.models.rank_ae.sequence import (
    BiLSTM,
    cut_texts,
    describe_bilstm,
    explain_words,
    read_texts,
)
from longtail.progress import Progress
from longtail.runtime.memory import Needs, Stage, train_stage
from longtail.runtime.rows import hold_out, view_rows, weigh_rows
from longtail.runtime.schema import ListOf, Schema, Value, number
from longtail.runtime.settings import above, at_least, between, configurable, learned, setting
from longtail.runtime.store import Files
from longtail.search.index import Index, build_index, index_bytes
from longtail.text.tfidf import Tfidf
from longtail.text.tokens import TokenRows
from longtail.text.word_vectors import read_term_vectors
from longtail.topk import TopK

if TYPE_CHECKING:
    from longtail.models.rank_ae.network import RankAETask

ALL_LABELS = {"cpu": 50_000, "cuda": 500_000}  # up to so many, every batch scores all labels
MOST_SAMPLED = 10_000_000
SAMPLED = 4096  # beyond, so many labels at random join those of the batch
WORD_DIM = 256  # where no vectors say otherwise
CURVE_DOCUMENTS, CURVE_LABELS = 2000, 100  # from which scores become shares
LSTM_WORK = 5  # how much longer an LSTM takes for a text than a sum over its words, about
KEPT_STATES = 24  # numbers for each channel of a word that the LSTM reads, with gradients
DENSE = 0.5  # rows with this share of filled cells are no bags of words


@configurable
class RankAE(NeuralRows):
    """An autoencoder of label sets whose latent vectors are found from the words, by attention."""

    name: ClassVar[str] = "rank-ae"
    summary: ClassVar[str] = "autoencoder of label sets with word attention, trained by ranking"
    choose_when: ClassVar[str] = "rows are dense, or words must be explained"
    can_explain: ClassVar[bool] = True
    can_update: ClassVar[bool] = True
    trains_on: ClassVar[bool] = False
    member_order: ClassVar[int | None] = 8
    member_reason: ClassVar[str] = "is trained to rank, and errs in other places"
    milliseconds: ClassVar[float] = 0.6
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fast": {"dim": 128, "word_dim": 128, "epochs": 6},
        "paper": {
            "dim": 100,
            "word_dim": 100,
            "reduction": 4,
            "residual": False,
            "start": "random",
            "output": "sigmoid",
            "pooling": "mean",
            "spread": None,
            "idf": False,
            "normalize": False,
            "keep": 1.0,
            "dropout": 0.0,
            # On these the paper is silent, or tunes them; so did we, on held-out documents.
            "margin": 0.05,
            "learning_rate": 0.001,
            "batch_size": 256,
            "epochs": 100,
        },
    }

    dim: int = setting(256, "length of the latent vectors (the paper's h)", at_least(1))
    word_dim: int | None = setting(
        None, "length of the word vectors (C); none takes that of `vectors`, else 256", at_least(1)
    )
    reduction: int = setting(
        4, "how much narrower the excitation network is than the word vectors (r)", at_least(1)
    )
    reader: Literal["bag", "bilstm"] = setting(
        "bag",
        "what comes before the channel attention: word vectors times tf-idf, or a bidirectional "
        "LSTM that reads texts word by word, as in the paper's figure 5",
    )
    max_length: int = setting(500, "how many words of a text the LSTM reads", at_least(1))
    attention: bool = setting(
        True,
        "weigh the channels of each word by the excitation network; false is the paper's "
        "ablation without channel attention",
    )
    gain: float = setting(
        1.0,
        "how large the excitation network begins; attention leaves one half the sooner, the larger",
        above(0),
    )
    pooling: Literal["unit", "mean"] = setting(
        "unit",
        "what a document's words become: their mean scaled to length 1, or the mean as it is, as "
        "in the paper",
    )
    start: Literal["same", "random"] = setting(
        "same",
        "how the autoencoder begins: with the same label vectors at both ends and layers that "
        "pass them on, or at random, as in the paper",
    )
    residual: bool = setting(
        True, "lead a direct way past the autoencoder's inner layers; the paper has none"
    )
    output: Literal["linear", "sigmoid"] = setting(
        "linear",
        "what the ranking loss compares: the decoder's scores, or their sigmoids, as in the paper",
    )
    loss: Literal["ranking", "bce"] = setting(
        "ranking",
        "how labels are learned from their latent vector; bce is the ablation of the ranking loss",
    )
    margin: float = setting(
        1.0,
        "by how much a relevant label must be ahead of others (m), for sigmoids from 0 to 1",
        at_least(0),
    )
    balance: float = setting(0.03, "weight of the reconstruction of labels (λ)", above(0))
    sampled: int | None = setting(
        None,
        "how many random labels join those of the batch in the loss; 0 takes all labels, none "
        "does so where they fit",
        between(0, MOST_SAMPLED),
    )
    vectors: str | None = setting(
        None,
        "a GloVe or word2vec text file that word vectors begin with, for texts and for rows with "
        "a feature_names.txt beside them",
    )
    spread: float | None = setting(
        0.01,
        "size of the first word vectors, also of those from `vectors`: the root of their mean "
        "square; none leaves given ones as they are and takes 0.1 without any",
        above(0),
    )
    input: Literal["auto", "words", "dense"] = setting(
        "auto",
        "what rows hold: words, never negative, or dense features, of which every document has a "
        "value; auto says dense where at least half of the cells are filled",
    )
    keep: float = 0.8
    dropout: float = 0.3
    epochs: int = 10
    learning_rate: float = 0.005

    reader_: Reader = learned()
    index_: Index = learned()
    dense_: bool = learned()
    bilstm_: BiLSTM | None = learned(default=None)
    _given: Dataset | None = learned(default=None)  # what it is trained on, meanwhile
    curve_: tuple[float, float] = learned()

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        super().check_parameters()
        in_range = self.output == "linear" or self.loss == "bce" or self.margin <= 1
        self.require("margin", in_range, "from 0 to 1 with output=sigmoid")

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Measured on four data sets."""
        return estimate_by_document(facts, cpu=(20, 4.6), cuda=(18, 0.08))

    def work(self, facts: Facts) -> float:
        """Every epoch passes over all words and labels, along all dimensions."""
        steps = LSTM_WORK if self.reader == "bilstm" else 1
        return steps * self.epochs * (self.dim + (self.word_dim or WORD_DIM))

    # -- learning -----------------------------------------------------------------------------

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Learn as other models of rows do, from columns with names or from words in order."""
        self._given = dataset
        try:
            super().fit_documents(dataset, progress)
        finally:
            self._given = None

    def learn_features(
        self, dataset: Dataset, progress: Progress
    ) -> tuple[Tfidf | None, sp.csr_matrix]:
        """Return rows as other models do; an LSTM reads words alone, and texts only."""
        if self.reader == "bag":
            return super().learn_features(dataset, progress)
        if dataset.texts is None:
            raise DataError(
                "reader=bilstm reads texts word by word, and these are feature rows; "
                "train on texts, or leave reader out"
            )
        given, self.tfidf = self.tfidf, replace(self.tfidf or Tfidf(), ngrams=1, beginnings=0.0)
        try:
            return super().learn_features(dataset, progress)
        finally:
            self.tfidf = given

    def fit_features(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, features: Tfidf | None, progress: Progress
    ) -> None:
        """Learn from rows whose columns are words with names, or not."""
        require_torch("Rank-AE")
        given = None
        if self.vectors is not None:
            names = self._name_features(features)
            if names is None:
                raise ParameterError(
                    "the 'vectors' parameter of RankAE needs words, and these rows have none; "
                    "put a feature_names.txt beside the data, train on texts, or leave vectors out"
                )
            given = read_term_vectors(self.vectors, names, self.word_dim, progress)
        texts = None
        if self.reader == "bilstm" and features is not None and self._given is not None:
            texts = cut_texts(features, list(self._given.texts or ()), self.max_length)
        self._learn(X, texts, Y, given, progress)

    def _name_features(self, features: Tfidf | None) -> Sequence[str] | None:
        if features is not None:
            return features.feature_names_
        return None if self._given is None else self._given.feature_names

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Learn from feature rows."""
        self.fit_features(X, Y, None, progress)

    def _learn(
        self,
        X: sp.csr_matrix,
        texts: TokenRows | None,
        Y: sp.csr_matrix,
        vectors: NDArray[np.float32] | None,
        progress: Progress,
    ) -> None:
        """Train the network, then prepare it for single documents and the labels for search."""
        from longtail.training.processes import choose_device

        dense = self._is_dense(X)
        device_type = choose_device(self.device).type
        batch_size = self.batch_size or choose_batch_size(X.shape[0])
        word_dim = self.word_dim or WORD_DIM if vectors is None else vectors.shape[1]
        others: Sequence[dict[str, Any]] = (
            {"word_dim": 64},
            {"sampled": SAMPLED},
            {"word_dim": 64, "dim": 64, "sampled": SAMPLED},
        )
        self.say_memory(
            lambda m: m.needs_of(X, Y, device_type, m.word_dim or word_dim, texts),
            others,
            progress,
            device_type,
        )
        weights = self._weigh(X, dense)
        rows = weigh_rows(X, weights, self.normalize)
        task = self._prepare(rows, Y, vectors, word_dim, device_type, texts)
        plan = self.make_config(self.epochs, batch_size)
        self.train_task(task, plan, X, Y, progress)
        net = task.net.cpu().requires_grad_(False)
        labels = np.hstack([net.labels.numpy(), net.bias.numpy()[:, None]])
        self.index_ = build_index(labels, seed=self.seed)
        self.reader_, self.dense_ = net.export(weights).without_rare(X), dense
        self.bilstm_ = net.export_bilstm()
        self.curve_ = self._fit_curve(X if texts is None else texts, Y)

    def _fit_curve(self, X: sp.csr_matrix | TokenRows, Y: sp.csr_matrix) -> tuple[float, float]:
        """Find the curve from the decoder's scores to shares, on documents that have labels."""
        rows = np.flatnonzero(np.diff(Y.indptr))
        chosen = np.random.default_rng(self.seed).permutation(rows)[:CURVE_DOCUMENTS]
        decoded = self._decode(_take(X, chosen))
        labels, scores = self.index_.search(decoded, min(CURVE_LABELS, Y.shape[1]))
        relevant = np.array([np.isin(labels[i], Y[row].indices) for i, row in enumerate(chosen)])
        return fit_score_curve(scores.ravel(), relevant.ravel())

    def _is_dense(self, X: sp.csr_matrix) -> bool:
        """Decide what the rows hold, and refuse words that weigh less than nothing."""
        if self.input != "auto":
            dense = self.input == "dense"
        else:
            dense = X.nnz >= DENSE * X.shape[0] * X.shape[1]
        if not dense:
            _refuse_negative(X, "set input=dense if the rows are no words")
        return dense

    def _weigh(self, X: sp.csr_matrix, dense: bool) -> NDArray[np.float32]:
        """Return what each feature's values are multiplied by."""
        if dense:
            return _scale_columns(X)
        return self.weigh(X)

    def _prepare(
        self,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        vectors: NDArray[np.float32] | None,
        word_dim: int,
        device_type: str,
        texts: TokenRows | None = None,
    ) -> "RankAETask":
        """Return what the trainer needs; some documents are held out if `valid` says so."""
        import torch

        from longtail.models.rank_ae.bilstm import SequenceNetwork
        from longtail.models.rank_ae.network import RankAENetwork, RankAETask

        sizes = (X.shape[1], Y.shape[1], word_dim)
        signed = bool(X.nnz) and bool(X.data.min() < 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if texts is None:
                net = RankAENetwork(self, *sizes, signed=signed)
            else:
                net = SequenceNetwork(self, *sizes)
        if vectors is not None:
            net.begin_with(vectors)
        documents, held_out = X if texts is None else texts, None
        if self.valid:
            kept, held = hold_out(X.shape[0], self.valid, self.seed)
            held_out = (_take(documents, held), Y[held])
            documents, Y = _take(documents, kept), Y[kept]
        n_sampled = self._n_sampled(Y.shape[1], device_type)
        return RankAETask(self, net, documents, Y, held_out, n_sampled)

    def _n_sampled(self, n_labels: int, device_type: str) -> int | None:
        """Return how many labels to sample for a batch, None if it scores all."""
        if self.sampled is None:
            return SAMPLED if n_labels > ALL_LABELS[device_type] else None
        return self.sampled or None

    def needs_of(
        self,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        device_type: str,
        word_dim: int | None = None,
        texts: TokenRows | None = None,
    ) -> Needs:
        """Return what it takes to train, and to prepare the search; word vectors may be given."""
        from longtail.training.losses import PIECE

        (n, n_features), n_labels = X.shape, Y.shape[1]
        C, h = word_dim or self.word_dim or WORD_DIM, self.dim
        batch_size = self.batch_size or choose_batch_size(n)
        n_cells, n_pairs = count_cells(X, batch_size), count_cells(Y, batch_size)
        layers = C * (C // 2 + h) + 2 * h**2
        n_states = 0
        if self.reader == "bilstm":
            layers += 4 * C * (C + C // 2 + 1)
            longest = self.max_length if texts is None else int(texts.lengths.max(initial=1))
            n_states = KEPT_STATES * batch_size * longest * C
        sampled = self._n_sampled(n_labels, device_type)
        n_scored, n_tables = n_labels, 10 if self.output == "sigmoid" else 6
        n_scores = min(batch_size * n_labels, max(n_labels, PIECE[device_type] // 4))
        if sampled is not None:  # then the gradient needs what the loss was computed from
            n_scored, n_tables = min(n_labels, sampled + n_pairs), n_tables + 8
            n_scores = batch_size * n_scored
        words, labels = 4 * n_features * C, 4 * n_labels * h
        parameters = words + 2 * labels + 4 * layers
        tables = words + (labels if sampled is None else 2 * labels)  # moved by row
        counts = 2 * (n_features + n_labels)  # of steps, half of their bytes
        touched = min(n_cells, n_features) * C + min(n_pairs, n_labels) * h
        scored = n_tables * n_scores + 2 * n_scored * h
        rows = weighed_bytes(X)
        train = train_stage(
            device_type,
            parameters=parameters,
            gradients=4 * (touched + n_scored * h + layers),
            **self.remembered(tables, parameters - tables + counts, device_type),
            activations=4 * (n_states + 7 * n_cells * C + 8 * batch_size * (C + h) + scored)
            + batch_bytes(n_cells, n_features)
            + batch_bytes(n_pairs, n_labels),
            best=parameters if self.valid else 0,
            held=rows if texts is None else rows + texts.tokens.nbytes,
        )
        index = index_bytes(n_labels, h + 1)
        search = {"network": parameters, "labels": 2 * labels, "index": index, "rows": rows}
        return train, Stage(search)

    # -- predicting -----------------------------------------------------------------------------

    @property
    def _options(self) -> Options:
        return Options(
            attention=self.attention,
            residual=self.residual,
            normalize=self.normalize,
            unit_pool=self.pooling == "unit",
        )

    def read_rows(self, X: sp.csr_matrix) -> NDArray[np.float32]:
        """Read the words, and decode them up to the last layer."""
        if not self.dense_:
            _refuse_negative(X, "this model was trained on words")
        return self._decode(X)

    def predict_rows(self, X: NDArray[np.float32], k: int) -> TopK:
        """Search the labels that the decoder scores highest."""
        labels, scores = self.index_.search(X, k)
        return TopK(labels, self._as_shares(scores))

    def score_rows(
        self, X: NDArray[np.float32], candidates: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return the decoder's output for the candidates alone."""
        shares = self._as_shares(self.index_.score(X, candidates))
        return np.where(candidates >= 0, shares, np.float32(0))

    def _as_shares(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the share of labels with such scores that are relevant."""
        slope, shift = self.curve_
        margins = np.clip(slope * scores.astype(np.float64) + shift, -700, 700)
        with np.errstate(over="ignore"):  # 1 / (1 + inf) is 0
            return (1 / (1 + np.exp(-margins))).astype(np.float32)

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Rank labels for rows, or for texts if an LSTM reads them."""
        texts = self._cut(documents)
        if texts is None:
            return super().predict_documents(documents, k)
        labels, shares = self.frequent_labels(k)
        n = texts.n_documents
        top = TopK(np.tile(labels, (n, 1)), np.tile(shares, (n, 1)))
        known = np.flatnonzero(texts.lengths)
        if len(known):
            found = self.predict_rows(self._decode(texts.take(known)), k)
            top.labels[known], top.scores[known] = found.labels, found.scores
        return top

    def score_documents(
        self, documents: list[str] | sp.csr_matrix, candidates: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Score candidates for rows, or for texts if an LSTM reads them."""
        texts = self._cut(documents)
        if texts is None:
            return super().score_documents(documents, candidates)
        scores = self.share_of(candidates)
        known = np.flatnonzero(texts.lengths)
        if len(known):
            decoded = self._decode(texts.take(known))
            scores[known] = self.score_rows(decoded, candidates[known])
        return scores

    def _cut(self, documents: list[str] | sp.csr_matrix) -> TokenRows | None:
        """Return the words of texts in their order, if an LSTM reads them."""
        if self.features_ is None or self.bilstm_ is None or not isinstance(documents, list):
            return None
        return cut_texts(self.features_, documents, self.max_length)

    def _decode(self, X: sp.csr_matrix | TokenRows) -> NDArray[np.float32]:
        """Return what the decoder's last layer is multiplied with."""
        if isinstance(X, TokenRows):
            if self.bilstm_ is None:
                raise RuntimeError("there is no LSTM to read words in their order")
            return read_texts(self.reader_, self.bilstm_, X, self._options)
        return read_rows(self.reader_, view_rows(X), self._options)

    # -- updating -------------------------------------------------------------------------------

    def update_documents(
        self, dataset: Dataset, X: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Place new labels by what the decoder makes of their documents; other labels stay."""
        texts = None if dataset.texts is None else self._cut(list(dataset.texts))
        decoded, Y = self._decode(X if texts is None else texts), dataset.Y
        new = find_new_labels(self.training_counts_, Y)
        known = np.flatnonzero(self.training_counts_.label_counts)
        old = self.index_.take(known)
        usual = np.linalg.norm(old[:, :-1], axis=1).mean()
        weights = usual * find_directions(decoded[:, :-1], Y, new)
        # A label scores for its own documents what known ones score for theirs.
        wanted = mean_of_known(decoded, Y, self.training_counts_, self.index_.vectors)
        if wanted is None:
            wanted = float(old[:, -1].mean() + usual)
        bias = wanted - mean_products(decoded[:, :-1], Y[:, new], weights)
        found = np.hstack([weights, bias[:, None]]).astype(np.float32)
        lowest = np.append(np.zeros(self.index_.dim - 1, np.float32), _find_lowest(decoded, old))
        self.index_ = put_labels(self.index_, new, found, Y.shape[1], lowest)

    # -- explaining -----------------------------------------------------------------------------

    def explain_row(self, X: sp.csr_matrix, label: int | None) -> NDArray[np.float32]:
        """Return how much is left of each word's vector, or what it adds to a label's score."""
        vector = None if label is None else self._vector_of(label)
        return weigh_words(self.reader_, view_rows(X), self._options, vector)

    def _vector_of(self, label: int) -> NDArray[np.float32]:
        """Return the decoder's weights (h,) for a label."""
        return self.index_.take(np.array([label]))[0, :-1]

    def explain_parts(self, X: sp.csr_matrix) -> Mapping[str, NDArray[np.float32]]:
        """Return the factors of what is left of each word: its weight, its vector, attention."""
        value, vector, attention = factor_words(self.reader_, view_rows(X), self._options)
        parts = {"value" if self.features_ is None else "tf-idf": value, "vector": vector}
        return {**parts, "attention": attention} if self.attention else parts

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Say which words weigh how much; of an LSTM, where the channel attention is high.

        Args:
            document: a text, or one feature row for a model of rows.
            label: the name of a label; None asks what the model looks at whatever the label.
        """
        self._check_fitted()
        if self.bilstm_ is None or self.features_ is None:
            return super().explain(document, label)
        documents = self.check_documents([document] if isinstance(document, str) else document)
        if not isinstance(documents, list) or len(documents) != 1:
            raise DataError("one document can be explained at a time: give one text")
        (text,) = documents
        vector = None if label is None else self._vector_of(self._find_label(label))
        places = sorted(
            (span, term) for term, spans in self.features_.locate(text).items() for span in spans
        )[: self.max_length]
        words = np.array([term for _, term in places], np.int32)
        attention, weights = explain_words(self.reader_, self.bilstm_, words, self._options, vector)
        columns, place = np.unique(words, return_inverse=True)
        counts = np.bincount(place, minlength=len(columns))
        total = np.bincount(place, weights, minlength=len(columns)).astype(np.float64)
        mean = np.bincount(place, attention, minlength=len(columns)) / counts
        parts = {"attention": mean} if self.attention else {}
        return explain_terms(text, label, self.features_, columns, total, parts)

    # -- saving ---------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the reader and the labels' index."""
        self.reader_.add_to_files(files)
        if self.bilstm_ is not None:
            self.bilstm_.add_to_files(files)
        self.index_.add_to_files(files, "labels")
        files.config["dense"], files.config["curve"] = self.dense_, list(self.curve_)

    def describe(self, files: Files) -> Schema:
        """Return the schema of the reader and the labels' index."""
        curve = ListOf(number(), 2, 2)
        index = Index.describe(files, "labels", "n_labels", "h+1")
        own = Schema(config={"dense": Value(bool), "curve": curve}) | index
        if self.reader == "bag":
            return own | describe_reader("C")
        return own | describe_reader("word_dim") | describe_bilstm()

    def restore(self, files: Files) -> None:
        """Take back what was saved."""
        self.reader_ = Reader.from_files(files)
        is_sequential = self.reader == "bilstm"
        self.bilstm_ = BiLSTM.from_files(files, self.reader_) if is_sequential else None
        self.index_ = Index.from_files(files, "labels")
        self.dense_ = files.config["dense"]
        slope, shift = files.config["curve"]
        self.curve_ = slope, shift


def _take(documents: sp.csr_matrix | TokenRows, rows: NDArray[np.int64]) -> Any:
    return documents.take(rows) if isinstance(documents, TokenRows) else documents[rows]


def _find_lowest(decoded: NDArray[np.float32], labels: NDArray[np.float32]) -> np.float32:
    """Return the score that documents give the least likely of the labels, on average."""
    return np.float32((labels @ decoded.mean(axis=0)).min())


def _refuse_negative(X: sp.csr_matrix, advice: str) -> None:
    """Raise DataError for the first negative value, which no count and no tf-idf weight is."""
    if X.nnz and X.data.min() < 0:
        first = int(np.flatnonzero(X.data < 0)[0])
        row = int(np.searchsorted(X.indptr, first, side="right")) - 1
        raise DataError(
            f"X holds {X.data[first]:g} in row {row}, column {X.indices[first]}; counts and "
            f"weights of words are never negative ({advice})"
        )


def _scale_columns(X: sp.csr_matrix) -> NDArray[np.float32]:
    """Return 1 over each column's spread, so that all columns speak equally loud."""
    n = X.shape[0]
    mean = np.bincount(X.indices, X.data, minlength=X.shape[1]) / n
    square = np.bincount(X.indices, X.data.astype(np.float64) ** 2, minlength=X.shape[1]) / n
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    return np.where(
        spread > 1e-6 * np.sqrt(square), 1 / np.maximum(spread, LEAST_SPREAD), 1
    ).astype(np.float32)
