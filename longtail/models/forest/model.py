"""Forest: random trees for many labels at once, of single features or of clusters of documents.

Geurts, Ernst and Wehenkel, "Extremely randomized trees", Machine Learning 63, 2006; for many labels
at once as in predictive clustering trees (Kocev, Vens, Struyf and Džeroski, "Tree ensembles for
predicting structured outputs", Pattern Recognition 46, 2013). Trees of clusters are those of
CRAFTML (see `clusters`).

    M           `n_trees`
    K           `share` of the features that a node's documents have, tried at the node
    n_min       `min_split`, documents of a node that is split
    trees_      which documents lie together in each tree; see `growing` and `walking`
    Y_          (n, n_labels) the labels of these documents
    numbers_    (n,) the number of each of them, from 0, in the order in which the model got them

Departures: K follows the features of the node, as of 100,000 words few stand in any node. A leaf
has two documents at least. What trees ask for, K and n_min are chosen on held-out documents: they
depend on the data, and a tree that was grown to its end shows what it would be with any n_min.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from longtail.evaluation.explanation import Explanation, Neighbour
from longtail.evaluation.metrics import evaluate_documents
from longtail.models.base import Model
from longtail.models.cost import Facts
from longtail.models.forest.clusters import grow_clusters, weigh_features
from longtail.models.forest.growing import grow_tree, weigh_labels
from longtail.models.forest.trees import Trees, find_leaves
from longtail.models.forest.voting import Found, find_labels, look_up_found, rank_found
from longtail.progress import Progress
from longtail.runtime.mapped import is_mapped, take_rows
from longtail.runtime.memory import Needs, Stage
from longtail.runtime.parallel import n_threads, run_tasks
from longtail.runtime.rows import add_matrix, describe_matrix, take_matrix, view_rows
from longtail.runtime.schema import Schema, Value, indices, number, whole
from longtail.runtime.settings import (
    above,
    at_least,
    between,
    configurable,
    learned,
    seeds,
    setting,
)
from longtail.runtime.store import Files
from longtail.search.voters import Carried, fill_labels, find_carriers, join_labels, rank_companions
from longtail.topk import TopK

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the features, to choose from
SPLITS = (2, 4, 8, 16, 32, 64)  # documents of a node that is split, to choose from
TRIED, HELD_OUT, TRIAL_TREES = 4000, 1500, 15  # documents that choose, and trees they choose by
ALIKE = 0.1  # points of nDCG@5 by which a larger `min_split`, and so a smaller tree, may be worse
WORTH = 0.2  # points of nDCG@5 that another share than the usual one must gain
MORE_WORTH = 1.0  # points that clusters must gain, whose trees are several times as large
LEAST_TRIED = 20  # with fewer documents there is nothing to choose by
TOGETHER = 4  # trees for each thread between two looks at the clock
SHOWN = 5  # documents in an explanation
AGAINST = 2  # of them, in that of a label, which do not carry it
BYTES_A_CELL, BYTES_A_NODE = 16, 12
LARGEST_SHARE = 0.3  # of a tree's values that are looked at together, as a rule
FEWER = 0.4  # trees of clusters, for each tree of features: each says more, and weighs more
SEEN = 0.7  # of the features, in a tree of clusters
MOST_VALUES = 1_000_000  # of all documents; with more, trees of clusters would weigh 50 MB and more
BRANCHING = 10  # clusters of a node

Cuts = Literal["features", "clusters"]


class Choice(NamedTuple):
    """How trees are grown, and the score that this reached."""

    cuts: Cuts
    min_split: int
    share: float
    score: float = 0.0


USUAL = Choice("features", 16, 0.03)  # where there is nothing to choose by


@configurable
class Forest(Model):
    """Random trees over features; the documents that share a document's leaves vote."""

    name: ClassVar[str] = "forest"
    summary: ClassVar[str] = "random trees over features, whose leaves hold similar documents"
    choose_when: ClassVar[str] = "documents are rows of some hundred or thousand features"
    can_update: ClassVar[bool] = True
    trains_on: ClassVar[bool] = False
    can_explain: ClassVar[bool] = True
    member_order: ClassVar[int | None] = 4
    member_order_of_rows: ClassVar[int | None] = 2
    member_reason: ClassVar[str] = "finds what several features say together"
    cheaper_presets: ClassVar[Sequence[str]] = ("fast",)
    milliseconds: ClassVar[float] = 0.3
    least_sample: ClassVar[int] = TRIED + HELD_OUT
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fast": {"n_trees": 30},
        "features": {"cuts": "features"},
        "clusters": {"cuts": "clusters"},
    }

    n_trees: int = setting(
        100,
        "how many trees vote, 0.4 of them if they ask for clusters; more are slower, larger and a "
        "little more accurate",
        between(1, 10_000),
    )
    cuts: Cuts | None = setting(
        None,
        "what a node asks for: single features, or which of ten clusters of documents is the most "
        "similar; none chooses by held-out documents, but takes features where documents have more "
        "than a million values",
    )
    min_split: int | None = setting(
        None,
        "how many documents a node needs to be split; none chooses by held-out documents",
        at_least(2),
    )
    min_leaf: int = setting(2, "how many documents a leaf has at least", at_least(1))
    share: float | None = setting(
        None,
        "share of the features of a node's documents that are tried to split it, if it asks for "
        "single ones; none chooses by held-out documents",
        above(0, at_most=1),
    )
    max_documents: int = setting(
        30_000, "how many documents a tree is grown on at most, drawn for each tree", at_least(1)
    )
    seed: int = setting(0, "fixes all that is random", seeds())

    trees_: Trees = learned()
    Y_: sp.csr_matrix = learned()
    numbers_: Ids = learned()
    choice_: Choice = learned()

    @classmethod
    def estimate_cost(cls, facts: Facts, preset: str | None = None) -> float:
        """Trees read all values at each depth; where documents share few features, they are deep.

        18,578 package descriptions took 83 s of CPU in all, 26,788 questions 69 s, but a single
        tree of 30,000 titles 37 s: hardly two of them share a feature.
        """
        n_trees = cls.preset(preset).n_trees if preset else cls.n_trees
        each = facts.n_values / max(1, facts.n_documents)
        values = each * min(facts.n_documents, cls.max_documents)
        apart = facts.n_features / max(1.0, each)
        depth = max(4 * float(np.sqrt(apart)), apart**2 / 12_000)
        return 1.5 + 1.2e-9 * n_trees * values * depth

    @classmethod
    def member_kinds(cls, facts: Facts) -> Sequence[str | None]:
        """Which trees are better alone does not say which say more beside other models."""
        return ("features", "clusters") if facts.n_values <= MOST_VALUES else ("features",)

    def work(self, facts: Facts) -> float:
        """Trees are grown one like the other."""
        return self.n_trees * float(min(facts.n_documents, self.max_documents))

    # -- learning -----------------------------------------------------------------------------

    def fit_rows(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> None:
        """Choose how trees are grown, then grow them on the documents that carry a label."""
        others = ({"max_documents": 10_000}, {"n_trees": 10, "max_documents": 10_000})
        self.say_memory(lambda m: m.needs_of(X, Y, "cpu"), others, progress)
        numbers = np.flatnonzero(np.diff(Y.indptr)).astype(np.int32)
        if len(numbers) < X.shape[0]:
            X, Y = take_rows(X, numbers), Y[numbers]
        self.choice_ = self._choose(X, Y, progress)
        self.trees_ = self._grow(X, Y, self.choice_, progress)
        self.n_trees = round(self.trees_.n_trees / _share_of_trees(self.choice_))
        self.Y_, self.numbers_ = sp.csr_matrix(Y, dtype=np.float32, copy=True), numbers
        for line in self.describe_training():
            progress.say(line)

    def _grow(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, choice: Choice, progress: Progress
    ) -> Trees:
        """Grow as many trees as there is time for, side by side."""
        rows, labels, n_features = view_rows(X), Carried.of(Y), int(X.shape[1])
        weights = weigh_labels(labels)
        weighed = weigh_features(rows, n_features) if choice.cuts == "clusters" else None
        n_trees = max(1, round(_share_of_trees(choice) * self.n_trees))

        def grow(number: int) -> Any:
            rng = np.random.default_rng([self.seed, number])
            drawn = _draw_documents(rng, X.shape[0], self.max_documents)
            seed, sizes = int(rng.integers(2**63)), (choice.min_split, self.min_leaf)
            if weighed is None:
                share = float(choice.share)
                return grow_tree(rows, labels, n_features, drawn, weights, *sizes, share, seed)
            rarity, lengths = weighed
            seen = np.where(rng.random(n_features) < SEEN, rarity, np.float32(0))
            known = drawn, seen, lengths, weights
            return grow_clusters(rows, labels, *known, *sizes, BRANCHING, seed)

        trees: list[Any] = []
        progress.stage("growing trees", n_trees)
        while len(trees) < n_trees and not (trees and self._is_late()):
            last = min(n_trees, len(trees) + TOGETHER * n_threads())
            tasks = [(number,) for number in range(len(trees), last)]
            trees += run_tasks(grow, tasks, [1.0] * len(tasks), progress)
        return Trees.of(trees, n_features)

    def _is_late(self) -> bool:
        return self.stop_at is not None and time.monotonic() > self.stop_at

    def _choose(self, X: sp.csr_matrix, Y: sp.csr_matrix, progress: Progress) -> Choice:
        """Choose what is not given by how well trees on some documents rank labels of others."""
        given = Choice(
            self.cuts or USUAL.cuts, self.min_split or USUAL.min_split, self.share or USUAL.share
        )
        is_given = None not in (self.cuts, self.min_split)
        is_given &= self.share is not None or self.cuts == "clusters"
        if is_given or X.shape[0] < LEAST_TRIED:
            return given
        order = np.random.default_rng(self.seed).permutation(X.shape[0])
        n_held = min(HELD_OUT, len(order) // 4)
        held, kept = np.sort(order[:n_held]), np.sort(order[n_held : n_held + TRIED])
        documents = take_rows(X, kept), Y[kept], take_rows(X, held), Y[held]
        progress.stage("choosing how to grow trees", TRIAL_TREES * 3)

        def judge(choice: Choice) -> Choice:
            return self._try(choice, *documents, progress)

        clusters = None
        if self._may_cluster(X):
            clusters = judge(given._replace(cuts="clusters"))
        if self.cuts == "clusters" and clusters is not None:
            return clusters
        features = self._choose_share(judge(given._replace(cuts="features")), judge)
        if clusters is not None and clusters.score >= features.score + MORE_WORTH:
            return clusters
        return features

    def _may_cluster(self, X: sp.csr_matrix) -> bool:
        """Whether trees may be of clusters."""
        return self.cuts == "clusters" or (self.cuts is None and X.nnz <= MOST_VALUES)

    def _choose_share(self, usual: Choice, judge: Callable[[Choice], Choice]) -> Choice:
        """Try shares from the usual one upwards or downwards, as long as they gain."""
        if self.share is not None:
            return usual
        best, place = usual, SHARES.index(USUAL.share)
        for others in (SHARES[place + 1 :], SHARES[:place][::-1]):
            for share in others:
                tried = judge(usual._replace(share=share))
                if tried.score < best.score + WORTH:
                    break
                best = tried
            if best is not usual:
                break
        return best

    def _try(
        self,
        choice: Choice,
        X: sp.csr_matrix,
        Y: sp.csr_matrix,
        X_held: sp.csr_matrix,
        Y_held: sp.csr_matrix,
        progress: Progress,
    ) -> Choice:
        """Return how many documents a node should have to be split, if all else is so."""
        splits = SPLITS if self.min_split is None else (self.min_split,)
        n_trees = min(TRIAL_TREES / _share_of_trees(choice), self.n_trees)
        trial = self.with_parameters(n_trees=round(n_trees))
        trees = trial._grow(X, Y, choice._replace(min_split=splits[0]), progress)
        k = min(5, Y.shape[1])

        def judge(min_split: int) -> Choice:
            top = rank_found(find_labels(X_held, trees, Carried.of(Y), min_split), k)
            score = evaluate_documents(top, Y_held, k=k)[f"nDCG@{k}"].percent()
            return choice._replace(min_split=min_split, score=score)

        found = [judge(min_split) for min_split in splits]
        best = max(choice.score for choice in found)
        alike = [choice for choice in found if choice.score >= best - ALIKE]
        return max(alike, key=lambda choice: choice.min_split)

    @property
    def choices(self) -> dict[str, Any]:
        """How trees were grown."""
        cuts, min_split, share, _ = self.choice_
        return {"cuts": cuts, "min_split": min_split, "share": share}

    def describe_training(self) -> Sequence[str]:
        """Say how trees were grown, where that was chosen from the data."""
        if None not in (self.cuts, self.min_split, self.share):
            return []
        by = f"the best of {self.choice_.share:.0%} of their features"
        if self.choice_.cuts == "clusters":
            by = f"which of {BRANCHING} clusters of them is the most similar"
        return [f"Chosen: a node of {self.choice_.min_split} documents or more is split, by {by}"]

    def needs_of(self, X: sp.csr_matrix, Y: sp.csr_matrix, device_type: str) -> Needs:
        """Return what growing takes: room for a tree in each thread, and all trees."""
        n, n_features = X.shape
        part, share = min(1.0, self.max_documents / max(1, n)), max(self.share or 0, LARGEST_SHARE)
        cells = int(part * share * (BYTES_A_CELL * X.nnz + 32 * min(n_features, X.nnz)))
        each = cells + 4 * n_features + 16 * Y.shape[1] + 9 * n + 40 * int(part * n)
        if self._may_cluster(X):
            each += 4 * BRANCHING * (n_features + 2 * Y.shape[1])
        growing = min(n_threads(), self.n_trees) * each
        is_copied = not is_mapped(X) and bool((np.diff(Y.indptr) == 0).any())
        rows = 8 * is_copied * (X.nnz + Y.nnz) + 12 * n
        return (Stage({"trees": 2 * self.kept_of(X, Y), "growing": growing, "rows": rows}),)

    def kept_of(self, X: sp.csr_matrix, Y: sp.csr_matrix) -> int:
        """Return what the trees take: numbers of documents, and nodes for each few of them.

        Nodes of clusters hold some of the features of their documents.
        """
        n = min(self.max_documents, X.shape[0])
        few = max(2.0, (self.min_split or USUAL.min_split) / 4)
        nodes = n * (BYTES_A_NODE + 8) / few
        if self._may_cluster(X):
            nodes = max(nodes, FEWER * 8 * SEEN * X.nnz * n / max(1, X.shape[0]))
        return int(self.n_trees * (4 * n + nodes)) + 8 * Y.nnz

    # -- predicting ---------------------------------------------------------------------------

    def read_rows(self, X: sp.csr_matrix) -> Found:
        """Find the labels that stand in the leaves of each document."""
        return find_labels(X, self.trees_, Carried.of(self.Y_))

    def predict_rows(self, X: Found, k: int) -> TopK:
        """Rank these labels; those that no leaf has follow by frequency."""
        return fill_labels(rank_found(X, k), self.training_counts_.by_frequency)

    def score_rows(self, X: Found, candidates: Ids) -> Floats:
        """Look the candidates up; without any vote, it is 0."""
        return look_up_found(X, candidates, self.Y_.shape[1])

    # -- explaining ---------------------------------------------------------------------------

    def explain(
        self, document: str | sp.spmatrix | sp.sparray, label: str | None = None
    ) -> Explanation:
        """Show what scores lose without each word or feature, and the most similar documents."""
        found = super().explain(document, label)
        X = self._rows_of([document] if isinstance(document, str) else document)
        chosen = None if label is None else self._find_label(label)
        return replace(found, neighbours=self.find_similar(X, chosen))

    def find_similar(self, X: sp.csr_matrix, label: int | None) -> Sequence[Neighbour]:
        """Return the documents in most of the same leaves, with the share of trees.

        Of a label, those that carry it come first, then some that do not.
        """
        shares = self._share_leaves(X)
        order = np.argsort(-shares, kind="stable")
        order = order[shares[order] > 0]
        if label is not None:
            carries = np.isin(order, find_carriers(self.Y_, label))
            own, others = order[carries], order[~carries]
            order = np.concatenate([own[: SHOWN - AGAINST], others[:AGAINST]])
        return [self._show(int(i), float(shares[i])) for i in order[:SHOWN]]

    def _share_leaves(self, X: sp.csr_matrix) -> NDArray[np.float64]:
        """Return (n,) the share of trees in which each document is in the leaf of the one row."""
        trees = self.trees_
        leaves = find_leaves(X, trees)[0]
        parts = [trees.documents[trees.borders[i] : trees.borders[i + 1]] for i in leaves]
        return np.bincount(np.concatenate(parts), minlength=self.Y_.shape[0]) / trees.n_trees

    def _show(self, i: int, similarity: float) -> Neighbour:
        """Return one of the documents as it is shown."""
        names = tuple(self.label_names_[each] for each in self.Y_[i].indices.tolist())
        return Neighbour(number=int(self.numbers_[i]), similarity=similarity, labels=names)

    def find_examples(self, label: int, n: int) -> Sequence[Neighbour]:
        """Return documents that carry the label, those with the fewest other labels first."""
        carriers = find_carriers(self.Y_, label)
        order = np.argsort(np.diff(self.Y_.indptr)[carriers], kind="stable")[:n]
        return [self._show(i, 1.0) for i in carriers[order].tolist()]

    def find_near_labels(self, label: int, n: int) -> Sequence[tuple[int, float]]:
        """Return the labels that are often on the same documents."""
        return rank_companions(self.Y_, label, n)

    # -- more documents -----------------------------------------------------------------------

    @property
    def n_kept(self) -> int:
        """How many documents lie in leaves."""
        return len(self.numbers_)

    def update_rows(
        self, X: sp.csr_matrix, Y: sp.csr_matrix, train: bool, progress: Progress
    ) -> None:
        """Let the new documents fall into leaves."""
        trees = self.trees_.add(find_leaves(X, self.trees_), len(self.numbers_))
        new = self.training_counts_.n_documents + self.added_
        self.Y_ = join_labels(self.Y_, Y)
        self.trees_ = trees
        self.numbers_ = np.concatenate([self.numbers_, new.astype(np.int32)])

    # -- saving -------------------------------------------------------------------------------

    def add_to_files(self, files: Files) -> None:
        """Add the trees and the labels of the documents in their leaves."""
        self.trees_.add_to_files(files, len(self.numbers_))
        add_matrix(files, "labels", self.Y_)
        files.arrays["numbers"] = self.numbers_
        files.config["choice"] = self.choices

    def describe(self, files: Files) -> Schema:
        """Return the schema of the trees and of what their leaves hold."""
        documents = Schema(
            config={"choice": {"cuts": Value(Cuts), "min_split": whole(2), "share": number(0, 1)}},
            arrays={"numbers": indices("n_kept", into="n_documents")._replace(empty=False)},
        )
        return documents | Trees.describe(files) | describe_matrix("labels", "n_kept")

    def restore(self, files: Files) -> None:
        """Take back what was saved."""
        self.numbers_ = files.arrays["numbers"]
        n = len(self.numbers_)
        self.Y_ = take_matrix(files, "labels", n, len(self.label_names_))
        self.trees_ = Trees.from_files(files, n, self.n_features_)
        self.choice_ = Choice(**files.config["choice"])


def _share_of_trees(choice: Choice) -> float:
    """Return how many trees of this kind there are for each that is asked for."""
    return FEWER if choice.cuts == "clusters" else 1.0


def _draw_documents(rng: np.random.Generator, n: int, most: int) -> Ids:
    """Return the documents of a tree, rising."""
    if n <= most:
        return np.arange(n, dtype=np.int32)
    return np.sort(rng.choice(n, most, replace=False)).astype(np.int32)
