"""AttentionXML's scores of given nodes for one document on a CPU, each with bits of its own.

A product of matrices rounds by how many labels take part in it. A prediction finds its labels by
such products, and then scores those that it has found by the sums here, as it does for labels
that somebody asks about: so a label has the same score in both.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from longtail.models.attention_xml.network import AttentionXMLNetwork, Encoded
from longtail.runtime.compiled import njit

Floats = NDArray[np.float32]
Layer = tuple[Floats, Floats]

REORDERED = {"reassoc", "contract", "nsz"}  # sums in the lanes of a vector, the same ones always


def score_document(
    net: AttentionXMLNetwork, read: Encoded, nodes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the logarithms (c,) of the probabilities of nodes; `read` is one document."""
    rows = _array(net.labels)
    values = _array(read.values)[0]
    if net.output is None:
        scores = _compare(values, rows, nodes)
    else:
        hidden, direct = _attend(_array(read.tokens)[0], values, rows, nodes)
        for weight, bias in _inner_layers(net):
            hidden = _apply(hidden, weight, bias)
        scores = _compare(_array(net.output.weight)[0], hidden, np.arange(len(nodes)))
        scores += _array(net.output.bias)[0]
        if net.shape.direct:
            scores += direct
    exact = scores.astype(np.float64)
    return np.minimum(exact, 0) - np.log1p(np.exp(-np.abs(exact)))


def _inner_layers(net: AttentionXMLNetwork) -> Sequence[Layer]:
    """Return weights and biases of the fully connected layers behind the attention."""
    layers = (cast(torch.nn.Linear, layer) for layer in net.layers[1:])
    return [(_array(layer.weight), _array(layer.bias)) for layer in layers]


def _array(tensor: torch.Tensor) -> Floats:
    array: Floats = tensor.detach().numpy()
    return array


@njit(nogil=True, cache=True, fastmath=REORDERED)
def _multiply(a: Floats, b: Floats) -> np.float32:
    total = np.float32(0)
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@njit(nogil=True, cache=True)
def _compare(vector: Floats, rows: Floats, nodes: NDArray[np.int64]) -> Floats:
    """Return the product of the vector with each of these rows."""
    products = np.empty(len(nodes), np.float32)
    for j in range(len(nodes)):
        products[j] = _multiply(vector, rows[nodes[j]])
    return products


@njit(nogil=True, cache=True)
def _attend(
    tokens: Floats, values: Floats, rows: Floats, nodes: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Return what nodes have seen, (c, N_fc) after the ReLU, and m_j·w_j (c,), by equation (2)."""
    hidden = np.zeros((len(nodes), values.shape[1]), np.float32)
    direct = np.zeros(len(nodes), np.float32)
    matches, weights = np.empty(len(tokens), np.float32), np.empty(len(tokens), np.float32)
    for j in range(len(nodes)):
        for i in range(len(tokens)):
            matches[i] = _multiply(tokens[i], rows[nodes[j]])
        highest, total = matches.max(), np.float32(0)
        for i in range(len(tokens)):
            weights[i] = np.exp(matches[i] - highest)
            total += weights[i]
        seen = hidden[j]
        for i in range(len(tokens)):
            weights[i] /= total
            for channel in range(len(seen)):
                seen[channel] += weights[i] * values[i, channel]
        direct[j] = _multiply(weights, matches)
        for channel in range(len(seen)):
            seen[channel] = max(seen[channel], np.float32(0))
    return hidden, direct


@njit(nogil=True, cache=True)
def _apply(hidden: Floats, weight: Floats, bias: Floats) -> Floats:
    """Return what a layer with a ReLU makes of each row."""
    found = np.empty((len(hidden), len(weight)), np.float32)
    for j in range(len(hidden)):
        for out in range(len(weight)):
            total = _multiply(weight[out], hidden[j]) + bias[out]
            found[j, out] = max(total, np.float32(0))
    return found
