"""BiLSTM: a document's states depend on it alone; a GPU's kernels give what cuDNN gives."""

import pytest

torch = pytest.importorskip("torch")

from longtail.training import bilstm  # noqa: E402
from longtail.training.bilstm import BiLSTM  # noqa: E402

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
LENGTHS = [9, 1, 4, 9, 2]


def make(word_dim=12, hidden=16, device="cpu"):
    torch.manual_seed(0)
    reader = BiLSTM(word_dim, hidden)
    torch.nn.init.normal_(reader.start, std=0.3)
    words = torch.randn(len(LENGTHS), max(LENGTHS), word_dim)
    return reader.to(device), words.to(device), torch.tensor(LENGTHS, device=device)


def test_a_document_is_read_alone_as_among_others():
    reader, words, lengths = make()
    together = reader(words, lengths)
    for i, length in enumerate(LENGTHS):
        alone = reader(words[i : i + 1, :length], lengths[i : i + 1])
        torch.testing.assert_close(together[i, :length], alone[0])


def test_backwards_is_from_a_documents_own_end():
    reader, words, lengths = make()
    reader.backwards.load_state_dict(reader.onwards.state_dict())
    with torch.no_grad():
        reader.start[1] = reader.start[0]
    ahead, _ = reader(words[:1], lengths[:1]).chunk(2, dim=2)
    _, back = reader(words[:1].flip(1), lengths[:1]).chunk(2, dim=2)
    torch.testing.assert_close(ahead, back.flip(1))


def test_a_cpu_does_without_kernels():
    assert not bilstm.can_fuse(torch.device("cpu"), 16)


@ON_GPU
@pytest.mark.parametrize("hidden", [16, 64, 256, 512])
def test_kernels_give_the_states_and_gradients_of_torch(hidden):
    pytest.importorskip("triton")
    reader, words, lengths = make(word_dim=24, hidden=hidden, device="cuda")
    assert bilstm.can_fuse(words.device, hidden)
    words.requires_grad_()
    is_word = (torch.arange(words.shape[1], device="cuda") < lengths[:, None])[..., None]
    wanted = torch.randn(*words.shape[:2], 2 * hidden, device="cuda") * is_word
    found = {}
    for low in (False, True):
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            states = reader(words, lengths).float() * is_word
        gradients = torch.autograd.grad((states * wanted).sum(), [words, *reader.parameters()])
        found[low] = [states.detach(), *gradients]
    for exact, fused in zip(found[False], found[True], strict=True):
        assert (fused - exact).norm() <= 0.01 * exact.norm()
