"""AttentionXML's kernels on a GPU give the scores, the loss and the gradients of plain torch."""

import pytest

torch = pytest.importorskip("torch")

from longtail.models.attention_xml import loss as losses  # noqa: E402
from longtail.models.attention_xml import network  # noqa: E402
from longtail.models.attention_xml.network import AttentionXMLNetwork, Shape  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def make(direct, n_nodes, n_head=64):
    pytest.importorskip("triton")
    torch.manual_seed(0)
    shape = Shape(
        n_words=50,
        word_dim=16,
        encoder="bilstm",
        hidden=32,
        head=(n_head,),
        attention=True,
        pooling=1,
        direct=direct,
        n_nodes=n_nodes,
    )
    net = AttentionXMLNetwork(shape).cuda()
    places = torch.randint(2, 50, (20, 37), device="cuda")
    lengths = torch.randint(1, 38, (20,), device="cuda", dtype=torch.int32)
    lengths[0] = 37
    width = network.count_aligned(n_nodes, "cuda")
    relevant = (torch.rand(20, width, device="cuda") < 0.1).float()
    relevant[:, n_nodes:] = 0
    return net, places, lengths, relevant


def read(net, places, lengths):
    with torch.autocast("cuda", torch.bfloat16):
        return net.encode(net.read_words(places), lengths)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(("n_nodes", "n_head"), [(5, 64), (150, 10), (1000, 300)])
def test_loss_and_gradients(direct, n_nodes, n_head, monkeypatch):
    net, places, lengths, relevant = make(direct, n_nodes, n_head)
    found = {}
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(losses, "can_fuse", lambda read, shape: False)
        encoded = read(net, places, lengths)
        assert fused == losses.can_fuse(encoded, net.shape)
        loss = losses.bce_over_nodes(net, encoded, relevant)
        wanted = [net.labels, *net.shared(), net.encoder.start]
        found[fused] = [loss.detach(), *torch.autograd.grad(loss, wanted)]
    for ours, plain in zip(found[True], found[False], strict=True):
        assert (ours - plain).norm() <= 0.02 * plain.norm()


@pytest.mark.parametrize("direct", [True, False])
def test_scores_and_pieces(direct, monkeypatch):
    net, places, lengths, _ = make(direct, 300)
    net.eval()
    with torch.no_grad():
        encoded = read(net, places, lengths)
        fused = net.score_all(encoded)
        monkeypatch.setattr(network, "count_numbers", lambda device: 1)
        pieces = net.score_all(encoded)
        monkeypatch.setattr(network, "can_fuse", lambda read, shape: False)
        plain = net.score_all(encoded)
    torch.testing.assert_close(fused, pieces)
    assert (fused - plain).norm() <= 0.02 * plain.norm()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("numbers", [1, 1 << 30])
def test_candidates_of_each_document(direct, numbers, monkeypatch):
    monkeypatch.setattr(losses, "count_numbers", lambda device: numbers)
    net, places, lengths, _ = make(direct, 300)
    nodes = torch.randint(300, (20, 24), device="cuda")
    relevant = (torch.rand(20, 24, device="cuda") < 0.1).float()
    counted = (torch.rand(20, 24, device="cuda") < 0.8).float()
    relevant *= counted
    found = {}
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(losses, "can_fuse", lambda read, shape: False)
        encoded = read(net, places, lengths)
        loss = losses.bce_over_candidates(net, encoded, net.labels, nodes, relevant, counted)
        wanted = [net.labels, *net.shared(), net.encoder.start]
        found[fused] = [loss.detach(), *torch.autograd.grad(loss, wanted)]
    for ours, plain in zip(found[True], found[False], strict=True):
        assert (ours - plain).norm() <= 0.02 * plain.norm()
