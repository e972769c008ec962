"""AttentionXML in prediction: from token rows to ranked labels, down the levels of the tree.

On a CPU every document is labelled alone: its sums then always have the same order, and its scores
the same bits, whatever other documents there are, and whether its labels are searched for or given
(`scoring.py`). A GPU, and training, which looks for candidates, read documents of similar length
together, and round by what is together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from longtail.labels.tree import LabelTree
from longtail.models.attention_xml.network import AttentionXMLNetwork, Encoded
from longtail.models.attention_xml.scoring import score_document
from longtail.runtime.compiled import njit
from longtail.runtime.parallel import cut, in_threads
from longtail.text.tokens import TokenRows
from longtail.topk import NO_LABEL, TopK
from longtail.training.threads import on_one_thread

Result = TypeVar("Result")
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

CPU = torch.device("cpu")
# Documents that are read together, and the most numbers that they may need at once.
BATCH = {"cpu": 64, "cuda": 1024}
BATCH_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 28}
TOGETHER = 16  # documents that a thread of a CPU takes at a time
POOL = 100  # labels of each tree of an ensemble that are compared


class Beam(NamedTuple):
    """The best nodes of a level for each document, −1 where there are fewer, best first.

    Attributes:
        nodes: (n, width) their numbers.
        logs: (n, width) the logarithms of their probabilities, products along the path (1).
    """

    nodes: Ints
    logs: Floats

    def weighed(self, weight: float) -> "Beam":
        """Return the same nodes as they count for those below: with a weight in the exponent."""
        logs = weight * np.where(self.nodes >= 0, self.logs, 0)
        return Beam(self.nodes, logs.astype(np.float32))


@dataclass(frozen=True)
class ProbabilisticLabelTree:
    """The paper's PLT: a label tree and the networks of its levels, top down.

    An ensemble has several of them.

    Attributes:
        tree: its nodes.
        levels: a network for each level.
        path_weight: the exponent of the nodes above in the score of a node; 1 gives (1).
    """

    tree: LabelTree
    levels: Sequence[AttentionXMLNetwork]
    path_weight: float = 1.0

    def search(self, tokens: TokenRows, k: int, beam: int, device: torch.device) -> TopK:
        """Return the `k` best labels that a beam search finds; no row of tokens may be empty."""
        for net in self.levels:
            place(net, device)
        if device.type == "cpu":
            rows = range(tokens.n_documents)
            return _stack(_one_by_one(lambda i: self._search_alone(tokens, i, k, beam), rows), k)
        beam_above = None
        for level, net in enumerate(self.levels):
            width = self._width(level + 1, k, beam)
            beam_above = beam_above and beam_above.weighed(self.path_weight)
            beam_above = rank_nodes(
                net, tokens, width, device, beam_above, self.tree.children[level]
            )
        if beam_above is None:
            raise ValueError("a tree without levels")
        nodes, is_label = beam_above.nodes, beam_above.nodes >= 0
        labels = np.where(is_label, self.tree.leaves[nodes], NO_LABEL).astype(np.int32)
        return TopK(labels, np.where(is_label, np.exp(beam_above.logs), 0).astype(np.float32))

    @torch.no_grad()
    def _search_alone(self, tokens: TokenRows, row: int, k: int, beam: int) -> tuple[Ints, Floats]:
        """Search for one document on a CPU; score what is found as `score` does."""
        read, above = [], None
        for level, net in enumerate(self.levels):
            read.append(read_documents(net, tokens, np.array([row]), CPU))
            width = min(self._width(level + 1, k, beam), net.shape.n_nodes)
            above = above and above.weighed(self.path_weight)
            logs, nodes = _rank_read(net, read[-1], width, above, self.tree.children[level])
            above = Beam(nodes.numpy().astype(np.int32), logs.numpy())
        if above is None:
            raise ValueError("a tree without levels")
        labels = self.tree.leaves[above.nodes[0][above.nodes[0] >= 0]]
        scores = self._score_read(read, labels)
        order = np.argsort(-scores, kind="stable")
        return labels[order], scores[order]

    @torch.no_grad()
    def attention(
        self, tokens: TokenRows, labels: NDArray[np.int32], device: torch.device
    ) -> NDArray[np.float64]:
        """Return how much each token of the one document weighs for each label, (T, n)."""
        net = self.levels[-1]
        place(net, device)
        places = np.argsort(self.tree.leaves)[labels]
        read = read_documents(net, tokens, np.zeros(1, np.int64), device)
        rows = net.labels[torch.from_numpy(places).to(device)]
        return net.attend(read, rows)[0].double().cpu().numpy()

    @torch.no_grad()
    def score(self, tokens: TokenRows, labels: Ints, device: torch.device) -> Floats:
        """Return the probabilities (n, c) of labels of each document, found by a beam or not.

        A label of -1 is none and gets 0; no row of tokens may be empty.
        """
        scores = np.zeros(labels.shape, np.float32)
        for net in self.levels:
            place(net, device)
        if device.type != "cpu":
            return np.where(labels >= 0, self._score_together(tokens, labels, device), scores)
        rows = np.flatnonzero((labels >= 0).any(axis=1)).tolist()
        found = _one_by_one(lambda i: self._score_alone(tokens, i, labels[i][labels[i] >= 0]), rows)
        for row, own in zip(rows, found, strict=True):
            scores[row, labels[row] >= 0] = own
        return scores

    @torch.no_grad()
    def _score_alone(self, tokens: TokenRows, row: int, labels: Ints) -> Floats:
        """Score labels (c,) of one document on a CPU."""
        read = [read_documents(net, tokens, np.array([row]), CPU) for net in self.levels]
        return self._score_read(read, labels)

    def _score_read(self, read: Sequence[Encoded], labels: Ints) -> Floats:
        """Return the probabilities (c,) of labels; `read` is one document at each level."""
        logs = np.zeros(len(labels))
        for net, own, nodes in zip(self.levels, read, self._paths, strict=True):
            logs = self.path_weight * logs + score_document(net, own, nodes[labels])
        return np.exp(logs).astype(np.float32)

    def _score_together(self, tokens: TokenRows, labels: Ints, device: torch.device) -> Floats:
        """Score on a GPU, documents of similar length together."""
        logs = np.zeros(labels.shape, np.float32)
        for net, nodes in zip(self.levels, self._paths, strict=True):
            per_document = labels.shape[1] * net.labels.shape[1]
            for rows in _cut(tokens.lengths, per_document, device):
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    read = read_documents(net, tokens, rows, device)
                asked = torch.from_numpy(nodes[np.maximum(labels[rows], 0)]).to(device)
                scores = F.logsigmoid(net.score(read, net.labels[asked]).float())
                logs[rows] = self.path_weight * logs[rows] + scores.cpu().numpy()
        return np.exp(logs)

    @cached_property
    def _paths(self) -> Sequence[NDArray[np.int64]]:
        """The node (n_labels,) above each label at every level, top down; the last is its own."""
        nodes = np.empty(self.tree.n_labels, np.int64)
        nodes[self.tree.leaves] = np.arange(self.tree.n_labels)
        paths = [nodes]
        for level in range(self.tree.depth, 1, -1):
            paths.insert(0, self.tree.parents(level)[paths[0]].astype(np.int64))
        return paths

    def _width(self, level: int, k: int, beam: int) -> int:
        """Return how many nodes of a level to keep: of an inner one, enough for `k` labels."""
        if level == len(self.levels):
            return k
        starts = self.tree.children[level]
        for below in self.tree.children[level + 1 :]:
            starts = below[starts]
        return max(beam, -(-k // int(np.diff(starts).min())))


def _one_by_one(label: Callable[[int], Result], rows: Sequence[int]) -> list[Result]:
    """Call a function for each document, on several threads; torch takes one for each document."""

    def label_some(first: int, last: int) -> list[Result]:
        with on_one_thread():
            return [label(row) for row in rows[first:last]]

    borders = cut(len(rows), max(1, -(-len(rows) // TOGETHER)))
    return [each for some in in_threads(label_some, list(pairwise(borders))) for each in some]


_placing = Lock()


def place(net: AttentionXMLNetwork, device: torch.device) -> None:
    """Bring a network to the device once, as threads that predict at the same time share it."""
    with _placing:
        if net.training or net.labels.device != device:
            net.settle(device)


@torch.no_grad()
def rank_nodes(
    net: AttentionXMLNetwork,
    tokens: TokenRows,
    width: int,
    device: torch.device,
    above: Beam | None = None,
    children: Ints | None = None,
) -> Beam:
    """Return the best nodes of one level among the children of those above, or among all.

    The network must be on the device already.
    """
    n, width = tokens.n_documents, min(width, net.shape.n_nodes)
    found = Beam(np.full((n, width), -1, np.int32), np.full((n, width), -np.inf, np.float32))
    per_document = net.shape.n_nodes
    if above is not None and children is not None:
        most = above.nodes.shape[1] * int(np.diff(children).max())
        per_document = min(per_document, most) * net.labels.shape[1]
    for rows in _cut(tokens.lengths, per_document, device):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            read = read_documents(net, tokens, rows, device)
        parents = None if above is None else Beam(above.nodes[rows], above.logs[rows])
        logs, nodes = _rank_read(net, read, width, parents, children)
        found.nodes[rows, : nodes.shape[1]] = nodes.cpu().numpy()
        found.logs[rows, : nodes.shape[1]] = logs.cpu().numpy()
    return found


def _rank_read(
    net: AttentionXMLNetwork, read: Encoded, width: int, parents: Beam | None, children: Ints | None
) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the best nodes' probabilities, and the nodes."""
    if parents is None or children is None:
        return F.logsigmoid(net.score_all(read)).topk(width)
    device = read.tokens.device
    listed, owners = list_children(children, parents.nodes)
    nodes, parent = torch.from_numpy(listed).to(device), torch.from_numpy(owners).to(device)
    scores = net.score(read, net.labels[nodes.clamp_min(0)]).float()  # (B, C)
    total = F.logsigmoid(scores) + torch.from_numpy(parents.logs).to(device).gather(1, parent)
    total = total.masked_fill(nodes < 0, -torch.inf)
    best, places = total.topk(min(width, total.shape[1]))
    return best, nodes.gather(1, places)


def _stack(found: Sequence[tuple[Ints, Floats]], k: int) -> TopK:
    """Return the lists of single documents as one, filled up to `k` with no labels."""
    top = TopK(np.full((len(found), k), NO_LABEL, np.int32), np.zeros((len(found), k), np.float32))
    for i, (labels, scores) in enumerate(found):
        top.labels[i, : len(labels)], top.scores[i, : len(labels)] = labels, scores
    return top


def read_documents(
    net: AttentionXMLNetwork, tokens: TokenRows, rows: NDArray[np.int64], device: torch.device
) -> Encoded:
    """Encode some documents, the longest first."""
    ids, lengths = tokens.pad(rows)
    words = net.read_words(torch.from_numpy(ids).to(device))
    return net.encode(words, torch.from_numpy(lengths).to(device))


def _cut(
    lengths: NDArray[np.int64], per_document: int, device: torch.device
) -> Iterator[NDArray[np.int64]]:
    """Yield the documents to read together, the longest first."""
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < len(order):
        most = BATCH_NUMBERS[device.type] // max(per_document, 1024 * int(lengths[order[first]]))
        size = int(np.clip(most, 1, BATCH[device.type]))
        yield order[first : first + size]
        first += size


@njit(nogil=True, cache=True)
def list_children(
    starts: NDArray[np.int32], parents: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the children (n, C) of each row's parents, −1 behind, and whose they are."""
    most = 1
    for i in range(len(parents)):
        size = 0
        for j in range(parents.shape[1]):
            if parents[i, j] >= 0:
                size += starts[parents[i, j] + 1] - starts[parents[i, j]]
        most = max(most, size)
    most = (most + 7) // 8 * 8  # tensor cores are slow with rows of other lengths
    nodes = np.full((len(parents), most), -1, np.int64)
    owners = np.zeros((len(parents), most), np.int64)
    for i in range(len(parents)):
        place = 0
        for j in range(parents.shape[1]):
            if parents[i, j] >= 0:
                for child in range(starts[parents[i, j]], starts[parents[i, j] + 1]):
                    nodes[i, place] = child
                    owners[i, place] = j
                    place += 1
    return nodes, owners


def unite(tops: Sequence[TopK]) -> Ints:
    """Return the labels (n, c) in any tree's list of each document, each once; -1 is none."""
    labels = np.sort(np.hstack([top.labels for top in tops]), axis=1)
    labels[:, 1:][labels[:, 1:] == labels[:, :-1]] = NO_LABEL
    return labels


def mean_of(scores: Sequence[Floats]) -> Floats:
    """Return the mean of what the trees say, tree by tree, so that batches change nothing."""
    total = np.zeros(scores[0].shape)
    for own in scores:
        total += own
    return (total / len(scores)).astype(np.float32)


def pick(labels: Ints, scores: Floats, k: int) -> TopK:
    """Return the `k` labels of each document with the highest scores, of equal ones the lowest."""
    given = np.where(labels >= 0, scores, -1)
    order = np.argsort(-given, axis=1, kind="stable")[:, :k]
    found, best = np.take_along_axis(labels, order, 1), np.take_along_axis(given, order, 1)
    is_label = best >= 0
    return TopK(
        np.where(is_label, found, NO_LABEL).astype(np.int32),
        np.where(is_label, best, 0).astype(np.float32),
    )
