"""AttentionXML: every label looks at the words of a text that matter to it.

You et al., "AttentionXML: Label Tree-based Attention-Aware Deep Model for High-Performance Extreme
Multi-Label Text Classification", NeurIPS 2019. A text is read in its order by a bidirectional
LSTM; each label weighs the words by itself, and a head that all labels share turns what it has seen
into a score. Many labels are arranged in a shallow and wide tree: a network for each level decides
among the children of the nodes that the level above has chosen.

The symbols of the paper are listed in `network.py`, beside its equations.

Departures: the first layer is applied before the attention's average and not behind it, which is
the same sum and far cheaper, and m_j·w_j is added to a label's score (see `network.py`).
Without a file of word vectors, training begins with vectors from the co-occurrence of words in the
training texts. Where a document has fewer candidates, the rest is left out and not filled up at
random. A label's score takes the nodes above it by a power below 1. In an ensemble the first 100
labels of each tree are compared. In large sets, words seen once are learned as unknown ones, so
that the unknown word has a vector. Of too many words, those of the most documents are known, where
the paper takes those that occur most often (`max_words`). Prediction needs torch, unlike that of
other models.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.data import Dataset
from longtail.errors import ParameterError
from longtail.evaluation.explanation import Explanation
from longtail.labels.pairs import thin_labels
from longtail.labels.tree import LabelTree
from longtail.models.attention_xml.explaining import as_terms, weigh_tokens, with_losses
from longtail.models.attention_xml.kept import KeptDocuments, find_known
from longtail.models.attention_xml.label_trees import build_trees, count_levels, tree_stage
from longtail.models.attention_xml.needs import LevelSize, level_stage, reading_bytes
from longtail.models.attention_xml.presets import PRESETS
from longtail.models.checks import check_one
from longtail.models.cost import DeviceType, Facts
from longtail.models.neural import (
    MOST_EPOCHS,
    SPLIT_HELP,
    Device,
    Neural,
    has_torch,
    require_torch,
)
from longtail.models.new_labels import find_new_labels
from longtail.progress import SILENT, Progress
from longtail.runtime.device import chosen_device
from longtail.runtime.mapped import is_mapped
from longtail.runtime.memory import Needs, Stage
from longtail.runtime.rows import hold_out
from longtail.runtime.schema import ListOf, Schema, Value
from longtail.runtime.settings import (
    Range,
    above,
    at_least,
    between,
    configurable,
    learned,
    setting,
    share,
)
from longtail.runtime.store import Files
from longtail.text.ppmi import estimate_bytes
from longtail.text.tfidf import Tfidf
from longtail.text.tokens import UNKNOWN, TokenRows, Tokens
from longtail.text.word_vectors import read_word_vectors
from longtail.topk import TopK

if TYPE_CHECKING:
    import torch

    from longtail.models.attention_xml.network import Shape
    from longtail.models.attention_xml.search import ProbabilisticLabelTree
    from longtail.training.processes import Processes

SIZES, LARGE_SIZES = (256, 200), (512, 300)  # hidden and word_dim, of some and of many documents
LARGE_FROM = 100_000  # documents
INNER_WORDS, LEAST_INNER_EPOCHS = 12_000_000, 3  # that a level above the labels reads
HEADS = {True: 64, False: 512}  # with and without attention
AVERAGING_START = 0.75  # of all steps: while training still rises, a mean lags behind it
WORD_TIMES = 2  # that a word stands in a text which has it, about
MANY_DOCUMENTS = 5_000  # from which words of a single document are taken as unknown
HEAD_SIZES = Range(
    "a size of at least 1, several as 512,256",
    lambda head: all(
        re.fullmatch(r" *[1-9][0-9]{0,5} *", size) is not None for size in str(head).split(",")
    ),
)
POWERS_OF_2 = Range("a power of 2, at least 2", lambda n: n >= 2 and n & (n - 1) == 0)
LARGEST_LAYER, DEEPEST, MOST_TREES = 1 << 20, 64, 1000  # of a saved network
EXPLAINED = 5  # labels whose attention is shown if none is asked for


@configurable
class AttentionXML(Neural):
    """A text's words in their order, weighed by each label for itself."""

    name: ClassVar[str] = "attention-xml"
    summary: ClassVar[str] = "reads texts word by word; each label looks at the words it needs"
    choose_when: ClassVar[str] = "documents are texts, and there is a GPU"
    can_explain: ClassVar[bool] = True
    can_update: ClassVar[bool] = True
    member_order: ClassVar[int | None] = 3
    member_reason: ClassVar[str] = "reads the words in their order"
    cheaper_presets: ClassVar[Sequence[str]] = ("small",)
    member_seeds: ClassVar[int] = 2
    milliseconds: ClassVar[float] = 4.0
    reads = ("texts",)
    makes_rows: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    encoder: Literal["bilstm", "cnn"] = setting(
        "bilstm", "what reads the words: a bidirectional LSTM, or convolutions"
    )
    hidden: int | None = setting(
        None,
        "units of the encoder, for each direction (the paper's N̂); none takes 256, and 512 from "
        "100,000 documents on",
        at_least(1),
    )
    head: int | str | None = setting(
        None,
        "units of the fully connected layers (N̂_fc), several as 512,256; none takes 64 for all "
        "labels to share, and 512 where, without attention, each weighs them for itself",
        HEAD_SIZES,
    )
    attention: bool = setting(
        True,
        "weigh words for each label; false takes the largest of each unit instead (the paper's "
        "ablation)",
    )
    pooling: int = setting(
        1,
        "without attention: how many parts of a text give their largest values (XML-CNN's dynamic "
        "max-pooling)",
        at_least(1),
    )
    direct: bool = setting(
        True, "add to a label's score how well it matches the words that it looks at"
    )
    levels: int | None = setting(
        None,
        "inner levels of the label tree (H); 0 is without a tree; none has as many as are needed "
        "to begin with `widest` nodes at most",
        at_least(0),
    )
    widest: int = setting(
        30_000,
        "how many nodes a network may score at once, those that a tree begins with",
        at_least(2),
    )
    branching: int = setting(64, "children of a node (K = M), a power of 2", POWERS_OF_2)
    candidates: int | None = setting(
        None,
        "how many nodes of a level are followed in training (C); none takes those of `compared` "
        "children, and more where documents have labels below many of them",
        at_least(1),
    )
    compared: int = setting(
        960,
        "how many children of nodes that are followed a document is compared with (C·K), about; "
        "that of the paper's widest tree",
        at_least(1),
    )
    beam: int | None = setting(
        None, "how many are followed in prediction; none takes as many as in training", at_least(1)
    )
    path_weight: float = setting(
        0.5,
        "exponent of the nodes above in the score of a label: 1 is the paper's product of all "
        "probabilities on its path, 0 the last one alone",
        between(0, 1),
    )
    warm_start: bool = setting(
        True, "begin each level with the weights of the one above, but for the labels'"
    )
    inherit_bias: bool = setting(
        True, "in a warm start, with its output bias, too; false begins it anew"
    )
    inner_epochs: int | None = setting(
        None,
        "passes over the documents for each level above the labels; none reads about 12 million "
        "words, in 3 passes at least and `epochs` at most",
        between(1, MOST_EPOCHS),
    )
    trees: int = setting(
        1, "how many trees, each with networks of its own, are averaged", between(1, 1000)
    )
    word_dim: int | None = setting(
        None,
        "length of the word vectors; none takes that of `vectors`, else 200, and 300 from 100,000 "
        "documents on",
        at_least(1),
    )
    vectors: str | None = setting(
        None, "a GloVe or word2vec text file that word vectors begin with"
    )
    pretrain: bool = setting(
        True,
        "without such a file, begin with vectors that the words' neighbours in the training texts "
        "give; false begins at random",
    )
    train_vectors: bool = setting(
        True, "learn word vectors, too; false leaves them as they are in `vectors`"
    )
    max_words: int = setting(
        500_000, "how many words to know, those of the most documents", at_least(1)
    )
    min_documents: int | None = setting(
        None,
        "know words that so many documents hold; none takes 1 for up to 5,000 documents, else 2",
        at_least(1),
    )
    max_length: int = setting(500, "how many words of a text to read", at_least(1))
    keep: float = setting(
        1.0,
        "share of the words that input dropout keeps; the others are read as unknown ones",
        above(0, at_most=1),
    )
    word_dropout: float = setting(
        0.4, "share of the word vectors' values that are dropped in training", share()
    )
    dropout: float = setting(
        0.5, "share of the encoder's outputs that are dropped in training", share()
    )
    epochs: int | None = setting(
        None,
        "passes over the documents, for each level; none makes 10 of many documents and up to 40 "
        "of few",
        between(1, MOST_EPOCHS),
    )
    batch_size: int | None = setting(
        None,
        "documents in a step; none makes about 128 steps of an epoch, but takes 512 at most",
        at_least(1),
    )
    learning_rate: float = 0.004
    validate_every: int | None = setting(
        None,
        "steps from one validation to the next (with valid only), which `patience` then counts; "
        "none validates after each epoch",
        at_least(1),
    )
    split_labels: bool | None = setting(None, SPLIT_HELP)
    clip: float = setting(5.0, "the largest norm of a step's gradients", above(0))
    averaging: bool = setting(True, "end with the mean of late weights (SWA)")
    device: Device = setting("auto", "where to train and, if there is such, to predict")
    tfidf: Tfidf | None = setting(
        None, "how texts become the rows that the label tree is built from"
    )

    followed_: int = learned()  # C
    kept_: KeptDocuments = learned()
    tokens_: Tokens = learned()
    trees_: Sequence["ProbabilisticLabelTree"] = learned()

    def check_parameters(self) -> None:
        """Raise ParameterError for the first parameter that is out of range."""
        super().check_parameters()
        known = self.train_vectors or self.pretrain or self.vectors is not None
        self.require("train_vectors", known, "true if there are no vectors to begin with")
        fits = self.pooling == 1 or not self.attention
        self.require("pooling", fits, "1 where labels have attention")

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Reading takes as long as a text is, of which its different words give an idea."""
        words = facts.n_values / facts.n_documents
        if facts.device == "cuda":
            return 10 + (0.18 + 0.006 * words) * facts.n_documents / 1000
        seconds = 10 + (0.3 + 0.017 * words) * facts.n_documents / 1000
        return 7 * seconds if preset == "small" else 100 * seconds

    def work(self, facts: Facts) -> float:
        """Every level of every tree has a network, which reads all texts in every epoch."""
        hidden, word_dim = self._choose_sizes(facts.n_documents)
        passes = self.trees * self.choose_epochs(facts.n_documents) + self.inner_passes(facts)
        return passes * hidden * (word_dim + 2 * hidden)

    def inner_passes(self, facts: Facts) -> int:
        """Every level above the labels reads all texts as often as `inner_epochs` says."""
        epochs = self.choose_epochs(facts.n_documents)
        inner = self.inner_epochs or _choose_inner_epochs(epochs, facts.n_values)
        return self.trees * self._n_levels(facts.n_labels) * inner

    # -- what depends on the number of documents ------------------------------------------------

    def choose_epochs(self, n_documents: int) -> int:
        """Return how many passes were about the best on held-out documents of sets of that size."""
        return self.epochs or int(np.clip(8 + 200_000 / n_documents, 10, 40))

    def choose_batch(self, n_documents: int) -> int:
        """Return what makes about 128 steps of an epoch, more of one with very many documents."""
        least = min(64, max(1, n_documents // 16))
        return self.batch_size or int(np.clip(16 * round(n_documents / 128 / 16), least, 512))

    def _choose_sizes(self, n_documents: int) -> tuple[int, int]:
        """Return `hidden` and `word_dim`."""
        hidden, word_dim = LARGE_SIZES if n_documents >= LARGE_FROM else SIZES
        return self.hidden or hidden, self.word_dim or word_dim

    def _choose_min_documents(self, n_documents: int) -> int:
        return self.min_documents or 1 + (n_documents > MANY_DOCUMENTS)

    def sized_for(self, n_documents: int, device: DeviceType) -> Self:
        """Return the same model with all that depends on the number of documents given."""
        hidden, word_dim = self._choose_sizes(n_documents)
        sized = super().sized_for(n_documents, device)
        return sized.with_parameters(
            hidden=hidden,
            word_dim=word_dim,
            min_documents=self._choose_min_documents(n_documents),
        )

    # -- learning -----------------------------------------------------------------------------

    def fit_documents(self, dataset: Dataset, progress: Progress) -> None:
        """Turn the texts into tokens, build the trees, and train their levels, top down."""
        require_torch("AttentionXML")
        from longtail.models.attention_xml.network import round_tables
        from longtail.models.attention_xml.training import (
            LevelDocuments,
            TreeTrainer,
            choose_width,
        )
        from longtail.training.processes import choose_device

        tokens = Tokens(
            max_words=self.max_words,
            min_documents=self._choose_min_documents(len(dataset)),
            max_length=self.max_length,
        )
        folder = None if self.run_dir is None else self.run_dir / "tokens"
        progress.stage("reading texts", 1)
        texts = dataset.texts or []
        rows = tokens.fit_encode(texts, folder)
        progress.advance(1)
        label_trees = self._build_trees(dataset, progress)
        hidden, word_dim = self._choose_sizes(len(dataset))
        vectors = self._read_vectors(tokens, progress)
        if vectors is not None:
            word_dim = vectors.shape[1]
        shape = self._shape(tokens.n_words_, word_dim, hidden, dataset.n_labels)
        device_type = choose_device(self.device).type
        batch_size = self.choose_batch(len(dataset))
        counts = (len(dataset), dataset.n_labels, tokens.n_words_, len(rows.tokens))
        on_gpu = device_type == "cuda"
        self.say_time(Facts(*counts, True, "cuda" if on_gpu else "cpu"), progress)
        self.followed_ = self.candidates or choose_width(
            dataset.Y, label_trees[0], self.branching, self.compared
        )
        if label_trees[0].depth > 1:
            progress.say(f"Candidates: {self.followed_} nodes of a level for each document")
        sharing = self._plan_memory(shape, label_trees, rows, batch_size, device_type, progress)
        if vectors is None and self.pretrain:
            vectors = self._learn_vectors(tokens, rows, word_dim, progress)
        config = self.make_config(
            self.choose_epochs(len(dataset)),
            batch_size,
            clip=self.clip,
            averaging="mean" if self.averaging else None,
            averaging_start=AVERAGING_START,
            validate_every=self.validate_every,
        )
        kept, held = hold_out(len(dataset), self.valid, self.seed)
        known, held_out = (LevelDocuments.of(rows, dataset.Y, part) for part in (kept, held))
        measured = held_out if len(held) else None
        inner = self.inner_epochs or _choose_inner_epochs(config.epochs, len(rows.tokens))
        trainer = TreeTrainer(
            self, config, inner, shape, self.followed_, vectors, known, measured, sharing
        )
        trees = [
            trainer.train_tree(number, tree, progress) for number, tree in enumerate(label_trees)
        ]
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        for net in (net for each in trees for net in each.levels):
            round_tables(net)
        self.tokens_, self.trees_, self.history_ = tokens, trees, trainer.history
        self.kept_ = KeptDocuments.of(rows, dataset.Y, self.seed)

    def _build_trees(self, dataset: Dataset, progress: Progress) -> list[LabelTree]:
        """Return the label trees of the ensemble; without inner levels they are all alike."""
        levels = self._n_levels(dataset.n_labels)
        if not levels:
            return [LabelTree.flat(dataset.n_labels)] * self.trees
        return build_trees(
            (self.tfidf or Tfidf()).copy().fit_transform(dataset.texts or []),
            thin_labels(dataset.Y, self.seed, progress),
            n_trees=self.trees,
            levels=levels,
            branching=self.branching,
            seed=self.seed,
            progress=progress,
        )

    def _n_levels(self, n_labels: int) -> int:
        """Return H: as given, or as many levels as so many labels need."""
        if self.levels is not None:
            return self.levels
        return count_levels(n_labels, self.branching, self.widest)

    def _read_vectors(self, tokens: Tokens, progress: Progress) -> NDArray[np.float32] | None:
        """Return the word vectors of the file to begin with, if there is one."""
        if self.vectors is None:
            return None
        rng = np.random.default_rng(self.seed)
        return read_word_vectors(
            self.vectors, tokens.words_, rng, dim=self.word_dim, progress=progress
        )

    def _learn_vectors(
        self, tokens: Tokens, rows: TokenRows, word_dim: int, progress: Progress
    ) -> NDArray[np.float32]:
        """Return the word vectors that the texts themselves give."""
        from longtail.models.attention_xml.network import WORD_SPREAD
        from longtail.text.ppmi import learn_word_vectors

        progress.stage("comparing words", 1)
        vectors = learn_word_vectors(rows, tokens.n_words_, word_dim, WORD_SPREAD, self.seed)
        progress.advance(1)
        return vectors

    def _shape(self, n_words: int, word_dim: int, hidden: int, n_nodes: int) -> "Shape":
        from longtail.models.attention_xml.network import Shape, parse_head

        return Shape(
            n_words=n_words,
            word_dim=word_dim,
            encoder=self.encoder,
            hidden=hidden,
            head=parse_head(self.head or HEADS[self.attention]),
            attention=self.attention,
            pooling=self.pooling,
            direct=self.direct,
            n_nodes=n_nodes,
        )

    def _plan_memory(
        self,
        shape: "Shape",
        trees: Sequence[LabelTree],
        tokens: TokenRows,
        batch_size: int,
        device_type: str,
        progress: Progress,
    ) -> "Processes | None":
        """Say what the largest level will take, or stop with what to change.

        Returns the processes to split the labels among, None if each holds all of them.
        """
        length = int(np.percentile(tokens.lengths, 99)) if tokens.n_documents else 1
        read = reading_bytes(len(tokens.tokens), shape.n_words, in_files=tokens.are_large)
        level = LevelSize(trees[0].n_labels, trees[0].sizes[1], trees[0].depth)
        begin: list[Stage] = []
        if self.vectors is None and self.pretrain:
            pairs = estimate_bytes(tokens, shape.n_words, shape.word_dim)
            begin = [Stage({"pairs of words": pairs, **read})]

        def needs(model: AttentionXML, shards: int) -> Needs:
            size, words = model.batch_size or batch_size, min(length, model.max_length)
            size = min(size, tokens.n_documents)
            trained = level_stage(model, shape, level, words, device_type, size, shards)
            return [*begin, trained.also(read)]

        hindrance = "held-out documents (valid)" if self.valid else None
        sharing = self.share_labels(needs, trees[0].n_labels, device_type, hindrance=hindrance)
        shards = 1 if sharing is None else sharing.count
        others = ({"batch_size": max(1, batch_size // 4)}, {"max_length": 100})
        self.say_memory(lambda model: needs(model, shards), others, progress, device_type)
        return sharing

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> Needs:
        """Return what the tree and the largest level take, by the rows of the texts.

        A word is taken to stand twice in a text, and pairs of words are not counted.
        """
        if not has_torch():
            return ()
        (n, n_features), n_labels = X.shape, Y.shape[1]
        levels = self._n_levels(n_labels)
        length = min(self.max_length, WORD_TIMES * -(-X.nnz // max(1, n)))
        shape = self._shape(min(self.max_words, n_features), *self._choose_sizes(n)[::-1], n_labels)
        first = -(-n_labels // self.branching**levels)
        level = LevelSize(n_labels, first, levels + 1)
        read = reading_bytes(n * length, shape.n_words, in_files=is_mapped(X))
        size = min(self.choose_batch(n), n)
        trained = level_stage(self, shape, level, length, device_type, size).also(read)
        return [tree_stage(X, thin_labels(Y, self.seed, SILENT)), trained] if levels else [trained]

    # -- predicting -----------------------------------------------------------------------------

    def predict_documents(self, documents: list[str] | sp.csr_matrix, k: int) -> TopK:
        """Rank labels for texts; one without a known word gets the most frequent labels."""
        tokens = self.tokens_.encode(cast("list[str]", documents))
        known = find_known(tokens)
        labels, scores = self.frequent_labels(k)
        n = tokens.n_documents
        top = TopK(np.tile(labels, (n, 1)), np.tile(scores, (n, 1)))
        if len(known):
            best = self._search(tokens.take(known), k)
            top.labels[known], top.scores[known] = best.labels, best.scores
        return top

    def _search(self, tokens: TokenRows, k: int) -> TopK:
        """Search the tree; of several, score what any of them finds by all of them."""
        from longtail.models.attention_xml.search import POOL, pick, unite

        beam, device = self.beam or self.followed_, self._device()
        if len(self.trees_) == 1:
            return self.trees_[0].search(tokens, k, beam, device)
        pool = min(max(k, POOL), len(self.label_names_))
        labels = unite([tree.search(tokens, pool, beam, device) for tree in self.trees_])
        return pick(labels, self._score(tokens, labels), k)

    def score_documents(
        self, documents: list[str] | sp.csr_matrix, candidates: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Attend to the texts for the candidates alone, whether a beam would find them or not."""
        scores = self.share_of(candidates)
        tokens = self.tokens_.encode(cast("list[str]", documents))
        known = find_known(tokens)
        if len(known) and candidates.size:
            scores[known] = self._score(tokens.take(known), candidates[known])
        return scores

    def _score(self, tokens: TokenRows, labels: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the mean of what the trees say of labels (n, c) of each document."""
        from longtail.models.attention_xml.search import mean_of

        device = self._device()
        return mean_of([tree.score(tokens, labels, device) for tree in self.trees_])

    def _device(self) -> "torch.device":
        """Return where to predict: on a GPU if there is one, unless the model is for a CPU."""
        require_torch("AttentionXML")
        from longtail.training.processes import choose_device
        from longtail.training.threads import follow_threads

        follow_threads()
        chosen = chosen_device()
        own = "cpu" if self.device == "cpu" else "auto"
        return choose_device(own if chosen == "auto" else chosen)

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Return where the network looked in a text, for any label, predicted or not.

        For a label, each word also has what the label's score loses without it.

        Args:
            document: a text.
            label: the name of a label; None takes the labels predicted, weighted by their scores.
        """
        self._check_fitted()
        if not self.attention:
            raise ParameterError(
                "this model was trained with attention=false and cannot say what it looks at"
            )
        wanted = None if label is None else self._find_label(label)
        texts = self.check_documents([document] if isinstance(document, str) else document)
        check_one(len(texts))
        text = str(texts[0])
        spans = self.tokens_.spans(text)
        if not spans:
            return Explanation(text, label, [], is_attention=True)
        tokens = self.tokens_.encode([text])
        if wanted is None:
            top = self.predict_documents([text], min(EXPLAINED, len(self.label_names_)))
            shares = top.scores[0] / max(top.scores[0].sum(), 1e-9)
            weights = weigh_tokens(self.trees_, tokens, top.labels[0], shares, self._device())
            return Explanation(text, None, as_terms(text, spans, weights), is_attention=True)
        asked = np.array([wanted], np.int32)
        weights = weigh_tokens(self.trees_, tokens, asked, np.ones(1, np.float32), self._device())

        def score(variants: TokenRows) -> NDArray[np.float64]:
            labels = np.tile(asked, (variants.n_documents, 1))
            return self._score(variants, labels)[:, 0].astype(np.float64)

        terms = with_losses(as_terms(text, spans, weights), tokens, spans, score)
        return Explanation(text, label, terms, is_attention=True)

    # -- updating -------------------------------------------------------------------------------

    def _as_rows(self, documents: list[str] | sp.csr_matrix) -> sp.csr_matrix:
        """Return which words of texts are known, by which an update sees what it can use."""
        tokens = self.tokens_.encode(cast("list[str]", documents))
        known = tokens.tokens > UNKNOWN
        start = np.concatenate(([0], np.cumsum(known)))[tokens.start]
        words = tokens.tokens[known]
        shape = (tokens.n_documents, self.tokens_.n_words_)
        return sp.csr_matrix((np.ones(len(words), np.float32), words, start), shape=shape)

    def update_documents(
        self, dataset: Dataset, X: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Let new labels learn where to look; if asked, all labels of the documents learn on."""
        from longtail.models.attention_xml.updating import Update, choose_documents, update_tree

        device, Y, before = self._device(), dataset.Y, self.training_counts_
        unknown = np.arange(len(self.label_names_), Y.shape[1])  # documents need not carry these
        new, refined = np.union1d(find_new_labels(before, Y), unknown), np.empty(0, np.int64)
        tokens, chosen = self.tokens_.encode(dataset.texts or []), np.arange(Y.shape[0])
        if train:
            refined = np.setdiff1d(np.unique(Y.indices), new).astype(np.int64)
        else:
            chosen = choose_documents(Y, new, np.random.default_rng(self.seed))
        if len(new) or len(refined):  # otherwise all labels are known, and stay as they are
            counts = before.padded(Y.shape[1]) + np.bincount(Y.indices, minlength=Y.shape[1])
            shares = counts / (before.n_documents + Y.shape[0])
            seen = self.kept_.join(tokens.take(chosen), Y[chosen])
            update = Update(*seen, new, refined, shares)
            self.trees_ = [
                update_tree(tree, update, device, self.seed + number, progress)
                for number, tree in enumerate(self.trees_)
            ]
        self.kept_ = KeptDocuments.of(*self.kept_.join(tokens, Y), self.seed)

    # -- saving ---------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the words, and of each tree its nodes and the levels' weights."""
        from longtail.models.attention_xml.saving import add_trees

        self.tokens_.to_files(files)
        self.kept_.add_to_files(files)
        shape = self.trees_[0].levels[0].shape
        files.config["word_dim"], files.config["hidden"] = shape.word_dim, shape.hidden
        files.config["followed"] = self.followed_
        add_trees(files, self.trees_)

    def describe(self, files: Files) -> Schema:
        """Return the schema of the words, the trees, and the weights of their levels."""
        require_torch("AttentionXML")
        layer = Value(int, between(1, LARGEST_LAYER))
        sizes = Schema(
            config={
                "word_dim": layer,
                "hidden": layer,
                "followed": Value(int, at_least(1)),
                "depths": ListOf(Value(int, between(1, DEEPEST)), 1, MOST_TREES),
            }
        )
        sizes.check(files, {})
        from longtail.models.attention_xml.saving import describe_trees

        word_dim, hidden = files.config["word_dim"], files.config["hidden"]
        shape = self._shape(len(files.texts.get("words", ())), word_dim, hidden, 1)
        trees = describe_trees(files.config["depths"], shape)
        return Schema.join([sizes, Tokens.describe(), KeptDocuments.describe(), trees])

    def restore(self, files: Files) -> None:
        """Take back what was saved."""
        from longtail.models.attention_xml.saving import open_trees

        self.tokens_ = Tokens.from_files(files)
        self.kept_ = KeptDocuments.from_files(files, len(self.label_names_))
        self.followed_ = files.config["followed"]
        word_dim, hidden = files.config["word_dim"], files.config["hidden"]
        shape = self._shape(self.tokens_.n_words_, word_dim, hidden, 1)
        self.trees_ = open_trees(files, shape, self.path_weight)


def _choose_inner_epochs(epochs: int, n_words: int) -> int:
    """Return how many passes prepare a level for the one below.

    With few, the beam is poor; with many, the weights that a warm start shares fit their documents
    too closely before the labels are learned. Long texts need fewer than titles.
    """
    return min(epochs, max(LEAST_INNER_EPOCHS, INNER_WORDS // max(n_words, 1)))
