"""The equations of the Rank-AE paper against literal versions, and what its model promises."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset, planted_texts

torch = pytest.importorskip("torch")

import longtail  # noqa: E402
from longtail import evaluate, load_model  # noqa: E402
from longtail.data import write_dataset  # noqa: E402
from longtail.errors import (  # noqa: E402
    DataError,
    MissingExtraError,
    ModelFileError,
    ParameterError,
)
from longtail.models import neural  # noqa: E402
from longtail.models.rank_ae.model import RankAE  # noqa: E402
from longtail.models.rank_ae.network import attend, ranking, ranking_over_all  # noqa: E402
from longtail.models.rank_ae.reader import (  # noqa: E402
    fit_score_curve,
    read_rows,
    weigh_words,
)
from longtail.models.rank_ae.sequence import read_texts  # noqa: E402
from longtail.runtime.quantized import QuantizedRows  # noqa: E402
from longtail.runtime.rows import view_rows  # noqa: E402
from longtail.text.tokens import TokenRows  # noqa: E402
from longtail.training import losses  # noqa: E402
from longtail.training.layers import SparseBatch  # noqa: E402

Y_OF_5 = sp.csr_matrix(np.eye(5, dtype=np.float32))
SMALL = {"dim": 16, "word_dim": 16, "epochs": 15, "device": "cpu"}


@pytest.fixture
def pairs():
    """Scores and labels of 6 documents; one has no label, one has all."""
    rng = np.random.default_rng(0)
    relevant = rng.random((6, 9)) < 0.3
    relevant[1], relevant[2] = False, True
    return rng.normal(size=(6, 9)), relevant


def literal_ranking(scores, relevant, m):
    """Equations (2) to (4) as they stand, document by document."""
    total = 0.0
    for y, is_positive in zip(scores, relevant, strict=True):
        P, N = np.flatnonzero(is_positive), np.flatnonzero(~is_positive)
        if len(P) and len(N):
            total += sum(max(max(m + y[n] - y[p], 0) for p in P) for n in N)  # (3)
            total += sum(max(max(m + y[n] - y[p], 0) for n in N) for p in P)  # (4)
    return total / len(scores)


@pytest.mark.parametrize("m", [0.0, 0.1, 1.0, 5.0])
def test_ranking_is_equations_2_to_4(pairs, m):
    scores, relevant = pairs
    found = ranking(torch.from_numpy(scores), torch.from_numpy(relevant), m)
    np.testing.assert_allclose(found, literal_ranking(scores, relevant, m))


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("piece", [36, 1 << 20])
def test_ranking_in_pieces_has_the_loss_and_the_gradients_of_the_whole(
    pairs, piece, sigmoid, monkeypatch
):
    monkeypatch.setitem(losses.PIECE, "cpu", piece)  # a quarter of 36 scores is one document
    _, relevant = pairs
    rng = np.random.default_rng(1)
    values = [torch.from_numpy(rng.normal(size=size)) for size in ((6, 4), (9, 4), (9,))]
    whole = [value.clone().requires_grad_() for value in values]
    z, V, bias = whole
    scores = z @ V.T + bias
    y = scores.sigmoid() if sigmoid else scores
    expected = ranking(y, torch.from_numpy(relevant), 0.6)
    expected.backward()
    parts = [value.clone().requires_grad_() for value in values]
    documents, labels = map(torch.from_numpy, np.nonzero(relevant))
    found = ranking_over_all(*parts, documents, labels, 0.6, sigmoid)
    found.backward()
    exact = {"rtol": 1e-5, "atol": 1e-6} if sigmoid else {}  # sigmoids are computed in float32
    torch.testing.assert_close(found.double(), expected, **exact)
    for part, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(part.grad, other.grad, **exact)


def test_ranking_costs_what_labels_cost_not_pairs_of_labels():
    """A document with half of 4,000 labels has 4 million pairs; O(L) does not see them."""
    scores = torch.randn(1, 4000)
    relevant = torch.arange(4000)[None] % 2 == 0
    with torch.profiler.profile(profile_memory=True) as profile:
        ranking(scores, relevant, 1.0)
    most = max(event.self_cpu_memory_usage for event in profile.key_averages())
    assert most < 100 * 4000


# -- attention ------------------------------------------------------------------------------------


def make_task(X, n_labels=5, **parameters):
    X = sp.csr_matrix(X.astype(np.float32))
    Y = sp.csr_matrix(np.eye(X.shape[0], n_labels, dtype=np.float32))
    model = RankAE(**{**SMALL, "dim": 6, **parameters})
    task = model._prepare(X, Y, None, 8, "cpu")
    with torch.no_grad():  # at the size of trained weights, where the attention is far from 1/2
        task.net.words.normal_()
        task.net.decode_first.weight.normal_()
        task.net.decode_first.bias.normal_()
    return task


def literal_embed(net, X, attention=True, pooling="unit"):
    """Section 2.4, word by word; then the layer after it."""
    E, F1, F2 = (
        weight.detach().double().numpy() for weight in (net.words, net.squeeze, net.excite)
    )
    rows = []
    for x in X:
        words = np.flatnonzero(x)
        V = np.array([x[w] * E[w] for w in words]).reshape(len(words), E.shape[1])
        A = 1 / (1 + np.exp(-(F2 @ np.maximum(F1 @ V.T, 0)).T))  # (5)
        M = V * A if attention else V
        pooled = M.mean(axis=0) if len(words) else np.zeros(E.shape[1])
        length = np.linalg.norm(pooled)
        rows.append(pooled / max(length, 1e-12) if pooling == "unit" else pooled)
    project = net.project.weight.detach().double().numpy()
    return np.array(rows) @ project.T + net.project.bias.detach().double().numpy()


@pytest.fixture(params=["words", "signed"])
def X(request):
    rng = np.random.default_rng(3)
    X = rng.random((5, 12)) * (rng.random((5, 12)) < 0.5)
    X[2] = 0
    return X if request.param == "words" else X * rng.choice([-1, 1], size=X.shape)


@pytest.mark.parametrize("attention", [True, False])
def test_attention_is_equation_5(X, attention):
    task = make_task(X, attention=attention, normalize=False)
    cells = SparseBatch.of(view_rows(task.X), np.arange(5), 12)
    found = task.net.embed(cells).detach()
    np.testing.assert_allclose(found, literal_embed(task.net, X, attention), atol=1e-5)


@pytest.mark.parametrize("pooling", ["unit", "mean"])
def test_pooling_is_the_mean_of_the_words_as_it_is_or_of_length_1(X, pooling):
    task = make_task(X, pooling=pooling, normalize=False)
    cells = SparseBatch.of(view_rows(task.X), np.arange(5), 12)
    found = task.net.embed(cells).detach()
    np.testing.assert_allclose(found, literal_embed(task.net, X, pooling=pooling), atol=1e-5)


def test_gain_lets_the_attention_begin_away_from_one_half(X):
    spreads = []
    for gain in (1.0, 100.0):
        net = (
            RankAE(device="cpu", gain=gain)._prepare(sp.csr_matrix(X), Y_OF_5, None, 64, "cpu").net
        )
        e = net.words.detach()
        spreads.append(torch.sigmoid(attend(e, net.squeeze, net.excite)).std().item())
    assert spreads[1] == pytest.approx(100 * spreads[0], rel=0.2)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"residual": False},
        {"attention": False},
        {"attention": False, "residual": False},
        {"pooling": "mean"},
        {"pooling": "mean", "residual": False},
    ],
    ids=str,
)
def test_what_predicts_is_what_was_trained(X, parameters):
    """The compiled reader gives the network's own values, and decodes them."""
    task = make_task(X, **parameters, normalize=False)
    net = quantize_words(task.net.eval())
    latent = net.embed(SparseBatch.of(view_rows(task.X), np.arange(5), 12))
    expected = net.decode(latent).detach()
    reader = net.requires_grad_(False).export(np.ones(12, np.float32))
    found = read_rows(reader, view_rows(task.X), task.model._options)
    np.testing.assert_allclose(found[:, :-1], expected, atol=1e-4)
    assert (found[:, -1] == 1).all()


def quantize_words(net):
    """Give the network the word vectors that its reader will have."""
    words = net.words.detach().numpy()
    kept = QuantizedRows.of(words).take(slice(None), words.shape[1])
    net.words.data.copy_(torch.from_numpy(kept))
    return net


def test_gradients_reach_every_word_and_no_other(X):
    task = make_task(X, keep=1.0)
    batch = task.batch(np.array([0, 3]), np.random.default_rng(0))
    task.loss(batch).backward()
    gradient = task.net.words.grad.to_dense()
    touched = (X[[0, 3]] != 0).any(axis=0)
    assert (gradient[touched] != 0).any(dim=1).all()
    assert (gradient[~touched] == 0).all()
    for name, weight in task.net.named_parameters():
        assert weight.grad is not None, name


def test_the_gradient_of_the_attention_is_right(X):
    task = make_task(X, normalize=False, keep=1.0, dropout=0.0)
    net = task.net.double()
    cells = SparseBatch.of(view_rows(task.X), np.arange(5), 12)
    cells = cells._replace(value=cells.value.double())
    direction = torch.randn(5, 6, dtype=torch.float64)

    start = net.squeeze.detach().clone()
    exact = torch.autograd.functional.jacobian(
        lambda squeeze: (literal_embed_torch(net, X, squeeze) * direction).sum(), start
    )
    (net.embed(cells) * direction.float()).sum().backward()
    torch.testing.assert_close(net.squeeze.grad, exact, rtol=1e-3, atol=1e-4)


def literal_embed_torch(net, X, squeeze):
    rows = []
    for x in torch.from_numpy(X):
        V = x[:, None] * net.words.detach()
        A = torch.sigmoid(torch.relu(V @ squeeze.T) @ net.excite.detach().T)
        rows.append(torch.nn.functional.normalize((V * A).sum(0), dim=0))
    return torch.stack(rows) @ net.project.weight.detach().T + net.project.bias.detach()


# -- the loss as a whole --------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["ranking", "bce"])
def test_the_loss_is_equation_1(X, loss):
    task = make_task(X, loss=loss, keep=1.0, dropout=0.0, balance=0.3, normalize=False)
    batch = task.batch(np.arange(5), np.random.default_rng(0))
    net = task.net
    found = task.loss(batch)
    with torch.no_grad():
        x_h = net.embed(SparseBatch.from_batch(batch))
        y_h = net.encode(SparseBatch(*(batch[f"y.{name}"] for name in SparseBatch._fields)))
        scores = net.decode(y_h) @ net.labels.T + net.bias
        relevant = torch.eye(5, dtype=torch.bool)
        rebuilt = (losses.bce if loss == "bce" else lambda s, r: ranking(s, r, 1.0))(
            scores, relevant
        )
        expected = ((x_h - y_h) ** 2).mean() + 0.3 * rebuilt
    torch.testing.assert_close(found, expected)


def test_the_autoencoder_begins_by_giving_back_its_labels():
    """Else the ranking loss rests where all scores are equal."""
    rng = np.random.default_rng(0)
    Y = sp.csr_matrix((rng.random((50, 200)) < 0.05).astype(np.float32))
    X = sp.csr_matrix((50, 3), dtype=np.float32)
    for residual in (True, False):
        model = RankAE(device="cpu", dropout=0.0, residual=residual)
        net = model._prepare(X, Y, None, 4, "cpu").net
        scores = (
            net.decode(net.encode(SparseBatch.of(view_rows(Y), np.arange(50), 200))) @ net.labels.T
        )
        found = 0
        for i in range(50):
            best = scores[i].topk(Y[i].nnz).indices.numpy()
            found += len(np.intersect1d(best, Y[i].indices))
        assert found > 0.85 * Y.nnz


@pytest.mark.parametrize("sampled", [0, 3])
@pytest.mark.parametrize("loss", ["ranking", "bce"])
def test_a_batch_without_any_labels(loss, sampled):
    X, Y = planted_dataset().X, planted_dataset().Y.tolil()
    Y[:200] = 0
    model = RankAE(**SMALL, loss=loss, sampled=sampled)
    task = model._prepare(X, Y.tocsr(), None, 16, "cpu")
    value = task.loss(task.batch(np.arange(200), np.random.default_rng(0)))
    value.backward()
    assert torch.isfinite(value)
    assert loss == "bce" or value == 0


def test_sampled_labels_are_those_of_the_batch_and_some_more():
    data = planted_dataset()
    task = RankAE(**SMALL, sampled=2)._prepare(data.X, data.Y, None, 16, "cpu")
    rows = np.array([0, 7])
    batch = task.batch(rows, np.random.default_rng(0))
    candidates = batch["candidates"].numpy()
    assert np.array_equal(candidates, np.unique(candidates))
    marked = np.zeros((2, len(candidates)))
    marked[batch["documents"], batch["labels"]] = 1
    assert np.array_equal(marked, data.Y[rows].toarray()[:, candidates])
    assert marked.sum() == data.Y[rows].nnz


def test_sampled_labels_leave_the_others_alone():
    X, Y = planted_dataset().X, planted_dataset().Y
    Y = sp.csr_matrix((Y.data, Y.indices, Y.indptr), shape=(300, 5000))
    net = RankAE(**SMALL)._prepare(X, Y, None, 16, "cpu").net
    before = np.hstack([net.labels.detach(), net.bias.detach()[:, None]])
    model = RankAE(**{**SMALL, "epochs": 1}, sampled=1).fit(X, Y)
    same = (model.index_.rows.codes == QuantizedRows.of(before).codes).all(axis=1)
    assert same.sum() > 4900
    assert not same[:12].any()


# -- the model ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {"loss": "bce", "balance": 1.0},
        {"attention": False},
        {"residual": False},
        {"gain": 100.0},
        {"pooling": "mean", "spread": None, "learning_rate": 0.02},
        {"output": "sigmoid", "margin": 0.2},
        {"output": "sigmoid", "sampled": 5},
        {"start": "random"},
        {"sampled": 5},
        {"sampled": 5, "loss": "bce", "balance": 1.0},
        {"reduction": 100},
        {"keep": 1.0, "dropout": 0.0},
        {"normalize": False},
        {"idf": False},
        {"valid": 0.2, "patience": 3},
    ],
    ids=str,
)
def test_every_variant_learns(parameters):
    test = planted_dataset(seed=1)
    top = RankAE(**{**SMALL, "epochs": 12}, **parameters).fit(planted_dataset()).predict(test)
    assert evaluate(top, test)["P@1"] > 90


def dense_data(n=400, seed=0):
    """Planted rows under a rotation: every feature has a value, half of them below 0."""
    data = planted_dataset(n, seed=seed)
    mixed = np.linalg.qr(np.random.default_rng(7).normal(size=(56, 56)))[0]
    return data.X.toarray() @ mixed, data.Y


def test_dense_rows_with_negative_values():
    X, Y = dense_data()
    model = RankAE(**{**SMALL, "epochs": 30}).fit(X, Y)
    assert model.dense_
    Xt, Yt = dense_data(seed=1)
    top = model.predict(Xt)
    assert evaluate(top, Yt)["P@1"] > 95
    one = model.predict(Xt[5:6])
    assert np.array_equal(one.scores[0], top.scores[5])


@pytest.mark.parametrize("size", [1e-8, 1e-15])
def test_dense_rows_of_small_values_are_saved_and_read(size, tmp_path):
    X, Y = dense_data(n=50)
    small = X * np.float32(size)
    model = RankAE(**{**SMALL, "epochs": 1}).fit(small, Y)
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert np.array_equal(again.predict(small).scores, model.predict(small).scores)


def test_dense_columns_speak_equally_loud(tmp_path):
    """The unit of a measurement makes no difference."""
    X, Y = dense_data()
    units = 10.0 ** np.random.default_rng(0).integers(-3, 4, size=56)
    plain = RankAE(**SMALL).fit(X, Y)
    other = RankAE(**SMALL).fit(X * units, Y)
    Xt, Yt = dense_data(seed=1)
    scores = [
        evaluate(plain.predict(Xt), Yt)["P@1"],
        evaluate(other.predict(Xt * units), Yt)["P@1"],
    ]
    assert abs(scores[0] - scores[1]) < 2
    other.save(tmp_path / "model")
    assert load_model(tmp_path / "model").dense_


def test_negative_values_where_words_are_expected():
    X, Y = planted_dataset().X.copy(), planted_dataset().Y
    X.data[3] = -0.5
    row = int(np.searchsorted(X.indptr, 3, side="right")) - 1
    message = (
        f"X holds -0.5 in row {row}, column {X.indices[3]}; counts and weights of words are "
        "never negative (set input=dense if the rows are no words)"
    )
    with pytest.raises(DataError) as caught:
        RankAE(**SMALL).fit(X, Y)
    assert str(caught.value) == message
    model = RankAE(**SMALL).fit(planted_dataset())
    with pytest.raises(DataError, match="this model was trained on words"):
        model.predict(X)
    with pytest.raises(DataError, match="this model was trained on words"):
        model.predict(X.toarray())
    assert RankAE(**SMALL, input="dense").fit(X, Y).dense_
    with pytest.raises(DataError, match="never negative"):
        RankAE(**SMALL, input="words").fit(*dense_data())


def test_word_vectors_from_a_file(tmp_path):
    path = tmp_path / "vectors.txt"
    rng = np.random.default_rng(0)
    lines = [f"word{i} " + " ".join(f"{x:.3f}" for x in rng.normal(size=20)) for i in range(40)]
    path.write_text("\n".join(lines) + "\n")
    model = RankAE(**{**SMALL, "word_dim": None}, vectors=str(path)).fit(planted_texts())
    assert len(model.reader_.squeeze) == 20
    assert evaluate(model.predict(planted_texts(seed=1)), planted_texts(seed=1))["P@1"] > 90


def test_word_vectors_for_rows_with_feature_names(tmp_path):
    """A folder of rows names its features; the saved model no longer needs these names."""
    rng = np.random.default_rng(0)
    data = replace(planted_dataset(), feature_names=[f"word{i}" for i in range(56)])
    write_dataset(data, tmp_path / "data")
    assert (tmp_path / "data" / "feature_names.txt").exists()
    vectors = rng.normal(size=(40, 20)).round(3)
    lines = [f"word{i} " + " ".join(map(str, vector)) for i, vector in enumerate(vectors)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    train, _ = longtail.load(tmp_path / "data")
    model = RankAE(
        **{**SMALL, "word_dim": None, "learning_rate": 1e-9, "epochs": 1},
        vectors=str(tmp_path / "vectors.txt"),
        spread=None,
    ).fit(train)
    words = model.reader_.words.take(slice(None), vectors.shape[1])
    np.testing.assert_allclose(words[:40], vectors, atol=0.01 * np.abs(vectors).max())
    assert words[40:].std() == pytest.approx(vectors.std(), rel=0.2)
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model").predict(planted_dataset(seed=1))
    assert np.array_equal(again.labels, model.predict(planted_dataset(seed=1)).labels)


def test_given_vectors_keep_their_directions_and_are_no_larger_than_others():
    given = np.array([[1, 2, 3, 4], [0, 0, 0, 0], [-1, 0, 0, 5]], np.float32)
    X = sp.csr_matrix((1, 3), dtype=np.float32)
    net = RankAE(device="cpu")._prepare(X, sp.csr_matrix((1, 2)), given, 4, "cpu").net
    words = net.words.detach().numpy()
    np.testing.assert_allclose(words[0] / words[0, 0], given[0], rtol=1e-5)
    np.testing.assert_allclose(np.sqrt((words[[0, 2]] ** 2).mean()), 0.01, rtol=1e-5)
    assert 0 < np.abs(words[1]).max() < 0.1


def test_word_vectors_that_cannot_be_used(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("word0 1 2 3 4\nword1 -1 0 0 5\n")
    with pytest.raises(ParameterError) as caught:
        RankAE(**SMALL, vectors=str(path)).fit(planted_dataset())
    assert str(caught.value) == (
        "the 'vectors' parameter of RankAE needs words, and these rows have none; put a "
        "feature_names.txt beside the data, train on texts, or leave vectors out"
    )
    with pytest.raises(DataError, match="holds vectors of 4 values, but word_dim is 16"):
        RankAE(**SMALL, vectors=str(path)).fit(planted_texts())
    with pytest.raises(DataError, match="no such file or folder"):
        RankAE(**SMALL, vectors=str(tmp_path / "none.txt")).fit(planted_texts())


def test_held_out_documents_choose_the_weights():
    model = RankAE(**{**SMALL, "epochs": 4}, valid=0.25).fit(planted_dataset())
    records = [record["nDCG@5"] for record in model.history_.records if "nDCG@5" in record]
    assert len(records) == 4
    assert model.history_.best["nDCG@5"] == max(records)
    assert model.history_.best["n_documents"] == 75


def test_scores_say_how_often_a_label_is_right():
    """A logistic curve through the decoder's scores, which have no natural zero."""
    rng = np.random.default_rng(0)
    scores = rng.normal(3, 2, size=20_000)
    relevant = rng.random(20_000) < 1 / (1 + np.exp(-(1.5 * scores - 6)))
    slope, shift = fit_score_curve(scores, relevant)
    assert slope == pytest.approx(1.5, rel=0.05)
    assert shift == pytest.approx(-6, rel=0.05)


@pytest.mark.parametrize("relevant", [[True, True], [False, False], [True, False]])
def test_the_curve_rises_whatever_it_is_given(relevant):
    slope, shift = fit_score_curve(np.array([1.0, 2.0]), np.array(relevant))
    assert 0 < slope < 100
    assert np.isfinite(shift)


def test_predicted_scores_are_calibrated_on_planted_data(trained):
    test = planted_dataset(seed=1)
    top = trained.predict(test, k=12)
    right = test.Y.toarray()[np.arange(300)[:, None], top.labels] > 0
    assert top.scores[right].mean() > 0.7
    assert top.scores[~right].mean() < 0.1


# -- explaining -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    return RankAE(**{**SMALL, "epochs": 25}).fit(planted_dataset())


def test_attention_weighs_every_word_of_a_document(trained):
    row = planted_dataset(seed=1).X[0]
    found = trained.explain(row)
    assert {term.name for term in found.terms} == {f"feature {i}" for i in row.indices}
    assert all(term.weight > 0 for term in found.terms)
    assert sum(term.weight for term in found.terms) == pytest.approx(1)


def test_the_words_of_a_label_speak_for_it(trained):
    test = planted_dataset(seed=1)
    right = 0
    for i in range(50):
        label = int(test.Y[i].indices[0])
        best = trained.explain(test.X[i], str(label)).terms[0]
        own = [f"feature {3 * label + j}" for j in range(3)]
        right += best.name in own and best.weight > 0
    assert right >= 45


def test_what_words_add_up_to_is_the_score_but_for_the_biases(trained):
    zeros = dict.fromkeys(("project_bias", "decode_bias"), np.zeros(16, np.float32))
    reader, options = trained.reader_._replace(**zeros), trained._options
    for i in range(5):
        row = view_rows(planted_dataset(seed=1).X[i])
        vector = trained.index_.vectors[i, :-1]
        score = float(read_rows(reader, row, options)[0, :-1] @ vector)
        assert weigh_words(reader, row, options, vector).sum() == pytest.approx(score, abs=1e-4)


def test_only_one_document_at_a_time(trained):
    with pytest.raises(DataError, match="one document can be explained at a time; got 300"):
        trained.explain(planted_dataset().X)
    with pytest.raises(ParameterError, match="the model knows no label '99'"):
        trained.explain(planted_dataset().X[0], "99")


def test_the_parts_of_a_weight_multiply_to_it(trained):
    """Attention is told from the word's own weight and from the length of its vector."""
    row = planted_dataset(seed=1).X[0]
    terms = trained.explain(row).terms
    assert all(list(term.parts) == ["value", "vector", "attention"] for term in terms)
    products = np.array([np.prod(list(term.parts.values())) for term in terms])
    np.testing.assert_allclose(
        products / products.sum(), [term.weight for term in terms], rtol=1e-4
    )
    assert all(0 < term.parts["attention"] < 1 for term in terms)


def test_texts_and_models_without_attention_name_their_parts(tmp_path):
    model = RankAE(**{**SMALL, "epochs": 2}, attention=False).fit(planted_texts())
    found = model.explain(planted_texts(seed=1).texts[0])
    assert list(found.terms[0].parts) == ["tf-idf", "vector"]
    page = found.to_html()
    assert "<th>word</th><th>weight</th><th>tf-idf</th><th>vector</th>" in page
    assert "attention" not in page


# -- a BiLSTM in front of the attention -----------------------------------------------------------


@pytest.fixture(scope="module")
def sequential():
    settings = {**SMALL, "reader": "bilstm", "spread": 0.1, "learning_rate": 0.01}
    return RankAE(**settings).fit(planted_texts())


def literal_bilstm(lstm, words, ids):
    """The recurrence of Hochreiter & Schmidhuber with forget gates, from torch's parameters."""

    def run(ending, sequence):
        W, U, b, c = (
            getattr(lstm, f"{name}_l0{ending}").detach().double().numpy()
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        half = U.shape[1]
        state, cell, states = np.zeros(half), np.zeros(half), []
        for word in sequence:
            gates = W @ words[word] + U @ state + b + c
            i, f, g, o = gates.reshape(4, half)
            cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            state = np.tanh(cell) / (1 + np.exp(-o))
            states.append(state)
        return states

    back = run("_reverse", ids[::-1])[::-1]
    return np.array([np.concatenate(pair) for pair in zip(run("", ids), back, strict=True)])


@pytest.mark.parametrize("pooling", ["unit", "mean"])
def test_the_bilstm_in_training_and_prediction_is_the_literal_one(pooling):
    texts = TokenRows(np.array([0, 4, 5, 5, 11]), np.arange(11, dtype=np.int32) % 7)
    X = sp.csr_matrix((4, 7), dtype=np.float32)
    Y = sp.csr_matrix(np.eye(4, 5, dtype=np.float32))
    model = RankAE(dim=6, spread=1.0, reader="bilstm", pooling=pooling, device="cpu")
    net = quantize_words(model._prepare(X, Y, None, 9, "cpu", texts).net.eval())
    x_h = net.embed_batch(net.gather(texts, np.arange(4)))
    decoded = net.decode(x_h).detach()
    reader = net.requires_grad_(False).export(np.ones(7, np.float32))
    found = read_texts(reader, net.export_bilstm(), texts, model._options)
    np.testing.assert_allclose(found[:, :-1], decoded, atol=1e-5)

    words, F1, F2, project = (
        weight.detach().double().numpy()
        for weight in (net.words, net.squeeze, net.excite, net.project.weight)
    )
    for i in (0, 1, 3):
        ids = texts.tokens[texts.start[i] : texts.start[i + 1]]
        V = literal_bilstm(net.lstm, words, ids)
        A = 1 / (1 + np.exp(-(F2 @ np.maximum(F1 @ V.T, 0)).T))
        x = (V * A).mean(axis=0)
        x = x / np.linalg.norm(x) if pooling == "unit" else x
        expected = project @ x + net.project.bias.double().numpy()
        np.testing.assert_allclose(x_h[i].detach(), expected, atol=1e-5)
    np.testing.assert_allclose(x_h[2].detach(), net.project.bias, atol=1e-6)  # no words


def test_a_bilstm_learns_predicts_and_is_saved(sequential, tmp_path):
    test = planted_texts(seed=1)
    top = sequential.predict(test)
    assert evaluate(top, test)["P@1"] > 90
    assert np.array_equal(sequential.predict([test.texts[7]]).scores[0], top.scores[7])
    sequential.save(tmp_path / "model")
    again = load_model(tmp_path / "model").predict([*test.texts, "nothing known"])
    assert np.array_equal(again.scores[:-1], top.scores)
    assert again.labels[-1].tolist() == sequential.frequent_labels(5)[0].tolist()


def test_a_bilstm_explains_by_its_attention(sequential):
    text = planted_texts(seed=1).texts[0]
    found = sequential.explain(text)
    assert {text[a:b] for term in found.terms for a, b in term.spans} == set(text.split())
    assert all(list(term.parts) == ["attention"] for term in found.terms)
    assert sum(term.weight for term in found.terms) == pytest.approx(1)
    test, right = planted_texts(seed=1), 0
    for i in range(50):
        label = test.Y[i].indices[0]
        best = sequential.explain(test.texts[i], test.label_names[label]).terms[0]
        right += best.name in {f"word{3 * label + j}" for j in range(3)}
    assert right >= 35
    with pytest.raises(ParameterError, match="the model knows no label 'x'"):
        sequential.explain(text, "x")


@pytest.mark.parametrize("several", [["one text", "another"], []])
def test_a_bilstm_explains_one_text_at_a_time(several, sequential):
    with pytest.raises(DataError, match="one document can be explained at a time"):
        sequential.explain(several)


def test_a_bilstm_needs_texts_and_reads_only_so_many_words(tmp_path):
    with pytest.raises(DataError) as caught:
        RankAE(**SMALL, reader="bilstm").fit(planted_dataset())
    assert str(caught.value) == (
        "reader=bilstm reads texts word by word, and these are feature rows; "
        "train on texts, or leave reader out"
    )
    settings = {**SMALL, "epochs": 1, "reader": "bilstm", "max_length": 2}
    model = RankAE(**settings).fit(planted_texts())
    text = planted_texts(seed=1).texts[0]
    two = " ".join(text.split()[:2])
    assert np.array_equal(model.predict([text]).scores, model.predict([two]).scores)
    assert len(model.explain(text).terms) == 2


def test_held_out_texts_choose_the_weights_of_a_bilstm():
    settings = {**SMALL, "epochs": 3, "reader": "bilstm", "valid": 0.25}
    model = RankAE(**settings).fit(planted_texts())
    assert model.history_.best["n_documents"] == 75


def test_a_saved_bilstm_whose_sizes_do_not_fit_is_refused(sequential, tmp_path):
    files = sequential.to_files()
    for direction in ("onwards", "backwards"):
        for field in ("from_words", "from_state", "bias"):
            name = f"bilstm.{direction}.{field}"
            files.arrays[name] = np.ascontiguousarray(files.arrays[name][..., :-1])
    with pytest.raises(ModelFileError, match="an LSTM with 31 gates and 8 states does not fit"):
        RankAE.from_files(files, tmp_path)


# -- the paper's own form -------------------------------------------------------------------------


def test_the_preset_is_the_paper():
    """Sizes of section 3.1; what the paper prints, without what it does not mention."""
    model = RankAE.from_settings({"preset": "paper", "margin": "0"})
    assert (model.dim, model.word_dim, model.reduction, model.margin) == (100, 100, 4, 0)
    assert (model.output, model.start, model.pooling) == ("sigmoid", "random", "mean")
    assert (model.residual, model.loss, model.gain) == (False, "ranking", 1)
    assert (model.keep, model.dropout, model.idf, model.normalize) == (1, 0, False, False)
    with pytest.raises(ParameterError, match=r"from 0 to 1 with output=sigmoid\. Got 1\.5"):
        RankAE.from_settings({"preset": "paper", "margin": "1.5"})


def test_the_paper_s_form_learns():
    test = planted_dataset(seed=1)
    sizes = {"dim": 32, "word_dim": 32, "batch_size": 32, "learning_rate": 0.005}
    model = RankAE.from_settings({"preset": "paper", **sizes, "device": "cpu"})
    model.fit(planted_dataset())
    assert evaluate(model.predict(test), test)["P@1"] > 90


def test_a_random_start_has_different_ends():
    Y = sp.csr_matrix(np.eye(30, 20, dtype=np.float32))
    X = sp.csr_matrix((30, 3), dtype=np.float32)
    for start, same in (("same", True), ("random", False)):
        net = RankAE(device="cpu", start=start)._prepare(X, Y, None, 4, "cpu").net
        assert torch.equal(net.encode_first, net.labels) == same


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "range_text"),
    [
        ("dim", 0, "at least 1"),
        ("reduction", 0, "at least 1"),
        ("word_dim", 0, "at least 1, or none"),
        ("sampled", -1, "from 0 to 10000000, or none"),
        ("loss", "hinge", "'ranking' or 'bce'"),
        ("input", "images", "'auto' or 'words' or 'dense'"),
        ("margin", -0.1, "at least 0"),
        ("spread", 0.0, "above 0, or none"),
        ("output", "softmax", "'linear' or 'sigmoid'"),
        ("balance", float("nan"), "above 0"),
        ("keep", 0.0, "above 0 and at most 1"),
        ("dropout", 1.0, "from 0 to below 1"),
        ("device", "tpu", "'auto' or 'cpu' or 'cuda'"),
    ],
)
def test_parameters_out_of_range(name, value, range_text):
    with pytest.raises(ParameterError) as caught:
        RankAE(**{name: value}).fit(planted_dataset())
    assert str(caught.value) == (
        f"The '{name}' parameter of RankAE must be {range_text}. Got {value!r} instead."
    )


def test_training_without_torch_names_the_command(monkeypatch):
    monkeypatch.setattr(neural, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        RankAE().fit(planted_dataset())
    assert str(caught.value) == (
        "Rank-AE needs torch, which is not installed; install it with: pip install '.[deep]'"
        ", in the folder with longtail's source"
    )


def test_too_little_memory_is_said_before_training(monkeypatch):
    monkeypatch.setattr("longtail.runtime.memory.free_ram", lambda: 1 << 20)
    with pytest.raises(ParameterError, match=r"training would take about .* but only 1\.0 MiB"):
        RankAE(device="cpu").fit(planted_dataset())


def test_a_trained_model_predicts_and_explains_without_torch(tmp_path):
    model = RankAE(**SMALL).fit(planted_dataset())
    model.save(tmp_path / "model")
    code = """
import sys
sys.modules["torch"] = None
import longtail, numpy, scipy.sparse
model = longtail.load_model(sys.argv[1])
X = scipy.sparse.csr_matrix(numpy.eye(56, dtype=numpy.float32))
print(model.predict(X, k=1).labels.ravel().tolist(), len(model.explain(X[:1]).terms))
"""
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")],
        capture_output=True,
        text=True,
        check=True,
    )
    X = sp.csr_matrix(np.eye(56, dtype=np.float32))
    assert answer.stdout.strip() == f"{model.predict(X, k=1).labels.ravel().tolist()} 1"
