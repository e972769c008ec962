"""Linear: a tree over the labels with a linear classifier for every node.

The idea of Parabel (Prabhu et al., WWW 2018), Bonsai (Khandagale et al., MLJ 2020) and
XR-Linear (Yu et al., JMLR 2022): labels are clustered by the documents that carry them
(tree.py); for every node a classifier tells the documents that belong below it from the others
that belong below its parent (solver.py); a document follows the best branches only (beam.py).

    x_i, y_i   X (n, n_features), Y (n, n_labels)    documents and their labels
    z_in       belongs[level] (n, nodes of level)    whether node n has a label of document i below
    w_n        TreeWeights                           the classifier of node n
    P(z_n)     product over the path to n of p(w_n·x), p(m) = e^(−max(0, 1 − m)^power) or σ(m)

With several trees, each from another seed, the mean of their probabilities ranks the labels.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.explanation import Explanation
from longtail.labels.kmeans import LARGE
from longtail.labels.pairs import estimate_product, thin_labels
from longtail.labels.tree import LabelTree, build_label_vectors, build_tree, vector_bytes
from longtail.models.base import Model
from longtail.models.contract import DEFAULT_K, Documents
from longtail.models.cost import Facts
from longtail.models.linear.beam import (
    NOTHING_REACHED,
    UNKNOWN,
    Paths,
    Reached,
    TreeWeights,
    find_paths,
    mean_probabilities,
    pick_best,
    score_paths,
    search,
    unite,
    walk,
    weigh_cells,
)
from longtail.models.linear.choices import (
    LARGEST_C,
    MOST_PRUNED,
    PASSES,
    RULES,
    Costs,
    CRule,
    choose_passes,
    choose_prune,
    choose_tolerance,
)
from longtail.models.linear.memory import KEPT, Kept
from longtail.models.linear.packed import add_tree, describe_tree, take_tree
from longtail.models.linear.siblings import find_siblings
from longtail.models.linear.solver import Settings
from longtail.models.linear.spread import build_trees, train_trees
from longtail.models.linear.training import (
    BLOCK,
    MOST_TOGETHER,
    count_documents,
    train_tree,
)
from longtail.models.linear.trial import try_costs
from longtail.models.linear.update import Update, update_tree
from longtail.progress import SILENT, Progress
from longtail.runtime.mapped import Extent, count_values, is_mapped
from longtail.runtime.memory import Needs, Stage
from longtail.runtime.parallel import in_threads, n_threads, run_tasks
from longtail.runtime.rows import Rows, scale_rows, scale_to_unit, view_rows
from longtail.runtime.schema import LARGEST_WEIGHT, Schema, Value
from longtail.runtime.settings import (
    above,
    at_least,
    between,
    configurable,
    learned,
    setting,
    zero_or_at_least,
)
from longtail.runtime.store import Files
from longtail.runtime.workers import cluster_in_use
from longtail.topk import TopK

PRUNED_LENGTH = 120  # features of a document at which half of the weights are pruned
CROWDED = 0.4  # of the features of documents with very many labels keep a weight
MORE_WEIGHTS = 1.3  # those of inner nodes; without a tree, those that are pruned with one
PER_LABEL = 80  # bytes for each label: its places in the tree, its document counts, its name
SPREAD_LABEL, SPREAD_DOCUMENT = 36, 48  # bytes for the nodes above a document's labels
BATCH = 1024  # documents that a thread takes at a time
MOST_RANKED, SHOWN = 100, 3  # in an explanation: labels that are ranked, scores that are shown
MOST_REACHED = 1 << 28  # bytes of margins that are kept for labels that are asked about later
VECTOR_VALUES = 1024  # of a label's vector, the largest; clusters are hardly others for the rest
LEAST_USUAL_TOLERANCE = 0.01  # with less, training goes on as long as it may
LEAST_WIDTH = 10  # labels that each of several trees proposes, however few are wanted


class Read:
    """Documents as rows, and what a search for them has reached, as long as that is not much.

    Attributes:
        rows: the documents.
        reached: the first document of a part, the one behind its last, what each tree's search
            reached for it; for all parts, or for none.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.reached: list[tuple[int, int, list[Reached]]] = []

    def keep(self, reached: list[tuple[int, int, list[Reached]]]) -> None:
        """Keep what was reached, if there is room for it."""
        size = sum(each.margins.nbytes for _, _, trees in reached for each in trees)
        self.reached = reached if size <= MOST_REACHED else []


@configurable
class Linear(Model):
    """A tree of linear classifiers; the strongest of the classical methods, and the fastest."""

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "linear classifiers in a tree over the labels"
    choose_when: ClassVar[str] = "you want a strong model in seconds, on any number of labels"
    can_update: ClassVar[bool] = True
    can_explain: ClassVar[bool] = True
    uses_cluster: ClassVar[bool] = True
    member_order: ClassVar[int | None] = 1
    member_reason: ClassVar[str] = "strong everywhere, and the quickest"
    cheaper_presets: ClassVar[Sequence[str]] = ("fast",)
    milliseconds: ClassVar[float] = 0.2
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fast": {"trees": 1},
        "parabel": {"flat": 0, "branching": 2, "max_leaf": 100, "balanced": True},
        "bonsai": {"flat": 0, "branching": 100, "max_leaf": 100},
    }

    trees: int = setting(
        3, "how many trees to average; more are slower and a little more accurate", between(1, 1000)
    )
    flat: int = setting(
        1000,
        "with at most so many labels there is no tree: every document tries every label",
        at_least(0),
    )
    branching: int = setting(
        256,
        "how many children a node may have; few make a deep tree, many a shallow one",
        at_least(2),
    )
    max_leaf: int = setting(400, "how many labels may share a parent", at_least(1))
    max_depth: int | None = setting(
        None, "at most so many levels of clusters; none means as many as it takes", at_least(0)
    )
    balanced: bool = setting(
        False, "make clusters equal in size (as Parabel does), or let them differ (Bonsai)"
    )
    normalize: bool = setting(True, "scale every document's row to length 1")
    loss: Literal["squared-hinge", "logistic"] = setting(
        "squared-hinge", "what a classifier minimizes"
    )
    C: float | None = setting(
        None,
        "how much a wrong training document counts against large weights; none chooses by how many "
        "documents a label has",
        above(0, at_most=LARGEST_C),
    )
    C_rule: CRule | None = setting(
        None,
        "how C is chosen if it is not given: steep, from 0.4 for frequent labels to 3.3 for one "
        "document, or even, from 0.8 to 2.3; none tries both if there is a tree, else it is steep",
    )
    bias: float = setting(
        1.0, "value of the constant feature; 0 switches it off", zero_or_at_least(0.001)
    )
    tolerance: float | None = setting(
        None,
        "stop training a node once no step is larger than this; none chooses by how many trees "
        "there are",
        above(0),
    )
    max_passes: int | None = setting(
        None,
        "stop training a node after so many passes over its documents; none chooses by how many "
        "trees there are",
        between(1, 1_000_000),
    )
    prune: float | None = setting(
        None,
        "leave out weights smaller than this; none chooses by how long documents are, and whether "
        "there is a tree",
        at_least(0),
    )
    beam: int = setting(10, "how many nodes of a level a document follows", at_least(1))
    kept: int = setting(
        2000,
        "how many training documents to keep as rows, so that updates lose little of what was "
        "learned; 0 keeps none",
        at_least(0),
    )
    power: int = setting(
        3, "how sharply a probability falls with the margin (squared hinge only)", between(1, 100)
    )

    trees_: Sequence[TreeWeights] = learned()
    prune_: float = learned()  # below which weights were left out
    C_rule_: CRule = learned()  # how C was chosen, unless it was given
    kept_: Kept | None = learned(default=None)  # documents for updates
    _paths: tuple[Sequence[TreeWeights] | None, Sequence[Paths]] = learned(default=(None, ()))

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Up to 1,000 labels every value meets every label; beyond, there are three trees.

        475,974 titles of 25,018 labels took 41 s on two cores, 33,485 questions of 1,987 labels 3 s
        and 23,222 package descriptions of 539 labels 2 s.
        """
        if facts.n_labels <= cls.flat:
            return 0.2 + 2e-9 * facts.n_values * facts.n_labels
        n_trees = cls.preset(preset).trees if preset else cls.trees
        each = 3e-7 * facts.n_values + 0.0006 * min(facts.n_labels, facts.n_documents)
        return 0.2 + n_trees * each

    def work(self, facts: Facts) -> float:
        """Every tree is trained; most nodes are done after a few passes, unless told to go on."""
        n_trees = self._count_trees(facts.n_labels)
        passes = choose_passes(self.max_passes, n_trees)
        is_usual = choose_tolerance(self.tolerance, n_trees) >= LEAST_USUAL_TOLERANCE
        return n_trees * (min(passes, PASSES) if is_usual else passes)

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Build the trees, then train all their nodes."""
        others = ({"trees": 1}, {"trees": 1, "prune": 0.3})
        self.say_memory(lambda m: m.needs_of(X, Y, "cpu"), others, progress)
        X = scale_to_unit(X) if self.normalize else X
        prune = choose_prune(self.prune, X, flat=self._is_flat(Y.shape[1]))
        trees = self._build_trees(X, Y, progress)
        settings = self._settings(prune, len(trees))
        self.C_rule_ = self.C_rule or self._choose_rule(X, Y, settings, progress)
        costs = self._costs
        cluster = cluster_in_use()
        if cluster is not None:
            seeds = [self._tree_seed(number) for number in range(len(trees))]
            trained = train_trees(cluster, X, Y, trees, costs, settings, seeds, progress)
        else:
            trained = self._train_in_turn(X, Y, trees, costs, settings, progress)
        self.trees_, self.prune_ = trained, prune
        self.kept_ = Kept.draw(X, Y, self.kept, self.seed) if self.kept else None
        if len(trained) < len(trees):
            self.trees = len(trained)
        for line in self.describe_training():
            progress.say(line)

    def _train_in_turn(
        self,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        trees: Sequence[LabelTree],
        costs: Costs,
        settings: Settings,
        progress: Progress,
    ) -> list[TreeWeights]:
        """Train one tree after the other on this machine, as many as there is time for."""
        trained: list[TreeWeights] = []
        for number, tree in enumerate(trees):
            which = f" of tree {number + 1}/{len(trees)}" if len(trees) > 1 else ""
            seed = self._tree_seed(number)
            began = time.monotonic()
            trained.append(
                train_tree(X, Y, tree, costs, settings, seed, progress, which, self.stop_at)
            )
            took = time.monotonic() - began
            if self.stop_at is not None and time.monotonic() + took > self.stop_at:
                break  # the others would come too late
        return trained

    def _choose_rule(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, settings: Settings, progress: Progress
    ) -> CRule:
        """Try both on frequent labels, where the choice is open and matters."""
        if self.C is not None or self._is_flat(Y.shape[1]):
            return "steep"
        best = try_costs(X, Y, list(RULES.values()), settings, self.seed, progress)
        return list(RULES)[best]

    @property
    def _costs(self) -> Costs:
        """How much a wrong document counts."""
        return RULES[self.C_rule_] if self.C is None else Costs.constant(self.C)

    @property
    def choices(self) -> dict[str, Any]:
        """How C follows the number of documents."""
        return {} if self.C is not None else {"C_rule": self.C_rule_}

    def _settings(self, prune: float, n_trees: int) -> Settings:
        passes = choose_passes(self.max_passes, n_trees)
        tolerance = choose_tolerance(self.tolerance, n_trees)
        numbers = float(self.bias), float(tolerance)  # a whole number may be too large
        return Settings(self.loss == "logistic", *numbers, passes, float(prune))

    def describe_training(self) -> Sequence[str]:
        """Say what was chosen from the data."""
        chosen = []
        if self.C is None:
            rare, common = self._costs.of_labels(np.array([1, 1 << 30]))
            chosen.append(
                f"C is {common:.2g} for labels of many documents, up to {rare:.2g} for one document"
            )
        if self.prune is None:
            chosen.append(f"weights below {self.prune_:.2g} are left out, by length of documents")
        return [f"Chosen: {'; '.join(chosen)}"] if chosen else []

    def _build_trees(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress
    ) -> list[LabelTree]:
        if self._is_flat(Y.shape[1]):  # without clusters all trees would be the same
            return [LabelTree.flat(Y.shape[1])]
        progress.stage("label vectors", 1)
        vectors = build_label_vectors(X, thin_labels(Y, self.seed, progress), VECTOR_VALUES)
        progress.advance(1)
        shape: dict[str, Any] = {
            "branching": self.branching,
            "max_leaf": self.max_leaf,
            "max_depth": self.max_depth,
            "balanced": self.balanced,
        }
        seeds = [self._tree_seed(number) for number in range(self.trees)]
        cluster = cluster_in_use()
        if cluster is not None:
            return build_trees(cluster, vectors, shape, seeds, progress)
        if vectors.nnz > LARGE:  # all threads work on each tree
            return [build_tree(vectors, **shape, seed=seed, progress=progress) for seed in seeds]
        progress.stage("label trees", len(seeds))
        tasks = [(seed,) for seed in seeds]
        costs = [1.0] * len(seeds)
        return run_tasks(lambda s: build_tree(vectors, **shape, seed=s), tasks, costs, progress)

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> Needs:
        """Return what the label vectors, the classifiers and their assembly take."""
        (n, n_features), n_labels = X.shape, Y.shape[1]
        n_cells = estimate_product(thin_labels(Y, self.seed, SILENT), X)
        n_used = _count_used(X)
        n_blocks = -(-n_labels // BLOCK)
        documents = X.nnz * 8 + 4 * min(BLOCK, n_labels) * n + 28 * n
        if is_mapped(X):  # nodes that see more of them learn from a sample
            documents = min(documents, MOST_TOGETHER)
        block = documents + 4 * min(BLOCK, n_labels) * n_used + 20 * n_used
        scratch = min(n_threads(), n_blocks) * (block + 4 * n_features)
        trained, tree = self._weigh_trees(X, Y, n_cells, n_used)
        spread = 0
        if is_mapped(X):  # then weights lie in files, and labels on all levels count
            trained = tree = 0
            spread = SPREAD_LABEL * Y.nnz + SPREAD_DOCUMENT * n
        rows = 4 * X.nnz * (self.normalize and not is_mapped(X)) + 8 * n
        common = {"rows": rows, "labels": PER_LABEL * n_labels + spread}
        is_flat = self._is_flat(n_labels)
        done = 0 if is_flat else (self.trees - 1) * tree
        stages = [
            Stage({"classifiers": scratch, "weights": trained + done, **common}),
            Stage({"scratch": min(scratch, 1 << 26), "weights": trained + tree + done, **common}),
        ]
        vectors = Stage({"label vectors": vector_bytes(X, n_cells), **common})
        return stages if is_flat else [vectors, *stages]

    def kept_of(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> int:
        """Return what the trees take."""
        n_cells = estimate_product(thin_labels(Y, self.seed, SILENT), X)
        _, tree = self._weigh_trees(X, Y, n_cells, X.shape[1])
        return tree * (1 if self._is_flat(Y.shape[1]) else self.trees)

    def _weigh_trees(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, n_cells: int, n_used: int
    ) -> tuple[int, int]:
        """Return what the weights of one tree take: as its nodes are trained, and assembled.

        A label has weights for the features of its documents, of which there are `n_cells`, and for
        some of those of documents with very many labels. Weights of long documents are small, and
        small ones are pruned.
        """
        kept = MORE_WEIGHTS / (1 + (X.nnz / X.shape[0] / PRUNED_LENGTH) ** 2)
        crowded = CROWDED * max(0, estimate_product(Y, X) - n_cells)
        n_weights, n_rows = int(kept * (n_cells + crowded)), kept * n_cells
        most_rows = n_used * -(-Y.shape[1] // BLOCK)
        trained = 5 * n_weights + 12 * min(int(0.6 * n_rows), most_rows)
        tree = 3 * n_weights + 6 * min(int(0.4 * n_rows), most_rows) + 16 * X.shape[1]
        return trained, tree

    def _is_flat(self, n_labels: int) -> bool:
        return n_labels <= self.flat

    def _count_trees(self, n_labels: int) -> int:
        return 1 if self._is_flat(n_labels) else self.trees

    def _tree_seed(self, number: int) -> int:
        return self.seed + 15485863 * number

    def read_rows(self, X: sp.csr_matrix) -> "Read":
        """Scale the rows, if that is asked for."""
        return Read(scale_rows(view_rows(X)) if self.normalize else view_rows(X))

    def predict_rows(self, X: "Read", k: int) -> TopK:
        """Search every tree and rank the labels by their mean probability."""
        cuts = _cut(X.rows)
        found = in_threads(self._search, [(X.rows, a, b, k) for a, b in cuts])
        X.keep([(*ends, reached) for ends, (_, _, reached) in zip(cuts, found, strict=True)])
        if len(found) == 1:
            return TopK(*found[0][:2])
        labels, scores, _ = zip(*found, strict=True)
        return TopK(np.concatenate(labels), np.concatenate(scores))

    def score_rows(self, X: "Read", candidates: NDArray[np.int32]) -> NDArray[np.float32]:
        """Follow the path to each candidate in every tree, whether a beam would find it or not."""
        nothing = [NOTHING_REACHED] * len(self.trees_)
        parts = X.reached or [(a, b, nothing) for a, b in _cut(X.rows)]
        tasks = [(X.rows, a, candidates[a:b], reached) for a, b, reached in parts]
        return np.concatenate(in_threads(self._score, tasks))

    def _search(
        self, rows: Rows, first: int, last: int, k: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], list[Reached]]:
        """Return the best labels of the documents first ≤ i < last, and their probabilities."""
        # A label that is just below one tree's best k may be among the best of the mean.
        width = k if len(self.trees_) == 1 else max(k, LEAST_WIDTH)
        found = [
            walk(rows, first, last, tree, self.beam, width, self._power) for tree in self.trees_
        ]
        reached = [each for _, _, each in found]
        if len(found) == 1:
            ((labels, logs, _),) = found
            return labels, mean_probabilities(labels, logs[None]), reached
        labels, logs = unite(
            np.stack([one for one, _, _ in found]), np.stack([one for _, one, _ in found])
        )
        scores = self._average(rows, first, labels, logs, reached)
        return *pick_best(labels, scores, k), reached

    def _score(
        self,
        rows: Rows,
        first: int,
        candidates: NDArray[np.int32],
        reached: Sequence[Reached],
    ) -> NDArray[np.float32]:
        """Return the probabilities of the candidates of documents from `first` on."""
        logs = np.full((len(self.trees_), *candidates.shape), UNKNOWN)
        return self._average(rows, first, candidates, logs, reached)

    def _average(
        self,
        rows: Rows,
        first: int,
        labels: NDArray[np.int32],
        logs: NDArray[np.float32],
        reached: Sequence[Reached],
    ) -> NDArray[np.float32]:
        """Return the mean probabilities of labels; `logs` of the trees get what they lack."""
        of_trees = zip(self.trees_, self._find_paths(), logs, reached, strict=True)
        for tree, paths, own, met in of_trees:
            score_paths(rows, first, tree, paths, labels, own, self._power, met)
        return mean_probabilities(labels, logs)

    @property
    def _power(self) -> int:
        """How margins become probabilities; 0 stands for the logistic loss."""
        return 0 if self.loss == "logistic" else self.power

    def _find_paths(self) -> Sequence[Paths]:
        """Return the paths of all trees, found when they are first needed."""
        trees, paths = self._paths
        if trees is not self.trees_:
            paths = [find_paths(tree) for tree in self.trees_]
            self._paths = self.trees_, paths
        return paths

    # -- explaining -----------------------------------------------------------------------------

    def explain_row(self, X: sp.csr_matrix, label: int | None) -> NDArray[np.float32]:
        """Return what each cell adds to the margins on the way to a label, averaged over trees.

        Without a label: to those of the best labels, each as much as it is probable.
        """
        read = self.read_rows(X)
        if label is None:
            top = self.predict_rows(read, min(DEFAULT_K, len(self.label_names_)))
            given = dict(zip(top.labels[0].tolist(), top.scores[0].tolist(), strict=True))
        else:
            given = {label: 1.0}
        total = np.zeros(X.nnz, np.float32)
        for tree, paths in zip(self.trees_, self._find_paths(), strict=True):
            for each, score in given.items():
                total += score * weigh_cells(read.rows, 0, tree, paths, each).sum(axis=0)
        return total / np.float32(len(self.trees_))

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Say which words speak for and against a label, on the way to it; and its rank."""
        found = super().explain(document, label)
        if label is None:
            return found
        documents: Documents = [document] if isinstance(document, str) else document
        return replace(found, notes=self._say_rank(documents, self._find_label(label)))

    def _say_rank(self, documents: Documents, label: int) -> list[str]:
        """Say how far from the first labels this one is, and whether a search would meet it."""
        if self.training_counts_.label_counts[label] == 0:
            return ["No training document carries the label, so it is never given."]
        top = self.predict(documents, MOST_RANKED)
        score = float(self.score(documents, np.array([[label]]))[0, 0])
        places = np.flatnonzero(top.labels[0] == label)
        rank = f"rank {places[0] + 1}" if len(places) else f"behind the first {top.k}"
        best = ", ".join(f"{each:.3f}" for each in top.scores[0][:SHOWN].tolist())
        notes = [f"Score {score:.3f}, {rank}; the best scores are {best}."]
        if n_passed := sum(label not in found for found in self._reach(documents)):
            notes.append(
                f"In {n_passed} of {len(self.trees_)} trees its branch is not among the best "
                f"{self.beam} (beam), so that the search passes it by."
            )
        return notes

    def _reach(self, documents: Documents) -> list[NDArray[np.int32]]:
        """Return for each tree all labels that a search for one document meets."""
        rows, k = self.read_rows(self._rows_of(documents)).rows, len(self.label_names_)
        return [search(rows, 0, 1, tree, self.beam, k, self._power)[0][0] for tree in self.trees_]

    def find_near_labels(self, label: int, n: int) -> Sequence[tuple[int, float]]:
        """Return labels that the first tree puts beside this one and that look for like words."""
        return find_siblings(self.trees_[0], label, n)

    # -- more documents ---------------------------------------------------------------------------

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Give new labels a leaf and refine their siblings; with `train` the inner nodes, too."""
        X = scale_to_unit(X) if self.normalize else X
        before = self.training_counts_
        counts = before.padded(Y.shape[1])
        settings = self._settings(self.prune_, len(self.trees_))
        all_X, all_Y, kept = X, Y, self.kept_
        if kept is not None:
            all_X = sp.vstack([X, kept.X]).tocsr()
            all_Y = sp.vstack([Y, kept.widen(Y.shape[1]).Y]).tocsr()
            kept = kept.renew(X, Y, self.kept, before.n_documents, self.seed)
        now = counts + count_documents(Y)
        # A label that was known by name alone lies anywhere: its documents must learn the way.
        is_revived = (counts == 0) & (now > 0) & (np.arange(len(now)) < len(self.label_names_))
        refine_all = train or bool(is_revived.any())
        trees = []
        for number, tree in enumerate(self.trees_):
            which = f" tree {number + 1}/{len(self.trees_)}" if len(self.trees_) > 1 else ""
            seed = self._tree_seed(number)
            new = Update(
                all_X,
                all_Y,
                counts,
                now,
                refine_all,
                self.beam,
                self._power,
                self._costs,
                settings,
                seed,
            )
            trees.append(update_tree(tree, new, progress, which))
        self.trees_, self.kept_ = trees, kept

    # -- saving -----------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the arrays of every tree."""
        files.config["prune"] = self.prune_
        files.config["C_rule"] = self.C_rule_
        if self.kept_ is not None and len(self.kept_):
            self.kept_.add_to_files(files)
        for number, tree in enumerate(self.trees_):
            add_tree(files, f"tree.{number}", tree)

    def describe(self, files: Files) -> Schema:
        """Return the schema of the arrays of every tree."""
        trees = [describe_tree(f"tree.{i}", files) for i in range(self._find_trees(files))]
        prune = Value(float, between(0, LARGEST_WEIGHT), optional=True)
        rule = Value(CRule, optional=True)
        kept = [Kept.describe()] if KEPT in files.config else []
        return Schema.join([Schema(config={"prune": prune, "C_rule": rule}), *kept, *trees])

    def restore(self, files: Files) -> None:
        """Take the arrays of every tree back; older models do not say what was chosen."""
        usual = MOST_PRUNED if self.prune is None else self.prune
        self.prune_ = files.config.get("prune", usual)
        self.C_rule_ = files.config.get("C_rule", "steep")
        if KEPT in files.config:
            self.kept_ = Kept.from_files(files, self.n_features_, len(self.label_names_))
        elif self.kept:
            self.kept_ = Kept.nothing(self.n_features_, len(self.label_names_))
        names = [f"tree.{number}" for number in range(self._find_trees(files))]
        self.trees_ = in_threads(take_tree, [(files, name, self.n_features_) for name in names])

    def _find_trees(self, files: Files) -> int:
        """Return how many trees there are: one, if there were few labels when it was trained."""
        n = sum(f"tree.{number}.level" in files.arrays for number in range(self.trees))
        if n not in (1, self.trees):
            raise ValueError(f"there are not {self.trees} trees")
        return n


def _count_used(X: sp.csr_matrix) -> int:
    """Return how many features occur, with memory for those that do."""
    if isinstance(X, Extent):
        return X.shape[1]
    if X.nnz < X.shape[1]:
        return len(np.unique(X.indices))
    return int(np.count_nonzero(count_values(X.indices, X.shape[1])))


def _cut(rows: Rows) -> list[tuple[int, int]]:
    """Return which documents threads take at a time."""
    n = len(rows.start) - 1
    size = min(BATCH, max(1, -(-n // n_threads())))
    return [(first, min(first + size, n)) for first in range(0, n, size)]
