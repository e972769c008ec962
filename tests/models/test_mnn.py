"""The equations of the MNN paper against literal versions, and what its model promises."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset

torch = pytest.importorskip("torch")

from longtail import Dataset, evaluate, load_model  # noqa: E402
from longtail.errors import MissingExtraError, ModelFileError, ParameterError  # noqa: E402
from longtail.models import neural  # noqa: E402
from longtail.models.embedder import embed_rows  # noqa: E402
from longtail.models.mnn import network as module  # noqa: E402
from longtail.models.mnn.model import MNN  # noqa: E402
from longtail.models.mnn.network import (  # noqa: E402
    LabelSets,
    MNNNetwork,
    choose_ranking,
    cosines,
    drop_features,
    find_hardest,
    graded_loss,
    hardest_loss,
    negative_loss,
    overlap,
    positive_loss,
    softmax_loss,
)
from longtail.runtime.quantized import QuantizedRows  # noqa: E402
from longtail.runtime.rows import view_rows  # noqa: E402
from longtail.runtime.store import read_folder, write_folder  # noqa: E402
from longtail.search.index import Index  # noqa: E402
from longtail.training.layers import SparseBatch  # noqa: E402

SMALL = {"dim": 16, "learning_rate": 0.01, "device": "cpu"}
FIXED = {"rank": "neighbours", "n_neighbours": 10, "temperature": 0.1}


def random_matrix(n, width, share, seed=0):
    rng = np.random.default_rng(seed)
    matrix = rng.random((n, width)) * (rng.random((n, width)) < share)
    return matrix.astype(np.float32)


def cells_of(matrix):
    rows = view_rows(sp.csr_matrix(matrix))
    return SparseBatch.of(rows, np.arange(len(matrix)), matrix.shape[1])


@pytest.fixture
def Y():
    """9 documents and 7 labels; documents 1 and 4 carry the same ones, document 8 none."""
    Y = (np.random.default_rng(0).random((9, 7)) < 0.4).astype(np.float32)
    Y[0, 0] = 1
    Y[4] = Y[1]
    Y[8] = 0
    return Y


def literal_cosine(x, y):
    return x @ y / (np.linalg.norm(x) * np.linalg.norm(y))


# -- the paper's equations ----------------------------------------------------------------------


def test_labels_are_averaged_as_in_equations_1_and_3(Y):
    net = MNNNetwork(5, 7, 4, "average")
    found = net.embed_labels(cells_of(Y)).detach().numpy()
    table = net.labels.detach().numpy()
    for i, y in enumerate(Y[:8]):
        carried = np.flatnonzero(y)
        z = sum(table[t] for t in carried) / len(carried)
        np.testing.assert_allclose(found[i] / len(carried), z, rtol=1e-5, atol=1e-6)


def test_features_are_averaged_as_in_equations_2_and_4():
    X = random_matrix(6, 5, 0.6)
    net = MNNNetwork(5, 7, 4, "average")
    found = net.embed(cells_of(X)).detach().numpy()
    table = net.features.detach().numpy()
    for i, w in enumerate(X):
        held = np.flatnonzero(w)
        z = sum(table[k] * w[k] for k in held) / len(held)
        np.testing.assert_allclose(found[i] / len(held), z, rtol=1e-5, atol=1e-6)


def test_dropped_features_leave_the_mean_as_in_equations_5_to_7():
    X = random_matrix(6, 40, 0.6)
    net = MNNNetwork(40, 7, 4, "average")
    table = net.features.detach().numpy()
    torch.manual_seed(3)
    cells = drop_features(cells_of(X), 0.5)
    found = net.embed(cells).detach().numpy()
    torch.manual_seed(3)
    r = (torch.rand(len(cells.value)) < 0.5).numpy()  # Bernoulli(p), cell by cell
    first = 0
    for i, w in enumerate(X):
        held = np.flatnonzero(w)
        own = r[first : first + len(held)]
        first += len(held)
        z = sum(table[k] * kept * w[k] for k, kept in zip(held, own, strict=True)) / own.sum()
        np.testing.assert_allclose(found[i] / len(held), z, rtol=1e-4, atol=1e-6)


def test_a_document_never_loses_all_its_features():
    cells = drop_features(cells_of(np.ones((50, 1), np.float32)), 0.01)
    assert torch.equal(cells.value, torch.ones(50))
    nothing = drop_features(cells_of(np.zeros((3, 2), np.float32)), 0.5)
    assert len(nothing.value) == 0


def test_all_features_may_be_kept():
    cells = cells_of(random_matrix(6, 40, 0.6))
    assert drop_features(cells, 1.0) is cells


def test_cosines_are_equation_8():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 4))
    expected = [[literal_cosine(a, b) for b in y] for a in x]
    np.testing.assert_allclose(cosines(torch.from_numpy(x), torch.from_numpy(y)), expected)


def test_losses_of_pairs_are_equations_9_and_10():
    c = torch.tensor([-0.9, 0.0, 0.3, 0.31, 1.0], dtype=torch.float64)
    np.testing.assert_allclose(positive_loss(c), [0.25 * (1 - x) ** 2 for x in c.tolist()])
    expected = [x**2 if x > 0.3 else 0 for x in c.tolist()]
    np.testing.assert_allclose(negative_loss(c, 0.3), expected)


def test_hardest_loss_is_equation_11():
    rng = np.random.default_rng(0)
    own, drawn = rng.uniform(-1, 1, size=6), rng.uniform(-1, 1, size=(6, 4))
    drawn[2] = -0.5
    total = 0.0
    for i in range(6):
        losses = [c**2 if c > 0.2 else 0 for c in drawn[i]]
        total += 0.25 * (1 - own[i]) ** 2 + max(losses)
    found = hardest_loss(torch.from_numpy(own), torch.from_numpy(drawn), 0.2)
    np.testing.assert_allclose(found, total / 6)


@pytest.mark.parametrize("margin", [0.2, -1.0])
@pytest.mark.parametrize("at_once", [1 << 20, 40, 1])
@pytest.mark.parametrize("h", [1, 5])
def test_the_hardest_of_the_drawn_is_found(margin, at_once, h, monkeypatch):
    monkeypatch.setitem(module.LARGEST_GATHER, "cpu", at_once)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 4)), rng.normal(size=(9, 4))
    drawn = rng.integers(9, size=(7, h))
    tensors = [torch.from_numpy(array) for array in (x, y, drawn)]
    found = find_hardest(*tensors, margin)[:, 0].tolist()
    for i, own in enumerate(found):
        cosine = [literal_cosine(x[i], y[j]) for j in drawn[i]]
        losses = [c**2 if c > margin else 0 for c in cosine]
        assert own == drawn[i][np.argmax(losses)]


def test_label_sets_are_told_apart(Y):
    sets = LabelSets(sp.csr_matrix(Y[:8]))
    for i in range(8):
        for j in range(8):
            assert (sets.numbers[i] == sets.numbers[j]) == np.array_equal(Y[i], Y[j])
    assert np.array_equal(Y[sets.carriers[sets.numbers]], Y[:8])


def test_negatives_are_drawn_from_all_documents_with_other_labels(Y):
    """As often as each set occurs, and never the own."""
    sets = LabelSets(sp.csr_matrix(Y[:8]))
    drawn = sets.draw(np.arange(8), 7000, np.random.default_rng(0))
    assert drawn.shape == (8, 7000)
    for i in range(8):
        others = np.delete(sets.numbers, np.flatnonzero(sets.numbers == sets.numbers[i]))
        expected = np.bincount(others, minlength=len(sets.carriers)) / len(others)
        np.testing.assert_allclose(np.bincount(drawn[i], minlength=7) / 7000, expected, atol=0.02)


def test_negatives_are_as_many_as_asked_for_and_repeat_by_seed():
    task = make_task({"loss": "hardest", "negatives": 500})
    rows = np.arange(40, 60)
    batch, again, other = (task.batch(rows, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert batch["drawn"].shape == (20, 500)  # of 300 documents
    assert torch.equal(batch["drawn"], again["drawn"])
    assert not torch.equal(batch["drawn"], other["drawn"])
    n_sets = len({row.tobytes() for row in task.Y.toarray()})
    assert len(batch["label_start"]) - 1 <= n_sets  # each set is embedded once


# -- our own losses -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 26, 20, 1])
def test_overlap_is_the_cosine_of_label_vectors(Y, size, monkeypatch):
    monkeypatch.setattr(module, "LARGEST_TABLE", size)
    found = overlap(cells_of(Y)).numpy()
    for i in range(9):
        for j in range(9):
            expected = literal_cosine(Y[i], Y[j]) if Y[i].any() and Y[j].any() else 0
            np.testing.assert_allclose(found[i, j], expected, rtol=1e-5)


def test_graded_loss_weighs_the_own_set_and_the_others(Y):
    rng = np.random.default_rng(0)
    c, target = rng.uniform(-1, 1, size=(2, 9, 9))
    total = 0.0
    for i in range(9):
        others = [(c[i, j] - target[i, j]) ** 2 for j in range(9) if j != i]
        total += (c[i, i] - target[i, i]) ** 2 + 16 * np.mean(others)
    found = graded_loss(torch.from_numpy(c), torch.from_numpy(target), 16)
    np.testing.assert_allclose(found, total / 9)


def test_softmax_loss_lets_equal_sets_alone(Y):
    c = np.random.default_rng(0).uniform(-1, 1, size=(9, 9))
    target = overlap(cells_of(Y)).double()
    total = 0.0
    for i in range(9):
        rivals = [j for j in range(9) if j == i or target[i, j] < 0.999]
        assert (4 in rivals) == (i != 1)
        total += np.log(sum(np.exp(7 * c[i, j]) for j in rivals)) - 7 * c[i, i]
    found = softmax_loss(torch.from_numpy(c), target, torch.tensor(7.0))
    np.testing.assert_allclose(found, total / 9, rtol=1e-6)


def test_one_document_has_no_negatives():
    one = torch.ones(1, 1)
    assert graded_loss(one, one, 16) == softmax_loss(one, one, torch.tensor(7.0)) == 0


# -- the task -----------------------------------------------------------------------------------


def make_task(parameters=None, share=0.0, X=None, Y=None):
    data = planted_dataset()
    X, Y = (data.X, data.Y) if X is None else (X, Y)
    return MNN(**SMALL, **(parameters or {}))._prepare(X, Y, share)


def test_documents_without_labels_are_left_out():
    data = planted_dataset()
    Y = data.Y.tolil()
    Y[5:15] = 0
    task = make_task(X=data.X, Y=Y.tocsr())
    assert task.n_documents == 290
    assert np.array_equal(task.X[5].toarray(), data.X[15].toarray())


@pytest.mark.parametrize("embedding", ["average", "residual"])
def test_documents_without_features_are_left_out(embedding):
    """Where f_x is 0, a cosine has a gradient of 10¹², which all else would follow."""
    data = planted_dataset()
    X = data.X.tolil()
    X[5:15] = 0
    task = make_task({"embedding": embedding}, X=X.tocsr(), Y=data.Y)
    assert task.n_documents == 290
    assert np.array_equal(task.Y[5].toarray(), data.Y[15].toarray())
    task.loss(task.batch(np.arange(20), np.random.default_rng(0))).backward()
    if task.net.second is not None:
        assert task.net.second.bias.grad.abs().max() < 10


def test_labels_of_documents_without_features_alone_are_not_ranked():
    data = planted_dataset()
    X, Y = data.X.tolil(), sp.hstack([data.Y, sp.csr_matrix((300, 1))]).tolil()
    X[5], Y[5] = 0, 0
    Y[5, -1] = 1
    model = MNN(**SMALL, rank="labels").fit(X.tocsr(), Y.tocsr())
    assert model.ids_.tolist() == list(range(data.Y.shape[1]))


def test_the_loss_of_a_batch_is_that_of_its_documents_and_label_sets():
    task = make_task({"keep": 1.0, "contrast": 0.0, "negatives": 3})
    rows = np.array([7, 0, 100, 31])
    batch = task.batch(rows, np.random.default_rng(0))
    X, Y = task.X[rows].toarray(), task.Y[rows].toarray()
    x, y = X @ task.net.features.detach().numpy(), Y @ task.net.labels.detach().numpy()
    total = 0.0
    for i in range(4):
        errors = [(literal_cosine(x[i], y[j]) - literal_cosine(Y[i], Y[j])) ** 2 for j in range(4)]
        total += errors[i] + 3 * (sum(errors) - errors[i]) / 3
    np.testing.assert_allclose(task.loss(batch).item(), total / 4, rtol=1e-4)


def test_the_papers_loss_of_a_batch_compares_with_drawn_label_sets():
    task = make_task({"keep": 1.0, "loss": "hardest", "negatives": 3, "margin": 0.1})
    rows = np.array([7, 0, 100, 31])
    batch = task.batch(rows, np.random.default_rng(0))
    X = task.X[rows].toarray()
    start, labels = batch["label_start"].tolist(), batch["label_feature"].tolist()
    sets = [labels[first:last] for first, last in pairwise(start)]
    table = task.net.labels.detach().numpy()
    x, y = X @ task.net.features.detach().numpy(), [table[each].mean(0) for each in sets]
    total = 0.0
    for i, row in enumerate(rows):
        own, drawn = batch["own"][i].item(), batch["drawn"][i].tolist()
        assert sorted(sets[own]) == sorted(task.Y[row].indices)
        assert own not in drawn
        losses = [c**2 if c > 0.1 else 0 for c in (literal_cosine(x[i], y[j]) for j in drawn)]
        total += (1 - literal_cosine(x[i], y[own])) ** 2 / 4 + max(losses)
    loss = task.loss(batch)
    np.testing.assert_allclose(loss.item(), total / 4, rtol=1e-4)
    loss.backward()
    assert task.net.labels.grad._values().abs().sum() > 0


def test_without_other_label_sets_nothing_is_pushed_away():
    Y = sp.csr_matrix(np.tile([1.0, 0.0, 1.0], (8, 1)).astype(np.float32))
    parameters = {"keep": 1.0, "loss": "hardest", "negatives": 3, "margin": -1.0}
    task = make_task(parameters, X=planted_dataset().X[:8], Y=Y)
    batch = task.batch(np.arange(8), np.random.default_rng(0))
    c = cosines(task.net.embed(SparseBatch.from_batch(batch)), task.net.labels[[0, 2]].sum(0)[None])
    np.testing.assert_allclose(task.loss(batch).item(), positive_loss(c).mean().item(), rtol=1e-5)


def test_the_contrast_adds_the_softmax():
    losses = {}
    for name, parameters in {
        "graded": {"contrast": 0.0},
        "both": {"contrast": 0.5},
        "softmax": {"loss": "softmax"},
    }.items():
        task = make_task({"keep": 1.0, **parameters})
        losses[name] = task.loss(task.batch(np.arange(50), np.random.default_rng(0))).item()
    np.testing.assert_allclose(
        losses["both"], losses["graded"] + 0.5 * losses["softmax"], rtol=1e-5
    )


def test_held_out_documents_are_not_trained_on():
    task = make_task(share=0.2)
    assert task.n_documents == 240
    assert task.held_out[0].shape[0] == 60
    kept = {row.tobytes() for row in task.X.toarray()}
    assert sum(row.tobytes() in kept for row in task.held_out[0].toarray()) < 30


# -- ranking ------------------------------------------------------------------------------------


def test_the_best_way_to_rank_is_chosen_on_held_out_documents():
    task = make_task(share=0.2)
    before = choose_ranking(task)
    tried = []
    for rank in ("labels", "neighbours"):
        task.model.rank = rank
        tried.append(choose_ranking(task).metrics)
        assert choose_ranking(task).rank == rank
    best = max(sum(metrics[f"P@{k}"] for k in (1, 3, 5)) for metrics in tried)
    assert sum(before.metrics[f"P@{k}"] for k in (1, 3, 5)) == best
    task.model.n_neighbours, task.model.temperature = 7, 0.3
    assert choose_ranking(task)[:3] == ("neighbours", 7, 0.3)


def test_plain_votes():
    """A temperature of 0 counts all neighbours alike; it is not a missing one."""
    train, test = planted_dataset(), planted_dataset(seed=1)
    model = MNN(**{**SMALL, **FIXED, "temperature": 0}).fit(train)
    assert model.voters_.temperature == 0
    top = model.predict(test, k=3)
    queries = embed_rows(model.embedder_, view_rows(test.X), True)
    for i in range(0, 300, 29):
        nearest = np.argsort(-(model.index_.vectors @ queries[i]), kind="stable")[:10]
        shares = np.sort(train.Y[nearest].toarray().mean(0))[::-1]
        np.testing.assert_allclose(top.scores[i], shares[:3], rtol=1e-5)


def test_plain_votes_are_kept_while_the_rest_is_chosen():
    task = make_task({"temperature": 0.0, "rank": "neighbours"}, share=0.2)
    assert choose_ranking(task).temperature == 0
    model = MNN(**{**SMALL, "epochs": 1}, rank="neighbours", temperature=0).fit(planted_dataset())
    assert model.voters_.temperature == 0


def test_neighbours_rank_labels_by_their_votes():
    """What is predicted is what the definition says, document by document."""
    train, test = planted_dataset(), planted_dataset(seed=1)
    model = MNN(**SMALL, **FIXED, blend=0.25).fit(train)
    top = model.predict(test, k=3)
    documents = embed_rows(model.embedder_, view_rows(train.X), True)
    queries = embed_rows(model.embedder_, view_rows(test.X), True)
    keys = model.index_.vectors
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, atol=1e-3)
    for i in range(0, 300, 29):
        c = keys @ queries[i]
        nearest = np.argsort(-c, kind="stable")[:10]
        votes = np.exp((c[nearest] - c[nearest[0]]) / 0.1)
        shares = votes @ train.Y[nearest].toarray() / votes.sum()
        np.testing.assert_allclose(top.scores[i], np.sort(shares)[::-1][:3], rtol=1e-4)
        np.testing.assert_allclose(shares[top.labels[i]], top.scores[i], rtol=1e-4)
    plain = MNN(**SMALL, **FIXED, blend=0.0).fit(train)
    np.testing.assert_allclose(plain.index_.vectors, documents, atol=4e-3)


def test_labels_rank_by_their_cosines():
    X, Y = planted_dataset().X, planted_dataset().Y
    Y = sp.csr_matrix((Y.data, Y.indices, Y.indptr), shape=(300, 20))  # eight never occur
    model = MNN(**SMALL, rank="labels").fit(X, Y)
    assert model.ids_.tolist() == list(range(12))
    top = model.predict(X, k=15)
    queries = embed_rows(model.embedder_, view_rows(X), True)
    for i in range(0, 300, 29):
        c = model.index_.vectors @ queries[i]
        np.testing.assert_allclose(top.scores[i, :12], (1 + np.sort(c)[::-1]) / 2, rtol=1e-3)
        assert (top.labels[i, 12:] == -1).all()


def test_nothing_is_tried_where_nothing_is_to_choose(monkeypatch):
    monkeypatch.setattr(module, "choose_ranking", None)
    for parameters in (FIXED, {"rank": "labels"}):
        model = MNN(**{**SMALL, "epochs": 1}, **parameters).fit(planted_dataset())
        assert model.rank_ == parameters["rank"]


def test_all_documents_are_trained_on_after_the_choice():
    model = MNN(**{**SMALL, "epochs": 2}, rank="neighbours").fit(planted_dataset())
    assert len(model.index_) == 300
    again = MNN(
        **{**SMALL, "epochs": 2},
        rank="neighbours",
        n_neighbours=model.voters_.n_neighbours,
        temperature=model.voters_.temperature,
    ).fit(planted_dataset())
    test = planted_dataset(seed=1)
    assert np.array_equal(model.predict(test).scores, again.predict(test).scores)


def test_held_out_documents_choose_the_epoch_and_join_the_neighbours():
    model = MNN(**{**SMALL, "epochs": 4}, valid=0.25, rank="neighbours").fit(planted_dataset())
    records = [record["nDCG@5"] for record in model.history_.records if "nDCG@5" in record]
    assert len(records) == 4
    assert model.history_.best["nDCG@5"] == max(records)
    assert model.history_.best["n_documents"] == 75
    assert len(model.index_) == 300


# -- the model ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {"loss": "hardest"},
        {"loss": "softmax"},
        {"contrast": 0.0},
        {"embedding": "residual"},
        {"rank": "labels"},
        {"blend": 0.0},
        {"blend": 1.0},
        {"keep": 1.0},
        {"idf": False},
        {"normalize": False},
        {"valid": 0.2, "patience": 2},
    ],
    ids=str,
)
def test_every_variant_learns(parameters):
    test = planted_dataset(seed=1)
    top = MNN(**SMALL, **parameters).fit(planted_dataset()).predict(test)
    assert evaluate(top, test)["P@1"] > 95


def test_documents_that_carry_one_rare_label_are_learned():
    """Sixty labels of five documents each, which never go together."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(60), 5)
    words = labels[:, None] * 3 + np.array([rng.choice(3, 2, replace=False) for _ in labels])
    X = sp.csr_matrix((np.ones(600, np.float32), words.ravel(), np.arange(0, 601, 2)))
    Y = sp.csr_matrix((np.ones(300, np.float32), labels, np.arange(301)))
    test = np.arange(0, 300, 5)
    train = np.setdiff1d(np.arange(300), test)
    top = MNN(**SMALL, keep=1.0, n_neighbours=5).fit(X[train], Y[train]).predict(X[test], k=1)
    assert evaluate(top, Y[test])["P@1"] > 90


@pytest.mark.parametrize("seed", range(12))
def test_one_document_with_labels_among_others(seed):
    """Where it would be the one held out, there is nothing to choose by."""
    Y = sp.csr_matrix(([1.0], ([7], [3])), shape=(20, 12), dtype=np.float32)
    X = planted_dataset().X[:20]
    model = MNN(**{**SMALL, "epochs": 1}, seed=seed).fit(X, Y)
    assert (model.predict(X, k=1).labels == 3).all()


def test_the_paper_preset_is_the_papers_loss():
    model = MNN.from_settings({"preset": "paper"})
    assert (model.loss, model.embedding) == ("hardest", "average")
    assert (model.negatives, model.margin) == (4, 0.0)


@pytest.mark.parametrize(
    ("name", "value", "range_text"),
    [
        ("dim", 0, "at least 1"),
        ("negatives", 0, "at least 1"),
        ("batch_size", 0, "at least 1, or none"),
        ("n_neighbours", 0, "at least 1, or none"),
        ("embedding", "relu", "'average' or 'residual'"),
        ("loss", "hinge", "'graded' or 'softmax' or 'hardest'"),
        ("rank", "both", "'labels' or 'neighbours' or none"),
        ("margin", 1.5, "from -1 to 1"),
        ("blend", -0.1, "from 0 to 1"),
        ("contrast", -1.0, "at least 0"),
        ("temperature", -0.1, "at least 0, or none"),
        ("learning_rate", 0.0, "above 0"),
        ("keep", 0.0, "above 0 and at most 1"),
        ("valid", 1.0, "from 0 to below 1"),
        ("device", "tpu", "'auto' or 'cpu' or 'cuda'"),
    ],
)
def test_parameters_out_of_range(name, value, range_text):
    with pytest.raises(ParameterError) as caught:
        MNN(**{name: value}).fit(planted_dataset())
    assert str(caught.value) == (
        f"The '{name}' parameter of MNN must be {range_text}. Got {value!r} instead."
    )


def test_training_without_torch_names_the_command(monkeypatch):
    monkeypatch.setattr(neural, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        MNN().fit(planted_dataset())
    assert str(caught.value) == (
        "MNN needs torch, which is not installed; install it with: pip install '.[deep]'"
        ", in the folder with longtail's source"
    )


def test_too_little_memory_names_what_fits(monkeypatch):
    from longtail.errors import MemoryPlanError
    from longtail.runtime import memory

    monkeypatch.setattr(memory, "free_ram", lambda: 48 << 20)
    with pytest.raises(MemoryPlanError, match=r"what fits: dim=64 .* or dim=32"):
        MNN(dim=4096, batch_size=64).fit(planted_dataset())


def test_too_many_negatives_are_refused_with_what_fits(monkeypatch):
    from longtail.errors import MemoryPlanError
    from longtail.runtime import memory

    monkeypatch.setattr(memory, "free_ram", lambda: 64 << 20)
    with pytest.raises(MemoryPlanError, match=r"what fits: negatives=4 "):
        MNN.from_settings({"preset": "paper", "negatives": 1_000_000}).fit(planted_dataset())


def test_drawn_label_sets_are_planned_for():
    data = planted_dataset()
    few, many = (
        max(sum(stage.ram.values()) for stage in model.needs_of(data.X, data.Y, "cpu"))
        for model in (MNN.from_settings({"preset": "paper", "negatives": h}) for h in (1, 10_000))
    )
    n_drawn = 10_000 * 37  # documents of a step
    assert many - few > 8 * n_drawn  # where they lie is known several batches ahead


def test_a_trained_model_predicts_without_torch(tmp_path):
    MNN(**SMALL, **FIXED).fit(planted_dataset()).save(tmp_path / "model")
    code = """
import sys
sys.modules["torch"] = None
import longtail, numpy, scipy.sparse
model = longtail.load_model(sys.argv[1])
X = scipy.sparse.csr_matrix(numpy.eye(56, dtype=numpy.float32))
print(model.predict(X, k=1).labels.ravel().tolist())
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=True,
    )
    X = sp.csr_matrix(np.eye(56, dtype=np.float32))
    model = load_model(tmp_path / "model")
    assert answer.stdout.strip() == str(model.predict(X, k=1).labels.ravel().tolist())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files.config.update(rank="both"), "config.json has no labels"),
        (
            lambda files: files.config["voters"].update(n_neighbours=0),
            "n_neighbours must be at least 1",
        ),
        (lambda files: files.config["voters"].update(temperature=-1), "temperature must be from 0"),
        (
            lambda files: shorten(files, "voters.index.vectors.codes"),
            "which is 300 elsewhere|for voters.n",
        ),
        (
            lambda files: shorten(files, "voters.labels.lengths"),
            "299 bytes, too few for 300 numbers",
        ),
        (
            lambda files: files.arrays["voters.labels.columns"].__setitem__(0, 99),
            "numbers up to 11",
        ),
    ],
)
def test_files_that_do_not_fit_together(change, message, tmp_path):
    MNN(**{**SMALL, "epochs": 1}, **FIXED).fit(planted_dataset()).save(tmp_path / "model")
    files = read_folder(tmp_path / "model")
    change(files)
    write_folder(tmp_path / "broken", files)
    with pytest.raises(ModelFileError, match=message):
        load_model(tmp_path / "broken")


def shorten(files, name):
    files.arrays[name] = files.arrays[name][:-1]


def test_the_folder_holds_vectors_as_int8(tmp_path):
    MNN(**{**SMALL, "epochs": 1}, **FIXED).fit(planted_dataset()).save(tmp_path / "model")
    arrays = read_folder(tmp_path / "model").arrays
    for name in ("voters.index.vectors.codes", "embedder.weight.codes"):
        assert arrays[name].dtype == np.int8


def test_new_labels_get_vectors_where_labels_are_ranked():
    """One comes behind the others, and one had a name in training but no document."""
    data = planted_dataset()
    first, more = data.take(np.arange(200)), data.take(np.arange(200, 300))
    Y = first.Y.tolil()
    Y[:, 3] = 0
    names = [*data.label_names, "new"]
    model = MNN(**SMALL, rank="labels").fit(Dataset(Y.tocsr(), data.label_names, X=first.X))
    more_Y = sp.csr_matrix(sp.hstack([more.Y, more.Y[:, [0]]]))
    model.partial_fit(Dataset(more_Y, names, X=more.X))
    assert model.ids_.tolist() == list(range(len(names)))
    top = model.predict(more.X, k=5)
    for new, carried in ((3, more.Y[:, [3]]), (12, more.Y[:, [0]])):
        found = (top.labels == new).any(axis=1)
        carries = carried.toarray().ravel() > 0
        assert found[carries].mean() > found[~carries].mean() + 0.3
    assert np.array_equal(model.score(more.X, top.labels), top.scores)


def test_a_model_that_ranks_no_label_learns_new_ones():
    """Only a stranger's folder has none."""
    data = planted_dataset()
    model = MNN(**{**SMALL, "epochs": 1}, rank="labels").fit(data)
    nothing = QuantizedRows.of(np.asarray(model.index_.vectors)[:0])
    model.index_ = Index(nothing, model.index_.dim, model.index_.metric)
    model.ids_ = model.ids_[:0]
    Y = sp.csr_matrix(sp.hstack([data.Y, data.Y[:, [0]]]))
    model.partial_fit(Dataset(Y, [*data.label_names, "new"], X=data.X))
    assert model.ids_.tolist() == [data.n_labels]
    assert set(model.predict(data.X, k=1).labels.ravel().tolist()) == {data.n_labels}
