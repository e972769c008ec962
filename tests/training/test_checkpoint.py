"""Checkpoints: nested state to files and back, damage, other runs, optimizers to the bit."""

import pytest

torch = pytest.importorskip("torch", reason="checkpoints hold torch's tensors")

from longtail.errors import LongtailError, ModelFileError, ParameterError  # noqa: E402
from longtail.training.checkpoint import (  # noqa: E402
    as_fingerprint,
    find_checkpoints,
    make_run_dir,
    optimizer_state,
    pack_state,
    read_checkpoint,
    remove_checkpoints,
    restore_optimizer,
    write_checkpoint,
)

RUN = {"dim": 8}
STATE = {
    "step": 3,
    "nothing": None,
    "rate": 0.1 + 0.2,
    "weights": {"a": torch.rand(3, 2), "flags": torch.tensor([True, False])},
    "memory": [{0: {"step": torch.tensor(7.0), "counts": torch.arange(4)}, 1: {}}, {}],
    "betas": (0.9, 0.999),
    "empty": [],
}


def write(run_dir, step, state, run):
    write_checkpoint(run_dir, step, pack_state(state, run))


def assert_equal(first, second):
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert list(first) == list(second)
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, list | tuple):
        for a, b in zip(first, second, strict=True):
            assert_equal(a, b)
    else:
        assert first == second


def test_nested_state_survives(tmp_path):
    write(tmp_path, 3, STATE, RUN)
    assert_equal(read_checkpoint(tmp_path, RUN), STATE)


def test_what_cannot_be_held_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"^state\.x\.0 is a set, which a checkpoint cannot hold$"):
        write(tmp_path, 1, {"x": [{1}]}, RUN)


def test_two_are_kept_and_the_newest_is_read(tmp_path):
    for step in (1, 2, 10):
        write(tmp_path, step, {"step": step}, RUN)
    assert [folder.name for folder in find_checkpoints(tmp_path)] == [
        "step-00000010",
        "step-00000002",
    ]
    assert read_checkpoint(tmp_path, RUN) == {"step": 10}


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json", "manifest.json"])
def test_a_cut_off_one_falls_back_to_the_one_before(tmp_path, name):
    for step in (1, 2):
        write(tmp_path, step, {"step": step, "a": torch.ones(100)}, RUN)
    path = tmp_path / "step-00000002" / name
    path.write_bytes(path.read_bytes()[:-20])
    assert read_checkpoint(tmp_path, RUN)["step"] == 1


def test_a_missing_file_falls_back_too(tmp_path):
    for step in (1, 2):
        write(tmp_path, step, {"step": step}, RUN)
    (tmp_path / "step-00000002" / "weights.safetensors").unlink()
    assert read_checkpoint(tmp_path, RUN) == {"step": 1}


def test_if_all_are_damaged_nothing_is_lost_in_silence(tmp_path):
    write(tmp_path, 1, {"step": 1}, RUN)
    (tmp_path / "step-00000001" / "manifest.json").unlink()
    with pytest.raises(
        ModelFileError,
        match=r"no checkpoint is whole, so training cannot be resumed \(.*manifest\.json\); "
        "train again without --resume$",
    ):
        read_checkpoint(tmp_path, RUN)


def test_a_resumed_run_replaces_what_it_could_not_read(tmp_path):
    for step in (4, 6):
        write(tmp_path, step, {"step": step}, RUN)
    (tmp_path / "step-00000006" / "manifest.json").write_text("")
    write(tmp_path, 5, {"step": 5}, RUN)
    assert [folder.name for folder in find_checkpoints(tmp_path)] == [
        "step-00000005",
        "step-00000004",
    ]
    (tmp_path / "step-00000005" / "config.json").unlink()
    write(tmp_path, 5, {"step": 5, "again": True}, RUN)
    assert read_checkpoint(tmp_path, RUN) == {"step": 5, "again": True}


def test_none_there(tmp_path):
    assert read_checkpoint(tmp_path, RUN) is None
    assert read_checkpoint(tmp_path / "absent", RUN) is None


def test_another_run_is_refused(tmp_path):
    write(tmp_path, 1, {"step": 1}, {"dim": 8, "data": "x"})
    with pytest.raises(ParameterError) as error:
        read_checkpoint(tmp_path, {"dim": 9, "loss": "bce", "data": "x"})
    assert str(error.value) == (
        f"{tmp_path / 'step-00000001'}: belongs to another run: dim was 8, is 9; "
        "loss was None, is bce; set these back, or train again without --resume"
    )


def test_fingerprints_compare_after_writing(tmp_path):
    facts = as_fingerprint({"pair": (1, 2), "norm": torch.tensor(1.5).numpy(), "none": None})
    assert facts == {"pair": [1, 2], "norm": 1.5, "none": None}
    write(tmp_path, 1, {"step": 1}, facts)
    assert read_checkpoint(tmp_path, facts) == {"step": 1}


def test_only_checkpoints_are_removed(tmp_path):
    write(tmp_path, 1, {"step": 1}, RUN)
    (tmp_path / "step-by-step").mkdir()
    (tmp_path / "log.csv").write_text("step\n")
    remove_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "step-by-step"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LongtailError, match="cannot keep checkpoints here: Not a directory"):
        make_run_dir(tmp_path / "file" / "run")


def test_optimizers_go_on_to_the_bit(tmp_path):
    torch.manual_seed(0)
    whole, again = (torch.nn.Parameter(torch.ones(5, 3)) for _ in range(2))
    gradients = torch.rand(4, 5, 3)
    first, second = torch.optim.Adam([whole], 0.1), torch.optim.Adam([again], 0.1)

    def step(parameter, optimizer, gradient):
        parameter.grad = gradient
        optimizer.step()

    for gradient in gradients[:2]:
        step(whole, first, gradient)
    first.state[whole]["last_used"] = torch.tensor([1, 2, 2**40])  # as no float32 can hold it
    write(tmp_path, 2, {"memory": optimizer_state(first)}, RUN)
    again.data = whole.detach().clone()
    restore_optimizer(second, read_checkpoint(tmp_path, RUN)["memory"])
    assert_equal(second.state[again]["last_used"], first.state[whole]["last_used"])
    for gradient in gradients[2:]:
        step(whole, first, gradient.clone())
        step(again, second, gradient.clone())
    assert torch.equal(whole, again)


@pytest.mark.parametrize(("option", "device"), [("fused", "meta"), ("foreach", "cpu")])
def test_where_the_number_of_steps_lies(option, device):
    class Counting(torch.optim.Optimizer):
        def __init__(self, parameter):
            super().__init__([parameter], {"lr": 0.1, option: True})

    parameter = torch.nn.Parameter(torch.ones(2, device="meta"))
    optimizer = Counting(parameter)
    restore_optimizer(optimizer, {0: {"step": torch.tensor(3.0), "mean": torch.ones(2), "n": 1}})
    assert optimizer.state[parameter]["step"].device.type == device
    assert optimizer.state[parameter]["mean"].device.type == "meta"
    assert optimizer.state[parameter]["n"] == 1
