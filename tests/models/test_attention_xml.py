"""The equations of the AttentionXML paper against literal versions, and what its model promises."""

import numpy as np
import pytest
import scipy.sparse as sp
from planted import planted_dataset, planted_texts

torch = pytest.importorskip("torch")

from longtail import evaluate, load_model  # noqa: E402
from longtail.errors import DataError, ModelFileError, ParameterError  # noqa: E402
from longtail.labels.tree import LabelTree  # noqa: E402
from longtail.models.attention_xml import model as estimator  # noqa: E402
from longtail.models.attention_xml import network, training  # noqa: E402
from longtail.models.attention_xml.loss import bce, bce_over_nodes  # noqa: E402
from longtail.models.attention_xml.model import AttentionXML  # noqa: E402
from longtail.models.attention_xml.network import (  # noqa: E402
    START,
    AttentionXMLNetwork,
    Shape,
    find_shapes,
    from_arrays,
    pool,
    to_arrays,
)
from longtail.models.attention_xml.search import (  # noqa: E402
    ProbabilisticLabelTree,
    list_children,
    mean_of,
    pick,
    read_documents,
    unite,
)
from longtail.models.attention_xml.training import (  # noqa: E402
    choose_candidates,
    choose_width,
    find_nodes,
    mark_relevant,
    number_anew,
)
from longtail.progress import Silent  # noqa: E402
from longtail.runtime.rows import view_rows  # noqa: E402
from longtail.runtime.store import read_folder, write_folder  # noqa: E402
from longtail.text.tokens import TokenRows  # noqa: E402
from longtail.topk import NO_LABEL, TopK  # noqa: E402

CPU = torch.device("cpu")
SMALL = {
    "hidden": 8,
    "head": 8,
    "word_dim": 8,
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 0.02,
    "dropout": 0.2,
    "device": "cpu",
}
TREE = {"levels": 1, "branching": 4, "candidates": 2}


def make_network(**parts):
    torch.manual_seed(0)
    shape = {
        "n_words": 20,
        "word_dim": 5,
        "encoder": "bilstm",
        "hidden": 3,
        "head": (4,),
        "attention": True,
        "pooling": 1,
        "direct": True,
        "n_nodes": 7,
    }
    net = AttentionXMLNetwork(Shape(**{**shape, **parts}))
    with torch.no_grad():
        net.labels.normal_(0, 0.3)
        for parameter in net.encoder.parameters():
            parameter.normal_(0, 0.5)
    return net.eval()


def make_tokens(*lengths):
    rng = np.random.default_rng(0)
    start = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return TokenRows(start, rng.integers(1, 20, start[-1]).astype(np.int32))


@torch.no_grad()
def read_alone(net, tokens, row):
    return read_documents(net, tokens, np.array([row]), CPU)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# -- equations ---------------------------------------------------------------------------------


def literal_lstm(x, lstm, h, c):
    """Return the states of one direction, gate by gate."""
    W, U, b, d = (p.detach().numpy().astype(np.float64) for p in lstm.parameters())
    states = []
    for row in x:
        i, f, g, o = np.split(W @ row + b + U @ h + d, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.array(states)


def test_the_encoder_reads_a_document_from_both_its_ends():
    net = make_network()
    tokens = make_tokens(4, 2)
    with torch.no_grad():
        read = read_documents(net, tokens, np.array([0, 1]), CPU)
    start = net.encoder.start.detach().numpy()[..., 0, 0, :]
    for row, size in ((0, 4), (1, 2)):
        words = tokens.tokens[tokens.start[row] : tokens.start[row + 1]]
        x = net.words.detach().numpy()[words]
        ahead = literal_lstm(x, net.encoder.onwards, *start[0])
        back = literal_lstm(x[::-1], net.encoder.backwards, *start[1])[::-1]
        found = read.tokens[row, :size].numpy()
        np.testing.assert_allclose(found, np.hstack([ahead, back]), atol=1e-6)


def literal_score(net, h, row):
    """Equation (2), then the fully connected layers, for one document and one label."""
    parameters = {name: value.detach().numpy() for name, value in net.named_parameters()}
    w = row
    weights = np.array([np.exp(h[i] @ w) for i in range(len(h))])
    alpha = weights / sum(np.exp(h[t] @ w) for t in range(len(h)))
    m = sum(alpha[i] * h[i] for i in range(len(h)))
    hidden = m
    for i in range(len(net.layers)):
        weight, shift = parameters[f"layers.{i}.weight"], parameters[f"layers.{i}.bias"]
        hidden = np.maximum(weight @ hidden + shift, 0)
    score = (parameters["output.weight"] @ hidden + parameters["output.bias"])[0]
    return alpha, score + m @ w if net.shape.direct else score


@pytest.mark.parametrize("parts", [{"direct": False}, {"head": (4, 6), "direct": False}, {}])
def test_attention_and_scores_are_those_of_the_paper(parts):
    net, tokens = make_network(**parts), make_tokens(4, 2, 5)
    rows = net.labels.detach().numpy()
    with torch.no_grad():
        together = read_documents(net, tokens, np.array([2, 0, 1]), CPU)  # two have padding
        scores, attention = net.score(together, net.labels), net.attend(together, net.labels)
    for place, size in enumerate((5, 4, 2)):
        h = together.tokens[place, :size].numpy()
        for label in range(7):
            alpha, score = literal_score(net, h, rows[label])
            np.testing.assert_allclose(attention[place, :size, label], alpha, rtol=1e-4)
            np.testing.assert_allclose(scores[place, label], score, rtol=1e-4, atol=1e-5)
        assert (attention[place, size:] == 0).all()


@pytest.mark.parametrize("direct", [True, False])
def test_matches_tell_labels_apart_where_a_text_has_one_word(direct):
    net = make_network(direct=direct)
    with torch.no_grad():
        scores = net.score(read_alone(net, make_tokens(1), 0), net.labels)[0].numpy()
    assert len(set(scores.tolist())) == (7 if direct else 1)  # one word has all the attention


def test_without_attention_each_unit_keeps_its_largest_value():
    net, tokens = make_network(attention=False), make_tokens(4, 2)
    with torch.no_grad():
        read = read_documents(net, tokens, np.array([0, 1]), CPU)
        scores = net.score(read, net.labels).numpy()
    rows = net.labels.detach().numpy()
    own = rows[:, :-1]
    layer = net.layers[0]
    for row, size in ((0, 4), (1, 2)):
        pooled = read_alone(net, tokens, row).tokens[0, :size].numpy().max(0)
        hidden = np.maximum(layer.weight.detach().numpy() @ pooled + layer.bias.detach().numpy(), 0)
        np.testing.assert_allclose(scores[row], own @ hidden + rows[:, -1], rtol=1e-4)


def test_dynamic_pooling_keeps_the_largest_value_of_each_part():
    tokens, lengths = torch.randn(2, 7, 3), torch.tensor([7, 2])
    found = pool(tokens, lengths, 3)
    # The seven words of the first are cut into 3 + 2 + 2, the two of the second into 1 + 1 + 0.
    first = [tokens[0, :3].amax(0), tokens[0, 3:5].amax(0), tokens[0, 5:].amax(0)]
    second = [tokens[1, 0], tokens[1, 1], torch.zeros(3)]
    assert torch.equal(found, torch.stack([torch.cat(first), torch.cat(second)]))


@pytest.mark.parametrize("encoder", ["bilstm", "cnn"])
@pytest.mark.parametrize("parts", [{}, {"attention": False}, {"attention": False, "pooling": 4}])
def test_padding_changes_nothing(encoder, parts):
    net, tokens = make_network(encoder=encoder, **parts), make_tokens(3, 9, 1)
    with torch.no_grad():
        together = net.score(read_documents(net, tokens, np.array([1, 0, 2]), CPU), net.labels)
        for place, row in enumerate((1, 0, 2)):
            alone = net.score(read_alone(net, tokens, row), net.labels)
            np.testing.assert_allclose(together[place], alone[0], rtol=1e-4, atol=1e-5)


def test_the_loss_is_binary_cross_entropy():
    rng = np.random.default_rng(0)
    scores, relevant = rng.normal(size=(3, 5)), (rng.random((3, 5)) < 0.4).astype(np.float64)
    counted = (rng.random((3, 5)) < 0.7).astype(np.float64)
    p = sigmoid(scores)
    literal = -(relevant * np.log(p) + (1 - relevant) * np.log(1 - p))
    as_tensors = [torch.from_numpy(each) for each in (scores, relevant, counted)]
    assert bce(*as_tensors[:2]).item() == pytest.approx(literal.sum())
    assert bce(*as_tensors).item() == pytest.approx((literal * counted).sum())


@pytest.mark.parametrize("parts", [{}, {"direct": False, "head": (4, 6)}, {"attention": False}])
def test_pieces_give_the_loss_and_gradients_of_the_whole(parts, monkeypatch):
    net, tokens = make_network(**parts), make_tokens(4, 2, 5)
    rng = np.random.default_rng(0)
    relevant = torch.from_numpy((rng.random((3, 8)) < 0.3).astype(np.float32))
    relevant[:, 7:] = 0

    def gradients(compute):
        net.zero_grad()
        net.words.requires_grad_(False)  # their gradient is sparse, and tested elsewhere
        read = read_documents(net, tokens, np.array([2, 0, 1]), CPU)
        loss = compute(read)
        (loss * 3).backward()
        return loss.item(), [None if p.grad is None else p.grad.clone() for p in net.parameters()]

    whole = gradients(lambda read: bce(net.score(read, net.labels), relevant[:, :7]))
    monkeypatch.setitem(network.ALIGN, "cpu", 2)  # 7 labels fill up to 8
    monkeypatch.setattr(
        network, "count_numbers", lambda device: 30
    )  # so that there are several pieces
    pieces = gradients(lambda read: bce_over_nodes(net, read, relevant))
    assert pieces[0] == pytest.approx(whole[0], rel=1e-5)
    for one, other in zip(whole[1], pieces[1], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# -- the tree ----------------------------------------------------------------------------------

# Level 1: three nodes, of which the labels 4 0 | 3 1 2 | 5 are the children.
PLANTED_TREE = LabelTree(
    [np.array([0, 3], np.int32), np.array([0, 2, 5, 6], np.int32)],
    np.array([4, 0, 3, 1, 2, 5], np.int32),
)


def test_a_node_is_right_where_a_label_below_it_is():
    Y = sp.csr_matrix(np.array([[1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1], [0] * 6], np.float32))
    above = find_nodes(Y, PLANTED_TREE, 1)
    assert above.toarray().tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    places = find_nodes(Y, PLANTED_TREE, 2)  # of the leaves
    assert [places[i].indices.tolist() for i in range(3)] == [[0, 1], [4, 5], []]


def test_candidates_are_the_true_nodes_then_the_best():
    parents = sp.csr_matrix(np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], np.float32))
    best = np.array([[3, 0, 2], [2, 1, -1], [3, 2, 1]], np.int32)
    chosen = choose_candidates(parents, best, 3)
    assert chosen.tolist() == [[1, 3, 0], [2, 1, -1], [0, 1, 2]]
    assert choose_candidates(parents, best, 2).tolist() == [[1, 3], [2, 1], [2, 1]]
    # What the level above does not rank comes last; a true node never has to wait for a wrong one.
    assert choose_candidates(parents, best[:, :2], 2).tolist() == [[1, 3], [2, 1], [2, 0]]


def test_candidates_are_as_many_as_documents_need():
    tree = LabelTree(
        [np.array([0, 64], np.int32), np.arange(0, 129, 2, dtype=np.int32)],
        np.arange(128, dtype=np.int32),
    )
    few = sp.csr_matrix(np.eye(40, 128, dtype=np.float32))
    assert choose_width(few, tree, 64, 960) == 15
    assert choose_width(few, tree, 32, 960) == 30
    assert choose_width(few, tree, 16, 128) == 8
    many = few.tolil()
    many[:4, :40] = 1  # a tenth of the documents have labels below 20 nodes
    assert choose_width(many.tocsr(), tree, 64, 960) == 40
    many[:4] = 1  # below all 64
    assert choose_width(many.tocsr(), tree, 64, 960) == 64
    assert choose_width(many.tocsr(), LabelTree.flat(128), 64, 960) == 15


def test_the_number_of_candidates_is_said_and_saved(texts, tmp_path):
    said = []
    progress = Silent()
    progress.say = said.append
    model = AttentionXML(**{**SMALL, **TREE, "epochs": 1, "candidates": None, "compared": 8})
    model.fit(texts, progress=progress)
    assert f"Candidates: {model.followed_} nodes of a level for each document" in said
    assert 2 <= model.followed_ <= model.trees_[0].tree.sizes[1]
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.followed_ == model.followed_
    first = texts.texts[:9]
    assert np.array_equal(again.predict(first).scores, model.predict(first).scores)


def test_children_of_candidates():
    starts = PLANTED_TREE.children[1]
    nodes, owners = list_children(starts, np.array([[2, 0], [1, -1]], np.int32))
    assert nodes.tolist() == [[5, 0, 1, *[-1] * 5], [2, 3, 4, *[-1] * 5]]
    assert owners[0, :3].tolist() == [0, 1, 1]
    pairs = sp.csr_matrix(np.array([[1, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0]], np.float32))
    relevant = mark_relevant(view_rows(pairs), np.array([0, 1]), nodes)
    assert relevant[:, :3].tolist() == [[1, 1, 0], [0, 1, 0]]
    assert relevant[:, 3:].sum() == 0


def test_ids_are_numbered_anew():
    touched, places = number_anew(np.array([[5, 2, 5], [9, 0, 2]], np.int32), 10)
    assert touched.tolist() == [0, 2, 5, 9]
    assert places.tolist() == [[2, 1, 2], [3, 0, 1]]


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.0])
def test_a_label_is_as_probable_as_all_nodes_on_its_path(weight):
    """Equation (1), the chain rule, for a beam that holds all nodes; 0 is the last factor alone."""
    above, below = make_network(n_nodes=3), make_network(n_nodes=6)
    tokens = make_tokens(4, 3)
    top = ProbabilisticLabelTree(PLANTED_TREE, [above, below], weight).search(tokens, 6, 3, CPU)
    for row in range(2):
        with torch.no_grad():
            one = above.score(read_alone(above, tokens, row), above.labels)[0].numpy()
            two = below.score(read_alone(below, tokens, row), below.labels)[0].numpy()
        literal = {
            int(PLANTED_TREE.leaves[leaf]): sigmoid(one[parent]) ** weight * sigmoid(two[leaf])
            for leaf, parent in enumerate(PLANTED_TREE.parents(2))
        }
        found = dict(zip(top.labels[row].tolist(), top.scores[row].tolist(), strict=True))
        assert found == pytest.approx(literal, rel=1e-4)
        assert top.labels[row].tolist() == sorted(literal, key=literal.get, reverse=True)


def test_a_narrow_beam_leaves_labels_out_but_finds_as_many_as_wanted():
    tree = ProbabilisticLabelTree(PLANTED_TREE, [make_network(n_nodes=3), make_network(n_nodes=6)])
    narrow = tree.search(make_tokens(4), 1, 1, CPU)
    assert narrow.labels.shape == (1, 1)
    # One label may be all that a node has below it, so four labels need four nodes: all there are.
    assert (tree.search(make_tokens(4), 4, 1, CPU).labels >= 0).all()


def test_the_mean_of_trees():
    one = TopK(np.array([[1, 2, 5]], np.int32), np.zeros((1, 3), np.float32))
    two = TopK(np.array([[2, 7, -1]], np.int32), np.zeros((1, 3), np.float32))
    labels = unite([one, two])
    assert sorted(labels[labels != NO_LABEL].tolist()) == [1, 2, 5, 7]
    said = np.array([[0.0, 0.9, 0.5, 0, 0, 0.1, 0, 0.1]]), np.array([[0, 0, 0.7, 0, 0, 0, 0, 0.2]])
    mean = mean_of([own[:, labels[0]].astype(np.float32) for own in said])
    top = pick(labels, mean, 4)
    assert top.labels.tolist() == [[2, 1, 7, 5]]
    np.testing.assert_allclose(top.scores, [[0.6, 0.45, 0.15, 0.05]], rtol=1e-6)
    assert pick(labels, mean, 6).labels.tolist() == [[2, 1, 7, 5, NO_LABEL, NO_LABEL]]


@pytest.mark.parametrize("sizes", [{}, {"attention": False}, {"head": (5, 3)}, {"direct": False}])
def test_scores_of_given_labels_are_those_of_the_network(sizes):
    """And have the same bits whatever labels are asked for with them."""
    levels = [make_network(n_nodes=3, **sizes), make_network(n_nodes=6, **sizes)]
    tree, tokens = ProbabilisticLabelTree(PLANTED_TREE, levels, 0.5), make_tokens(4, 3)
    every = np.tile(np.arange(6, dtype=np.int32), (2, 1))
    scores = tree.score(tokens, every, CPU)
    for row in range(2):
        with torch.no_grad():
            one, two = (net.score(read_alone(net, tokens, row), net.labels)[0] for net in levels)
        for leaf, parent in enumerate(PLANTED_TREE.parents(2)):
            literal = sigmoid(float(one[parent])) ** 0.5 * sigmoid(float(two[leaf]))
            assert scores[row, PLANTED_TREE.leaves[leaf]] == pytest.approx(literal, rel=1e-4)
    some = np.array([[4, -1], [2, 5]], np.int32)
    expected = [[scores[0, 4], 0], [scores[1, 2], scores[1, 5]]]
    assert tree.score(tokens, some, CPU).tolist() == expected
    top = tree.search(tokens, 3, 1, CPU)
    assert np.array_equal(np.take_along_axis(scores, top.labels, 1), top.scores)
    with torch.no_grad():  # as a GPU does
        together = tree._score_together(tokens, every, CPU)
    np.testing.assert_allclose(together, scores, rtol=1e-4)


# -- the model ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts():
    return planted_texts(120)


def same_weights(one, other):
    """Whether two models have the very same networks."""
    nets = [[net for tree in model.trees_ for net in tree.levels] for model in (one, other)]
    return len(nets[0]) == len(nets[1]) and all(
        np.array_equal(array, to_arrays(b)[name])
        for a, b in zip(*nets, strict=True)
        for name, array in to_arrays(a).items()
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"encoder": "cnn", "epochs": 12},
        {"encoder": "cnn", "attention": False, "pooling": 3, "epochs": 16, "head": 16},
        {"attention": False, "epochs": 12, "hidden": 16, "head": 16},
        {"head": "16,8", "hidden": 16, "epochs": 12},
        {"levels": 2, "branching": 2, "candidates": 3, "epochs": 10},
    ],
)
def test_every_part_learns_what_was_planted(parts):
    model = AttentionXML(**{**SMALL, "batch_size": 16, **parts}).fit(planted_texts())
    test = planted_texts(100, seed=1)
    assert evaluate(model.predict(test), test)["P@1"] > 90


class Stop(Exception):
    """Ends training as a kill would."""


@pytest.mark.parametrize(("n_steps", "where"), [(3, "in the first level"), (11, "in the second")])
def test_a_stopped_run_goes_on_to_the_same_weights(n_steps, where, texts, tmp_path, monkeypatch):
    settings = {**SMALL, **TREE, "trees": 2, "epochs": 3, "inner_epochs": 3, "valid": 0.1}
    whole = AttentionXML(**settings).fit(texts)
    stopped = AttentionXML(**settings)
    stopped.run_dir = tmp_path / "run"
    loss, count = training.LevelTask.loss, iter(range(n_steps))

    def loss_or_stop(self, batch):
        if next(count, None) is None:
            raise Stop
        return loss(self, batch)

    stopped.checkpoint_seconds = 0  # a checkpoint after every step
    with monkeypatch.context() as patch:
        patch.setattr(training.LevelTask, "loss", loss_or_stop)
        with pytest.raises(Stop):
            stopped.fit(texts)
    steps = []

    def counted_loss(self, batch):
        steps.append(1)
        return loss(self, batch)

    resumed = AttentionXML(**settings)
    resumed.run_dir, resumed.resume = stopped.run_dir, True
    monkeypatch.setattr(training.LevelTask, "loss", counted_loss)
    resumed.fit(texts)
    assert same_weights(whole, resumed)
    assert len(steps) == 2 * 2 * 3 * 4 - n_steps  # trees, levels, epochs, batches


def test_a_tree_that_exists_is_not_trained_again(texts, tmp_path, monkeypatch):
    one = AttentionXML(**SMALL)
    one.run_dir = tmp_path
    one.fit(texts)
    two = AttentionXML(**SMALL, trees=2)
    two.run_dir, two.resume = tmp_path, True
    steps, loss = [], training.LevelTask.loss
    monkeypatch.setattr(
        training.LevelTask, "loss", lambda self, batch: steps.append(1) or loss(self, batch)
    )
    two.fit(texts)
    assert len(steps) == 2 * 4
    first, second = (tree.levels[0] for tree in two.trees_)
    assert np.array_equal(to_arrays(first)["labels"], to_arrays(one.trees_[0].levels[0])["labels"])
    assert not np.array_equal(to_arrays(first)["labels"], to_arrays(second)["labels"])
    assert not (tmp_path / "tokens").exists()


def test_trees_have_trees_of_their_own(texts):
    model = AttentionXML(**{**SMALL, **TREE, "epochs": 1}, trees=3).fit(texts)
    assert len({tuple(each.tree.leaves) for each in model.trees_}) > 1
    tokens, every = model.tokens_.encode(texts.texts[:5]), np.tile(np.arange(12), (5, 1))
    mean = mean_of([tree.score(tokens, every, CPU) for tree in model.trees_])
    expected, best = pick(every, mean, 3), model.predict(texts.texts[:5], k=3)
    assert np.array_equal(expected.labels, best.labels)
    assert np.array_equal(expected.scores, best.scores)


def test_a_level_begins_with_all_but_the_labels_of_the_one_above():
    above, below = make_network(n_nodes=3), make_network(n_nodes=6)
    with torch.no_grad():
        below.words.add_(1)
        labels = below.labels.clone()
    below.start_from(above)
    assert torch.equal(below.labels, labels)
    for name, value in above.state_dict().items():
        assert name == "labels" or torch.equal(value, below.state_dict()[name])


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ({}, {"words", "output.bias"}),
        ({"inherit_bias": False}, {"words"}),
        ({"warm_start": False}, set()),
    ],
)
def test_what_a_level_takes_over(parts, kept, texts, monkeypatch):
    begun = []

    def look(task, config, **more):
        begun.append({name: value.clone() for name, value in task.net.state_dict().items()})
        with torch.no_grad():
            for parameter in task.net.parameters():
                parameter.add_(1)
        return training.History()

    monkeypatch.setattr(training, "train", look)
    AttentionXML(**{**SMALL, **TREE, "pretrain": False, **parts}).fit(texts)
    above, below = begun
    for name in ("words", "output.bias", "labels"):
        same = above[name].shape == below[name].shape and torch.equal(above[name] + 1, below[name])
        assert same == (name in kept)


@pytest.mark.parametrize(("candidates", "is_cut"), [(2, True), (3, True), (4, False), (9, False)])
def test_who_follows_all_nodes_of_a_level_meets_all_below(candidates, is_cut, texts, monkeypatch):
    tasks, train = [], training.train
    monkeypatch.setattr(
        training,
        "train",
        lambda task, *args, **more: tasks.append(task) or train(task, *args, **more),
    )
    model = AttentionXML(**{**SMALL, **TREE, "epochs": 1, "candidates": candidates}).fit(texts)
    assert model.trees_[0].tree.sizes[1] == 4
    assert (tasks[1].candidates is not None) == is_cut
    batch = tasks[1].batch(np.arange(5), np.random.default_rng(0))
    assert ("nodes" in batch) == is_cut


def test_levels_above_the_labels_have_epochs_of_their_own(texts):
    model = AttentionXML(**{**SMALL, **TREE, "epochs": 3}, inner_epochs=1).fit(texts)
    assert model.history_.n_steps == (1 + 3) * 4  # batches of 32 of 120 documents
    model = AttentionXML(**{**SMALL, **TREE, "epochs": 4}).fit(texts)
    assert model.history_.n_steps == (4 + 4) * 4


def test_validation_every_few_steps_and_patience(texts):
    settings = {**SMALL, "epochs": 5, "valid": 0.2, "learning_rate": 1e-12}
    model = AttentionXML(**settings, validate_every=2).fit(texts)
    validated = [each["step"] for each in model.history_.records if "nDCG@5" in each]
    assert validated == [*range(2, 16, 2), 15]  # three steps an epoch, and the last one
    model = AttentionXML(**settings, validate_every=2, patience=3, averaging=False).fit(texts)
    assert model.history_.stopped_early
    assert model.history_.n_steps == 8  # one that was the best, three that were no better


def test_scores_begin_towards_the_odds_of_all_labels_together(texts):
    net, flat = make_network(), make_network(attention=False)
    net.begin_at(0.1)
    flat.begin_at(0.1)
    odds = START * np.log(0.1 / 0.9)
    assert net.output.bias.item() == pytest.approx(odds)
    np.testing.assert_allclose(flat.labels[:, -1].detach().numpy(), odds, rtol=1e-5)


def test_word_vectors_from_a_file_are_kept_if_not_trained(texts, tmp_path):
    (tmp_path / "vectors.txt").write_text("word1 1 2 3\nword2 4 5 6\n")
    settings = {**SMALL, "word_dim": None, "vectors": str(tmp_path / "vectors.txt"), "epochs": 1}
    model = AttentionXML(**settings, train_vectors=False).fit(texts)
    words = model.trees_[0].levels[0].words.numpy()
    assert words[model.tokens_.words_.index("word2")].tolist() == pytest.approx([4, 5, 6], rel=0.01)
    trained = AttentionXML(**settings).fit(texts).trees_[0].levels[0].words.numpy()
    assert not np.array_equal(trained[model.tokens_.words_.index("word2")], [4, 5, 6])


def test_without_pretraining_the_attention_lies_on_the_words_of_the_label():
    settings = {**SMALL, "epochs": 40, "hidden": 24, "word_dim": 16, "batch_size": 16}
    model = AttentionXML(**settings, pretrain=False).fit(planted_texts())
    test = planted_texts(100, seed=1)
    assert evaluate(model.predict(test), test)["P@1"] > 90
    text = "word0 word1 word50 word9 word10, Word0"  # labels 0 and 3, and noise
    for label, own in (("label 0", {"word0", "word1"}), ("label 3", {"word9", "word10"})):
        found = model.explain(text, label)
        assert sum(term.weight for term in found.terms) == pytest.approx(1)
        assert sum(term.weight for term in found.terms if term.name in own) > 0.8
        assert found.is_attention
        losses = {term.name: term.loss for term in found.terms}
        assert all(losses[word] > losses["word50"] for word in own)
    word0 = next(term for term in model.explain(text).terms if term.name == "word0")
    assert word0.loss is None
    assert [text[begin:end] for begin, end in word0.spans] == ["word0", "Word0"]
    why_not = model.explain(text, "label 7")  # it was not predicted
    assert sum(term.weight for term in why_not.terms) == pytest.approx(1)
    assert model.explain("?!", "label 7").terms == []
    with pytest.raises(ParameterError, match="knows no label 'label 77'; did you mean 'label 7'"):
        model.explain(text, "label 77")


def test_a_word_weighs_what_the_label_loses_without_it(texts):
    """Against predictions of the texts as a user would write them without the word."""
    settings = {**SMALL, **TREE, "candidates": 4, "trees": 2}
    text, without = (
        "word0 word3 word1 Word3",
        {"word0": "word3 word1 Word3", "word3": "word0 word1"},
    )
    for path_weight in (1.0, 0.5, 0.0):
        model = AttentionXML(**settings, path_weight=path_weight).fit(texts)
        label = model.label_names_[model.predict([text]).labels[0, 0]]

        def score_of(document, model=model, label=label):
            named = model.predict([document], k=12).to_list()[0]
            return next(each["score"] for each in named if each["label"] == label)

        losses = {term.name: term.loss for term in model.explain(text, label).terms}
        assert losses.keys() == {"word0", "word1", "word3"}
        for word, rest in without.items():
            assert losses[word] == pytest.approx(score_of(text) - score_of(rest), abs=1e-6)
    alone = model.explain("word0", label).terms[0]  # nothing is left without it
    assert alone.weight == 1
    assert -1 < alone.loss < 1


def test_a_model_without_attention_cannot_explain_itself(texts):
    model = AttentionXML(**{**SMALL, "epochs": 1, "attention": False}).fit(texts)
    with pytest.raises(ParameterError, match="trained with attention=false and cannot say"):
        model.explain("word1", "label 0")


def test_texts_that_say_nothing(texts):
    model = AttentionXML(**{**SMALL, "epochs": 1}).fit(texts)
    odd = ["", "\0\x01", "nothing that is known", "word1", "word1 " * 100_000, "\ud800 word1", "🎉"]
    top = model.predict(odd, k=3)
    frequent = np.argsort(-model.training_counts_.label_counts, kind="stable")[:3]
    for row in (0, 1, 2, 6):
        assert np.array_equal(top.labels[row], frequent)
    assert top.labels.min() >= 0
    with pytest.raises(DataError, match="there is not a single word in the 120 texts"):
        AttentionXML(**SMALL).fit(["!"] * 120, texts.Y)


def test_documents_without_words_are_passed_over_in_training(texts):
    mixed = [*texts.texts[:60], *[""] * 60]
    model = AttentionXML(**{**SMALL, "epochs": 1, "valid": 0.2}).fit(mixed, texts.Y)
    assert model.training_counts_.n_documents == 120


def test_one_label(texts):
    model = AttentionXML(**{**SMALL, "epochs": 1}).fit(["a b", "c d"], [["x"], ["x"]])
    assert model.predict(["a"]).labels.tolist() == [[0]]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"hidden": 0}, "'hidden' parameter of AttentionXML must be at least 1, or none. Got 0"),
        ({"head": "8,x"}, "'head' parameter of AttentionXML must be a size of at least 1, several"),
        ({"branching": 6}, "'branching' .* must be a power of 2, at least 2. Got 6"),
        ({"beam": 0}, "'beam' .* must be at least 1, or none. Got 0"),
        ({"levels": -1}, "'levels' .* must be at least 0, or none. Got -1"),
        ({"word_dropout": 1.0}, "'word_dropout' .* must be from 0 to below 1. Got 1.0"),
        ({"clip": 0.0}, "'clip' .* must be above 0. Got 0.0"),
        ({"pooling": 2}, "'pooling' .* must be 1 where labels have attention. Got 2"),
        ({"validate_every": 0}, "'validate_every' .* must be at least 1, or none. Got 0"),
        (
            {"train_vectors": False, "pretrain": False},
            "'train_vectors' .* must be true if there are no vectors",
        ),
        ({"encoder": "gru"}, "'encoder' .* must be 'bilstm' or 'cnn'. Got 'gru'"),
        (
            {"levels": 3, "branching": 4},
            "'levels' parameter of AttentionXML must be at most 1 for 12 labels with branching 4",
        ),
        ({"levels": 1}, "must be at most 0 for 12 labels with branching 64. Got 1 instead."),
    ],
)
def test_parameters_out_of_range(parts, message, texts):
    with pytest.raises(ParameterError, match=message):
        AttentionXML(**{**SMALL, **parts}).fit(texts)


def test_rows_are_refused_with_the_models_that_take_them():
    with pytest.raises(DataError, match="attention-xml cannot be trained on feature rows; models "):
        AttentionXML(**SMALL).fit(planted_dataset())


def test_the_number_of_levels_follows_from_that_of_labels():
    model = AttentionXML()
    counts = (1_963, 25_018, 500_000, 3_000_000)
    assert [model._n_levels(n_labels) for n_labels in counts] == [0, 0, 1, 2]
    assert AttentionXML(levels=0)._n_levels(500_000) == 0
    small = AttentionXML.from_settings({"preset": "small"})
    assert [small._n_levels(n_labels) for n_labels in (539, *counts)] == [0, 1, 2, 3, 4]


def test_presets_are_the_rows_of_table_2(texts):
    """E, B, N̂, N̂_fc, H, M = K, C, and whether word vectors are learned (section 3.3)."""
    table = {
        "eurlex-4k": (30, 40, 256, 256, 0, None, None, False),
        "wiki10-31k": (30, 40, 256, 256, 0, None, None, False),
        "amazoncat-13k": (10, 200, 512, "512,256", 0, None, None, True),
        "amazon-670k": (10, 200, 512, "512,256", 3, 8, 160, True),
        "wiki-500k": (5, 200, 512, "512,256", 1, 64, 15, True),
        "amazon-3m": (5, 200, 512, "512,256", 3, 8, 160, True),
    }
    assert AttentionXML.presets.keys() == {"small", "paper", *table}
    names = ("epochs", "batch_size", "hidden", "head", "levels", "branching", "candidates")
    for preset, row in table.items():
        model = AttentionXML.from_settings({"preset": preset})
        values = [getattr(model, name) for name in (*names, "train_vectors")]
        for stated, value in zip(row, values, strict=True):
            assert stated in (None, value)  # there is no K without a tree
        assert (model.word_dim, model.max_length, model.max_words) == (300, 500, 500_000)
        assert (model.word_dropout, model.dropout, model.learning_rate) == (0.2, 0.5, 0.001)
        assert (model.schedule, model.averaging, model.direct) == ("constant", True, False)
        assert (model.inner_epochs, model.path_weight) == (model.epochs, 1)
    sizes = {**SMALL, "branching": 2, "learning_rate": 0.001}
    deep = AttentionXML.from_settings({"preset": "amazon-3m", **sizes}).fit(texts)
    assert len(deep.trees_[0].levels) == 4
    assert deep.trees_[0].levels[0].shape.direct is False


def test_files_that_do_not_fit_together(texts, tmp_path):
    model = AttentionXML(**{**SMALL, **TREE, "epochs": 1}).fit(texts)
    model.save(tmp_path / "model")
    assert same_weights(model, load_model(tmp_path / "model"))
    for number, (name, change) in enumerate(
        (
            ("tree0.leaves", lambda a: np.zeros_like(a)),
            ("tree0.level1.children", lambda a: a[::-1].copy()),
            ("tree0.level0.net.words.codes", lambda a: a[1:]),
            ("tree0.level1.net.labels.codes", lambda a: a[:-1]),
        )
    ):
        files = read_folder(tmp_path / "model")
        files.arrays[name] = change(files.arrays[name])
        write_folder(tmp_path / f"broken{number}", files)
        with pytest.raises(ModelFileError, match="do not fit together"):
            load_model(tmp_path / f"broken{number}")


def test_weights_survive_as_plain_arrays():
    net = make_network(encoder="cnn", head=(4, 6))
    again = from_arrays(net.shape, to_arrays(net))
    assert all(
        torch.equal(value, again.state_dict()[name]) for name, value in net.state_dict().items()
    )
    shapes = {name: array.shape for name, array in to_arrays(net).items()}
    assert find_shapes(net.shape) == shapes


def test_sizes_grow_with_the_documents(monkeypatch):
    def sizes(**settings):
        net = AttentionXML(epochs=1, **settings).fit(planted_texts(60)).trees_[0].levels[0]
        return net.shape.hidden, net.shape.word_dim, net.shape.head

    monkeypatch.setattr(estimator, "SIZES", (6, 4))
    monkeypatch.setattr(estimator, "LARGE_SIZES", (12, 8))
    assert sizes() == (6, 4, (64,))
    assert sizes(attention=False) == (6, 4, (512,))
    monkeypatch.setattr(estimator, "LARGE_FROM", 60)
    assert sizes() == (12, 8, (64,))
    assert sizes(hidden=5, word_dim=3, head="7,2") == (5, 3, (7, 2))


def test_passes_for_inner_levels():
    passes = [estimator._choose_inner_epochs(15, n) for n in (3_000_000, 1_600_000, 1_000)]
    assert passes == [4, 7, 15]  # long texts, titles, few documents
    assert estimator._choose_inner_epochs(10, 118_000_000) == 3
    assert estimator._choose_inner_epochs(2, 118_000_000) == 2


@pytest.mark.parametrize("length", [1, 8, 9, 64, 65, 100, 129, 500])
def test_texts_are_padded_to_few_lengths(length):
    padded = training.round_length(length)
    assert length <= padded <= max(length + 8, length * 9 / 8)
    assert training.round_length(padded) == padded
    assert len({training.round_length(i) for i in range(1, 513)}) == 32


def test_a_batch_that_is_filled_up_gives_the_same_loss_and_gradients(monkeypatch):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 12, 30)
    start = np.concatenate(([0], np.cumsum(lengths)))
    tokens = TokenRows(start, rng.integers(1, 200, start[-1]).astype(np.int32))
    Y = sp.csr_matrix((rng.random((30, 7)) < 0.3).astype(np.float32))
    model = AttentionXML(**{**SMALL, "dropout": 0, "word_dropout": 0})
    found, shapes = [], []
    for fills in (False, True):
        monkeypatch.setattr(training.LevelTask, "replays", property(lambda self, on=fills: on))
        net = make_network(n_words=200)
        task = training.LevelTask(model, net, training.LevelDocuments(tokens, Y), None)
        for rows in (np.arange(10), np.arange(10, 20)):
            batch = task.batch(rows, np.random.default_rng(1))
            shapes.append([tuple(tensor.shape) for tensor in batch.values()])
            net.zero_grad()
            loss = task.loss(batch)
            loss.backward()
            gradients = [p.grad for p in net.parameters()]
            dense = [g.coalesce().to_dense() if g.is_sparse else g for g in gradients]
            found.append([loss.detach(), *dense])
    assert shapes[0] != shapes[1]
    assert shapes[2] == shapes[3]
    for plain, filled in zip(found[:2], found[2:], strict=True):
        for ours, theirs in zip(filled, plain, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_fifty_steps_by_graphs_are_those_without(monkeypatch):
    pytest.importorskip("triton")
    data, sizes = planted_texts(500), {"hidden": 32, "word_dim": 16, "head": 16, "batch_size": 50}
    losses = []
    for by_graphs in (True, False):
        if not by_graphs:
            monkeypatch.setattr("longtail.training.loop.StepGraphs.of", lambda *given: None)
        model = AttentionXML(
            **sizes, epochs=5, learning_rate=0.002, averaging=False, device="cuda"
        ).fit(data)
        losses.append([record["loss"] for record in model.history_.records])
    assert len(losses[0]) == 50
    assert np.allclose(*losses, rtol=0.01)
