"""The label graph against a slow count of pairs, walks along its edges, vectors from them."""

import builtins
from threading import Thread

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.errors import MissingExtraError
from longtail.labels.graph import (
    END,
    Walks,
    build_graph,
    connect,
    draw_orthogonal,
    embed_labels,
    walk,
    whiten_vectors,
)
from longtail.progress import OutOfTimeError, Silent
from longtail.runtime.parallel import set_threads

SETTINGS = {"n_walks": 20, "length": 10, "window": 2}


@pytest.fixture
def Y():
    """60 documents and 9 labels; label 7 is always alone, label 8 has no document."""
    rng = np.random.default_rng(0)
    Y = (rng.random((60, 9)) < 0.25).astype(np.float32)
    Y[:, 7:] = 0
    Y[-5:] = 0
    Y[-5:, 7] = 1
    return Y


def edges_of(graph):
    """Return {(label, other): weight}."""
    edges = {}
    for label in range(graph.n_labels):
        before = 0.0
        for edge in range(graph.start[label], graph.start[label + 1]):
            edges[label, int(graph.ends[edge])] = graph.reach[edge] - before
            before = graph.reach[edge]
    return edges


def literal_edges(Y, weighted):
    edges = {}
    for row in Y:
        carried = np.flatnonzero(row).tolist()
        for one in carried:
            for other in carried:
                if one != other:
                    edges[one, other] = edges.get((one, other), 0) + 1
    return edges if weighted else dict.fromkeys(edges, 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_edges_join_labels_of_one_document(Y, weighted, threads):
    set_threads(threads)
    try:
        graph = build_graph(sp.csr_matrix(Y), weighted=weighted)
    finally:
        set_threads(None)
    assert edges_of(graph) == literal_edges(Y, weighted)
    assert graph.degrees[7] == graph.degrees[8] == 0


def test_many_edges_and_one_label():
    Y = sp.csr_matrix(np.ones((2, 1500), np.float32))
    assert len(build_graph(Y).ends) == 1500 * 1499
    assert len(build_graph(sp.csr_matrix(np.ones((3, 1), np.float32))).ends) == 0


def test_given_pairs_are_edges_in_both_directions():
    graph = connect(np.array([[0, 1], [1, 2], [1, 0], [3, 3]]), 5)
    assert edges_of(graph) == {(0, 1): 1, (1, 0): 1, (1, 2): 1, (2, 1): 1}


@pytest.mark.parametrize("weighted", [False, True])
def test_walks_follow_edges_as_often_as_they_weigh(Y, weighted):
    graph = build_graph(sp.csr_matrix(Y), weighted=weighted)
    edges = literal_edges(Y, weighted)
    walks = walk(graph, np.zeros(4000, np.int32), 6, seed=3, first=0)
    assert walks.shape == (4000, 6)
    steps = np.stack([walks[:, :-1].ravel(), walks[:, 1:].ravel()], axis=1)
    assert {tuple(step) for step in steps.tolist()} <= set(edges)
    second = np.bincount(walks[:, 1], minlength=9) / 4000
    total = sum(weight for (one, _), weight in edges.items() if one == 0)
    expected = [edges.get((0, other), 0) / total for other in range(9)]
    np.testing.assert_allclose(second, expected, atol=0.03)


def test_a_walk_that_cannot_leave_ends(Y):
    walks = walk(build_graph(sp.csr_matrix(Y)), np.array([7, 8]), 3, seed=0, first=0)
    assert walks.tolist() == [[7, END, END], [8, END, END]]


def test_walks_depend_on_the_seed_alone(Y):
    graph = build_graph(sp.csr_matrix(Y))
    starts = np.tile(np.arange(7), 30)
    alone = walk(graph, starts, 8, seed=1, first=0)
    set_threads(3)
    try:
        assert np.array_equal(walk(graph, starts, 8, seed=1, first=0), alone)
    finally:
        set_threads(None)
    assert np.array_equal(walk(graph, starts[50:], 8, seed=1, first=50), alone[50:])
    assert not np.array_equal(walk(graph, starts, 8, seed=2, first=0), alone)


def test_walks_are_read_as_words_and_leave_lonely_labels_out(Y):
    walks = Walks(build_graph(sp.csr_matrix(Y)), n_walks=3, length=5, seed=0)
    sentences = list(walks)
    assert len(sentences) == len(walks) == 21
    assert [[int(word) for word in line] for line in sentences] == np.vstack(
        list(walks.blocks())
    ).tolist()
    assert sorted(int(line[0]) for line in sentences[:7]) == list(range(7))
    counts = np.bincount([int(word) for line in sentences for word in line], minlength=9)
    assert np.array_equal(walks.count(), counts)


def test_labels_that_go_together_get_similar_vectors():
    pytest.importorskip("gensim")
    rng = np.random.default_rng(0)
    Y = np.zeros((400, 12), np.float32)
    for i in range(400):
        Y[i, 6 * (i % 2) + rng.choice(6, 3, replace=False)] = 1
    graph = build_graph(sp.csr_matrix(Y))
    V = embed_labels(graph, 8, n_walks=100, length=20, window=3, whiten=0.0)
    cosines = V @ V.T
    assert cosines[:6, :6].mean() > cosines[:6, 6:].mean() + 0.3


@pytest.mark.parametrize(("options", "share"), [({}, 0), ({"subsample": 0.01}, 0.01)])
def test_frequent_labels_stay_in_the_walks_unless_they_are_to_be_thinned_out(
    options, share, monkeypatch
):
    """In a star every other step is at its centre. word2vec keeps √(t/f) + t/f of share f."""
    models = pytest.importorskip("gensim.models")
    made, plain = [], models.Word2Vec

    def make(**settings):
        made.append(plain(**settings))
        return made[0]

    monkeypatch.setattr(models, "Word2Vec", make)
    star = connect(np.array([(0, leaf) for leaf in range(1, 41)]), 41)
    embed_labels(star, 4, n_walks=2, length=20, window=2, **options)
    kept = made[0].wv.get_vecattr("0", "sample_int") / (2**32 - 1)
    assert kept == pytest.approx((share / 0.5) ** 0.5 + share / 0.5 if share else 1, rel=0.01)


def test_every_label_gets_a_unit_vector_and_the_seed_decides(Y):
    pytest.importorskip("gensim")
    graph = build_graph(sp.csr_matrix(Y))
    V, again, other = (embed_labels(graph, 16, **SETTINGS, seed=seed) for seed in (1, 1, 2))
    assert V.shape == (9, 16)
    assert V.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(V, axis=1), 1, rtol=1e-5)
    assert np.array_equal(V, again)
    assert not np.array_equal(V, other)
    assert abs(V[7] @ V[8]) < 0.9  # two lonely labels are not the same


@pytest.mark.parametrize("error", [OutOfTimeError("time is over"), MemoryError("full")])
def test_what_ends_the_walks_ends_learning(Y, error):
    pytest.importorskip("gensim")

    class Ending(Silent):
        def advance(self, amount):
            raise error

    raised = []

    def learn():
        try:
            embed_labels(
                build_graph(sp.csr_matrix(Y)), 8, n_walks=2, length=5, window=2, progress=Ending()
            )
        except BaseException as ended:
            raised.append(ended)

    thread = Thread(target=learn, daemon=True)  # which waited for ever
    thread.start()
    thread.join(60)
    assert raised == [error]


def test_a_graph_without_edges_needs_no_walks():
    graph = build_graph(sp.csr_matrix(np.eye(4, dtype=np.float32)))
    np.testing.assert_array_equal(
        embed_labels(graph, 5, **SETTINGS, seed=3), draw_orthogonal(4, 5, 3)
    )


def test_whitening_makes_all_directions_equally_long():
    rng = np.random.default_rng(0)
    V = (rng.normal(size=(200, 4)) * [9, 3, 1, 0.5] + [5, 0, 0, 0]).astype(np.float32)
    white = whiten_vectors(V, 1.0)
    spread = np.linalg.eigvalsh(white.T @ white)
    np.testing.assert_allclose(spread, spread.mean(), rtol=1e-3)
    assert np.array_equal(whiten_vectors(V, 0.0), V)
    centred = V - V.mean(axis=0)
    np.testing.assert_allclose(
        np.linalg.norm(white), 200**0.5 * np.linalg.norm(centred, axis=1).mean(), rtol=1e-3
    )


@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
def test_with_few_labels_whitening_shrinks_the_cosines_of_different_ones(share):
    """(1 - share)·cosine + share·[same], but for the one direction that their mean took away."""
    rng = np.random.default_rng(0)
    V = (rng.normal(size=(6, 40)) + rng.normal(size=40)).astype(np.float32)
    centred = V - V.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    cosines = (centred / lengths) @ (centred / lengths).T
    alike = 6 / 5 * (cosines @ np.linalg.pinv(cosines, rcond=1e-4))
    found = whiten_vectors(V, share) / lengths.mean()
    np.testing.assert_allclose(
        found @ found.T, (1 - share) * cosines + share * alike, rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(alike, np.eye(6), atol=0.3)


def test_orthogonal_directions_are_orthogonal_as_far_as_there_are_dimensions():
    few = draw_orthogonal(5, 8, seed=0)
    np.testing.assert_allclose(few @ few.T, np.eye(5), atol=1e-5)
    many = draw_orthogonal(20, 8, seed=0)
    np.testing.assert_allclose(many[8:16] @ many[8:16].T, np.eye(8), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1, rtol=1e-5)
    assert not np.array_equal(draw_orthogonal(5, 8, seed=1), few)


def test_without_gensim_the_command_is_named(Y, monkeypatch):
    true_import = builtins.__import__

    def no_gensim(name, *args, **kwargs):
        if name.startswith("gensim"):
            raise ImportError(name)
        return true_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_gensim)
    with pytest.raises(MissingExtraError) as caught:
        embed_labels(build_graph(sp.csr_matrix(Y)), 4, **SETTINGS)
    assert str(caught.value) == (
        "Label vectors from walks need gensim, which is not installed; "
        "install it with: pip install '.[deep]'"
        ", in the folder with longtail's source"
    )
