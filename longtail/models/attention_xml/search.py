"""AttentionXML in prediction: from token rows to ranked labels, down the levels of the tree.

On a CPU every document is read alone: its sums then always have the same order, and its scores the
same bits, whatever other documents there are. A GPU reads documents of similar length together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from longtail.labels.tree import LabelTree
from longtail.models.attention_xml.network import AttentionXMLNetwork, Encoded
from longtail.runtime.compiled import njit
from longtail.text.tokens import TokenRows
from longtail.topk import NO_LABEL, TopK

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

BATCH = 1024  # documents that a GPU reads together, fewer if they are long or have many labels
BATCH_NUMBERS = 1 << 28  # the most numbers that these may need at once
POOL = 100  # labels of each tree of an ensemble that are compared; others count as 0


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
        found = None
        for level, net in enumerate(self.levels):
            place(net, device)
            width = k if level + 1 == len(self.levels) else self._width(level + 1, k, beam)
            found = found and found.weighed(self.path_weight)
            found = rank_nodes(net, tokens, width, device, found, self.tree.children[level])
        if found is None:
            raise ValueError("a tree without levels")
        is_label = found.nodes >= 0
        labels = np.where(is_label, self.tree.leaves[found.nodes], NO_LABEL).astype(np.int32)
        return TopK(labels, np.where(is_label, np.exp(found.logs), 0).astype(np.float32))

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
    def score(self, tokens: TokenRows, label: int, device: torch.device) -> NDArray[np.float64]:
        """Return the probability (n,) of one label in each document, found by a beam or not."""
        node = int(np.flatnonzero(self.tree.leaves == label)[0])
        logs, weight = np.zeros(tokens.n_documents), 1.0
        for level in range(self.tree.depth, 0, -1):
            net = self.levels[level - 1]
            place(net, device)
            for rows in _cut(tokens.lengths, 1, device):
                scores = net.score(read_documents(net, tokens, rows, device), net.labels[[node]])
                logs[rows] += weight * F.logsigmoid(scores[:, 0]).double().cpu().numpy()
            node = int(self.tree.parents(level)[node])
            weight *= self.path_weight
        return np.exp(logs)

    def _width(self, level: int, k: int, beam: int) -> int:
        """Return how many nodes of an inner level to keep: enough to find `k` labels below."""
        starts = self.tree.children[level]
        for below in self.tree.children[level + 1 :]:
            starts = below[starts]
        return max(beam, -(-k // int(np.diff(starts).min())))


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
        if above is None or children is None:
            logs, nodes = F.logsigmoid(net.score_all(read)).topk(width)
        else:
            parents = Beam(above.nodes[rows], above.logs[rows])
            logs, nodes = _rank_children(net, read, parents, children, width)
        found.nodes[rows, : nodes.shape[1]] = nodes.cpu().numpy()
        found.logs[rows, : nodes.shape[1]] = logs.cpu().numpy()
    return found


def _rank_children(
    net: AttentionXMLNetwork, read: Encoded, parents: Beam, children: Ints, width: int
) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the best children's probabilities, and the children."""
    device = read.tokens.device
    listed, owners = list_children(children, parents.nodes)
    nodes, parent = torch.from_numpy(listed).to(device), torch.from_numpy(owners).to(device)
    scores = net.score(read, net.labels[nodes.clamp_min(0)]).float()  # (B, C)
    total = F.logsigmoid(scores) + torch.from_numpy(parents.logs).to(device).gather(1, parent)
    total = total.masked_fill(nodes < 0, -torch.inf)
    best, places = total.topk(min(width, total.shape[1]))
    return best, nodes.gather(1, places)


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
        most = BATCH_NUMBERS // max(per_document, 1024 * int(lengths[order[first]]))
        size = 1 if device.type == "cpu" else int(np.clip(most, 1, BATCH))
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


def mean_of(tops: Sequence[TopK], k: int) -> TopK:
    """Return the labels with the largest mean scores; one that a tree lacks counts as 0 there."""
    if len(tops) == 1:
        return TopK(tops[0].labels[:, :k], tops[0].scores[:, :k])
    n = len(tops[0])
    labels = np.hstack([top.labels for top in tops]).astype(np.int64)  # (n, trees·pool)
    scores = np.hstack([top.scores for top in tops]).astype(np.float64)
    order = np.argsort(labels, axis=1, kind="stable")
    labels, scores = np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
    sums = scores.copy()
    for step in range(1, len(tops)):  # a tree names a label at most once
        same = labels[:, :-step] == labels[:, step:]
        sums[:, :-step] += np.where(same, scores[:, step:], 0)
    is_first = np.ones((n, labels.shape[1]), bool)
    is_first[:, 1:] = labels[:, 1:] != labels[:, :-1]
    sums = np.where(is_first & (labels != NO_LABEL), sums / len(tops), -1)
    best = np.argsort(-sums, axis=1, kind="stable")[:, :k]
    found, means = np.take_along_axis(labels, best, 1), np.take_along_axis(sums, best, 1)
    is_label = means >= 0
    return TopK(
        np.where(is_label, found, NO_LABEL).astype(np.int32),
        np.where(is_label, means, 0).astype(np.float32),
    )
