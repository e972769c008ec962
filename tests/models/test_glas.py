"""The equations of the GLaS paper against literal versions, and what its model promises."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from longtail import evaluate  # noqa: E402
from longtail.errors import ParameterError  # noqa: E402
from longtail.models.glas import network as module  # noqa: E402
from longtail.models.glas.model import GLaS  # noqa: E402
from longtail.models.glas.network import (  # noqa: E402
    count_together,
    glas,
    gravity,
    margin_loss,
    mined_margin_loss,
    similarity,
    spread_out,
    unit_documents,
)
from longtail.progress import SILENT  # noqa: E402
from longtail.runtime.quantized import QuantizedRows  # noqa: E402
from longtail.search import pca  # noqa: E402

SMALL = {"dim": 16, "epochs": 20, "learning_rate": 0.01, "device": "cpu"}


@pytest.fixture
def Y():
    """40 documents and 7 labels; label 3 has no document, label 5 is on its own."""
    rng = np.random.default_rng(0)
    Y = (rng.random((40, 7)) < 0.4).astype(np.float32)
    Y[:, 3] = 0
    Y[:, 5] = 0
    Y[-3:] = 0
    Y[-3:, 5] = 1
    return Y


@pytest.fixture
def V():
    V = np.random.default_rng(1).normal(size=(7, 4))
    return V / np.linalg.norm(V, axis=1, keepdims=True)


@pytest.fixture
def scored():
    """Scores of 6 documents for 9 labels, which they carry, and one of these or −1."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(6, 9))
    relevant = rng.random((6, 9)) < 0.3
    relevant[2] = False
    relevant[4, 5] = True
    own = np.array([row.argmax() if row.any() else -1 for row in relevant])
    return scores, own, relevant


def as_tensors(*arrays):
    return [torch.from_numpy(array) for array in arrays]


def literal_margin(scores, relevant, c):
    total = 0.0
    for h, carried in zip(scores, relevant, strict=True):
        for y in np.flatnonzero(carried):
            for other in np.flatnonzero(~carried):
                total += max(0.0, h[other] - h[y] + c)
    return total / len(scores)


def literal_violations(scores, relevant, own, c):
    return [
        [max(0.0, h[other] - h[y] + c) for other in np.flatnonzero(~carried)] if y >= 0 else []
        for h, carried, y in zip(scores, relevant, own, strict=True)
    ]


def test_margin_of_one_label_is_equation_1_for_that_label(scored):
    scores, own, relevant = scored
    expected = sum(map(sum, literal_violations(scores, relevant, own, 0.7))) / 6
    np.testing.assert_allclose(margin_loss(*as_tensors(*scored), 0.7), expected)


def test_margins_of_all_labels_add_up_to_equation_1(scored):
    scores, _, relevant = scored
    total = 0.0
    for y in range(9):
        own = np.where(relevant[:, y], y, -1)
        total += margin_loss(*as_tensors(scores, own, relevant), 0.7)
    np.testing.assert_allclose(total, literal_margin(scores, relevant, 0.7))


@pytest.mark.parametrize("k", [1, 3, 100])
def test_mining_counts_the_hardest_labels(scored, k):
    scores, own, relevant = scored
    violations = literal_violations(scores, relevant, own, 0.7)
    expected = sum(sum(sorted(row, reverse=True)[:k]) for row in violations) / 6
    np.testing.assert_allclose(mined_margin_loss(*as_tensors(*scored), 0.7, k), expected)


def literal_similarity(Y, measure):
    """Straight from the counts of documents, pair by pair."""
    n, K = Y.shape
    U = np.zeros((K, K))
    for y in range(K):
        for other in range(K):
            both = sum(Y[i, y] * Y[i, other] for i in range(n))
            one, two = Y[:, y].sum(), Y[:, other].sum()
            if not both:
                continue
            U[y, other] = {
                "arithmetic": (both / two + both / one) / 2,
                "geometric": np.sqrt(both / two * both / one),
                "jaccard": both / (one + two - both),
                "pmi": max(0, np.log((both / n) / (one / n * two / n)) / -np.log(both / n)),
            }[measure]
    return U


@pytest.mark.parametrize("measure", ["arithmetic", "geometric", "jaccard", "pmi"])
def test_similarities_of_labels(Y, measure):
    A = count_together(sp.csr_matrix(Y)).toarray()
    np.testing.assert_array_equal(A, Y.T @ Y)
    U = similarity(torch.from_numpy(A), len(Y), measure)
    np.testing.assert_allclose(U, literal_similarity(Y, measure), rtol=1e-5, atol=1e-7)
    assert (U[3] == 0).all()  # Z is singular: a label without documents is like no other
    assert U.max() <= 1.00001


def test_labels_that_every_document_carries():
    A = torch.full((2, 2), 5.0)
    for measure in ("arithmetic", "geometric", "jaccard", "pmi"):
        assert torch.equal(similarity(A, 5, measure), torch.ones(2, 2))


def test_spread_out_is_equation_2(V):
    expected = sum((a @ b) ** 2 for a in V for b in V) / 49
    np.testing.assert_allclose(spread_out(torch.from_numpy(V @ V.T)), expected)


def test_glas_is_equation_3(V, Y):
    counts = Y.T @ Y
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.diag(np.where(np.diag(counts) > 0, 1 / np.diag(counts), 0))
    target = (counts @ inverse + inverse @ counts) / 2
    expected = np.linalg.norm(V @ V.T - target, "fro") ** 2 / 49
    U = similarity(torch.from_numpy(counts), len(Y)).double()
    np.testing.assert_allclose(glas(torch.from_numpy(V @ V.T), U), expected, rtol=1e-6)


def literal_laplacian(V, U):
    """Equation (4), an analysis of (3): near embeddings for labels that co-occur."""
    distances = [[(a - b).square().sum() for b in V] for a in V]
    return (torch.tensor(distances) * U).mean()


def test_glas_is_laplacian_plus_spread_out_plus_a_constant(V, Y):
    """Section 3.2: the constant is the mean of u² − 2u, which no embedding changes."""
    U = torch.from_numpy(literal_similarity(Y, "arithmetic"))
    constant = (U.square() - 2 * U).mean()
    for seed in range(3):
        other = np.random.default_rng(seed).normal(size=V.shape)
        other = torch.from_numpy(other / np.linalg.norm(other, axis=1, keepdims=True))
        gram = other @ other.T
        total = literal_laplacian(other, U) + spread_out(gram)
        torch.testing.assert_close(glas(gram, U), total + constant)


def test_glas_recovers_spread_out_when_no_labels_co_occur(V):
    """U is then the identity, and the diagonal of VᵀV is 1 as well."""
    A = torch.diag(torch.tensor([3.0, 1, 4, 1, 5, 9, 2]))
    start = torch.from_numpy(V)
    gradients = []
    for regularize in (lambda gram: glas(gram, similarity(A, 25).double()), spread_out):
        raw = start.clone().requires_grad_()
        unit = torch.nn.functional.normalize(raw, dim=1)
        loss = regularize(unit @ unit.T)
        gradients.append(torch.autograd.grad(loss, raw)[0])
        without_diagonal = float(loss.detach()) - (regularize is spread_out) / 7
        np.testing.assert_allclose(without_diagonal, float(spread_out(start @ start.T)) - 1 / 7)
    torch.testing.assert_close(*gradients)


def test_gravity_is_the_mean_square_of_all_products(V):
    phi = np.random.default_rng(2).normal(size=(5, 4))
    expected = np.mean([(a @ b) ** 2 for a in phi for b in V])
    found = gravity(torch.from_numpy(phi), torch.from_numpy(V))
    np.testing.assert_allclose(found, expected)


def test_pairs_are_the_same_however_many_parts_they_are_counted_in(monkeypatch):
    Y = sp.random(60, 40, 0.2, "csr", np.float32, random_state=0)
    whole = count_together(Y)
    monkeypatch.setattr(module, "FEWEST_PAIRS", 1)
    parts = count_together(Y)
    for name in ("indptr", "indices", "data"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))
    assert np.array_equal(whole.toarray(), ((Y > 0).T @ (Y > 0).astype(np.float32)).toarray())


def test_the_block_of_a_batch_is_that_of_its_labels(Y):
    A = count_together(sp.csr_matrix(Y))
    chosen = np.array([5, 0, 2])
    block = module._take_block(module.view_rows(A), chosen)
    assert np.array_equal(block, A.toarray()[np.ix_(chosen, chosen)])


def make_task(Y, **parameters):
    X = sp.csr_matrix(np.random.default_rng(0).random((len(Y), 9)).astype(np.float32))
    Y = sp.csr_matrix(Y)
    return GLaS(**SMALL, **parameters).prepare(X, Y, Y, "cpu")


def test_a_batch_over_all_labels(Y):
    Y[4] = 0
    rows = np.array([4, 0, 38])
    batch = make_task(Y).batch(rows, np.random.default_rng(0))
    pairs = np.zeros((3, 7))
    pairs[batch["documents"], batch["labels"]] = 1
    assert np.array_equal(pairs, Y[rows])
    own = batch["own"].tolist()
    assert own[0] == -1
    assert Y[0, own[1]] == 1
    assert own[2] == 5
    assert sorted(batch["block"].tolist()) == sorted({own[1], 5})


def test_a_batch_of_sampled_labels(Y):
    rows = np.arange(10)
    batch = make_task(Y, sampled=1).batch(rows, np.random.default_rng(0))
    candidates = batch["candidates"].numpy()
    assert np.array_equal(candidates, np.unique(candidates))
    pairs = np.zeros((10, len(candidates)))
    pairs[batch["documents"], batch["labels"]] = 1
    assert np.array_equal(pairs, Y[rows][:, candidates])
    assert pairs[np.arange(10), batch["own"]].all()
    counts = (Y.T @ Y)[np.ix_(candidates, candidates)]
    block = batch["block"].numpy()
    assert np.array_equal(batch["A"], counts[np.ix_(block, block)])


@pytest.mark.parametrize("sampled", [None, 1])
def test_more_labels_are_regularized_than_the_batch_has(Y, sampled):
    task = make_task(Y, regularized=200, sampled=sampled)
    batch = task.batch(np.arange(2), np.random.default_rng(0))
    places = batch.get("candidates", torch.arange(7))[batch["block"]]
    assert sorted(places.tolist()) == [0, 1, 2, 4, 5, 6]  # all that documents carry
    counts = (Y.T @ Y)[np.ix_(places, places)]
    assert np.array_equal(batch["A"], counts)


@pytest.mark.parametrize("sampled", [0, 2])
@pytest.mark.parametrize("measure", ["arithmetic", "geometric", "jaccard", "pmi"])
def test_the_table_of_a_gpu_holds_what_the_blocks_hold(Y, measure, sampled):
    """A GPU keeps all similarities; the code runs on a CPU as well."""
    task = make_task(Y, similarity=measure, sampled=sampled)
    batch = task.batch(np.arange(40), np.random.default_rng(0))
    from_block = task._similarity_of(batch)
    task.has_table = True
    batch = task.batch(np.arange(40), np.random.default_rng(0))
    assert "A" not in batch
    np.testing.assert_allclose(task._similarity_of(batch), from_block, atol=1e-3)


def test_labels_are_drawn_evenly(Y):
    pairs = module.view_rows(sp.csr_matrix(Y))
    rows = np.zeros(1000, np.int64)
    drawn = module._draw_labels(pairs, rows, np.random.default_rng(0).random(1000))
    carried = np.flatnonzero(Y[0])
    assert np.array_equal(np.unique(drawn), carried)
    assert np.bincount(drawn)[carried].min() > 0.8 * 1000 / len(carried)


@pytest.mark.parametrize(
    "parameters",
    [
        {"loss": loss, "sampled": sampled}
        for loss in ("bce", "softmax", "margin", "mining")
        for sampled in (0, 5)
    ]
    + [{"regularizer": name} for name in ("spread-out", "none")]
    + [{"regularizer": "gravity", "strength": 1.0}]
    + [{"similarity": name} for name in ("geometric", "pmi", "jaccard")]
    + [
        {"embedding": "linear"},
        {"embedding": "residual"},
        {"keep": 1.0},
        {"dropout": 0.0},
        {"lazy": False},
        {"lazy": False, "sampled": 5},
        {"epoch_steps": 10},
        {"regularized": 40},
        {"valid": 0.2, "patience": 2},
    ],
    ids=str,
)
def test_every_variant_learns(parameters):
    test = planted_dataset(seed=1)
    model = GLaS(**{**SMALL, "epochs": 12}, **parameters).fit(planted_dataset())
    top = model.predict(test)
    assert evaluate(top, test)["P@1"] > 90
    lengths = np.linalg.norm(model.index_.vectors, axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=2e-5)


def test_a_member_that_only_scores_builds_no_search_until_it_is_asked_to(monkeypatch):
    monkeypatch.setattr(pca, "SMALLEST", 100)
    monkeypatch.setattr(pca, "LARGEST_COST", 1e9)
    data = planted_dataset()
    usual = GLaS(**{**SMALL, "dim": 64, "epochs": 3}).fit(data)
    model = usual.with_parameters()
    model.only_scores = True
    model.fit(data)
    assert usual.has_search
    assert model.index_.exact
    assert not model.has_search
    assert "labels.basis" not in model.to_files().arrays
    asked = np.tile(np.arange(12, dtype=np.int32), (300, 1))
    np.testing.assert_array_equal(model.score(data, asked), usual.score(data, asked))
    model.prepare_search(data.X, SILENT)
    assert model.has_search
    assert "labels.basis" in model.to_files().arrays
    np.testing.assert_array_equal(model.predict(data).labels, usual.predict(data).labels)


def test_sampled_labels_leave_the_others_alone():
    """A label that no batch has sampled keeps the embedding that it began with."""
    X, Y = planted_dataset().X, planted_dataset().Y
    Y = sp.csr_matrix((Y.data, Y.indices, Y.indptr), shape=(300, 5000))
    before = GLaS(**SMALL, sampled=1).prepare(X, Y, Y, "cpu").net.all_labels().detach()
    model = GLaS(**{**SMALL, "epochs": 1}, sampled=1).fit(X, Y)
    kept = QuantizedRows.of(before.numpy()).take(slice(None), before.shape[1])
    same = (model.index_.vectors == kept).all(axis=1)
    assert same.sum() > 4900
    assert not same[:12].any()


def test_a_document_of_which_nothing_is_left_has_no_gradient():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, -2.0]], requires_grad=True)
    (unit_documents(x) * torch.tensor([1.0, 2.0])).sum().backward()
    gradient, x.grad = x.grad, None
    (F.normalize(x, dim=1) * torch.tensor([1.0, 2.0])).sum().backward()
    assert x.grad[1].abs().min() > 1e11
    assert gradient[1].tolist() == unit_documents(x)[1].tolist() == [0.0, 0.0]
    torch.testing.assert_close(gradient[::2], x.grad[::2])
    assert torch.equal(unit_documents(x), F.normalize(x, dim=1))


def test_few_features_pass_the_relu_and_many_also_go_round_it():
    X, Y = planted_dataset().X, planted_dataset().Y
    wide = sp.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], 10_001))
    for rows, residual in ((X, 0), (wide, 1)):
        model = GLaS(dim=4, epochs=1, device="cpu").fit(rows, Y)
        assert model.embedder_.residual[0] == residual


@pytest.mark.parametrize(
    ("n_documents", "batch_size"),
    [(1_186_239, 4091), (2_000_000, 4096), (12_920, 45), (300, 16)],
)
def test_batches_of_the_paper_follow_from_the_steps_that_it_made(n_documents, batch_size):
    """AmazonCat-13K has 1,186,239 documents: 290 steps of 4096 are an epoch."""
    model = GLaS.from_settings({"preset": "paper"})
    assert model.choose_batch(n_documents) == batch_size
    assert GLaS(batch_size=4096).choose_batch(n_documents) == 4096


def test_the_paper_stops_when_held_out_documents_get_no_better():
    settings = {"preset": "paper", "dim": "16", "learning_rate": "0.01", "device": "cpu"}
    model = GLaS.from_settings(settings).fit(planted_dataset())
    scores = [record["nDCG@5"] for record in model.history_.records if "nDCG@5" in record]
    assert len(scores) <= 10
    assert model.history_.stopped_early == (len(scores) < 10)
    assert model.history_.best["nDCG@5"] == max(scores)
    test = planted_dataset(seed=1)
    assert evaluate(model.predict(test), test)["P@1"] > 90


def test_held_out_documents_choose_the_weights():
    model = GLaS(**{**SMALL, "epochs": 4}, valid=0.25).fit(planted_dataset())
    records = [record["nDCG@5"] for record in model.history_.records if "nDCG@5" in record]
    assert len(records) == 4
    assert model.history_.best["nDCG@5"] == max(records)
    assert model.history_.best["n_documents"] == 75


@pytest.mark.parametrize(
    ("name", "value", "range_text"),
    [
        ("dim", 0, "at least 1"),
        ("batch_size", 0, "at least 1, or none"),
        ("sampled", -1, "from 0 to 10000000, or none"),
        ("epochs", 0, "from 1 to 1000000, or none"),
        ("embedding", "cubic", "'linear' or 'relu' or 'residual' or none"),
        ("loss", "hinge", "'bce' or 'softmax' or 'margin' or 'mining'"),
        ("regularizer", "l2", "'glas' or 'spread-out' or 'gravity' or 'none'"),
        ("similarity", "cosine", "'arithmetic' or 'geometric' or 'pmi' or 'jaccard'"),
        ("strength", -1.0, "at least 0"),
        ("learning_rate", 0.0, "above 0"),
        ("keep", 0.0, "above 0 and at most 1"),
        ("valid", 1.0, "from 0 to below 1"),
        ("device", "tpu", "'auto' or 'cpu' or 'cuda'"),
    ],
)
def test_parameters_out_of_range(name, value, range_text):
    with pytest.raises(ParameterError) as caught:
        GLaS(**{name: value}).fit(planted_dataset())
    assert str(caught.value) == (
        f"The '{name}' parameter of GLaS must be {range_text}. Got {value!r} instead."
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ParameterError, match="there is no GPU to train on"):
        GLaS(device="cuda").fit(planted_dataset())


def test_a_trained_model_predicts_without_torch(tmp_path):
    """Torch takes a second to import, and need not be there at all."""
    model = GLaS(**SMALL).fit(planted_dataset())
    model.save(tmp_path / "model")
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
    assert answer.stdout.strip() == str(model.predict(X, k=1).labels.ravel().tolist())


def test_pairs_are_counted_in_some_labels_of_a_crowded_document_and_labels_in_all():
    Y = sp.csr_matrix(np.ones((1, 4), np.float32))
    thinned = sp.csr_matrix(np.array([[1, 0, 1, 0]], np.float32))
    assert count_together(Y, thinned).toarray().tolist() == [
        [1, 0, 1, 0],
        [0, 1, 0, 0],
        [1, 0, 1, 0],
        [0, 0, 0, 1],
    ]
