"""Checkpoints: all that a training run needs to go on as if it had never stopped.

Each is a folder `step-00001200`, written by store.py whole or not at all, and checked byte by byte
before it is used. There are never more than two: an older one stays, so that damage to the newest
costs minutes and not the run, until a third is to be written.
Nothing is pickled: nested state is flattened to arrays and JSON.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from longtail.errors import LongtailError, ModelFileError, ParameterError
from longtail.progress import SILENT, Progress
from longtail.runtime.store import Files, read_folder, write_folder
from longtail.training.layers import RowAdam

KEPT = 2

_NAME = re.compile(r"step-(\d{8,})")


def pack_state(state: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Files:
    """Return what a checkpoint holds of `state` (nested dicts, lists and tensors).

    Arrays of a GPU are copied, those of a CPU are the state's own.
    """
    files = Files()
    packed = _pack(state, "state", files.arrays)
    files.config = {"model": "checkpoint", "fingerprint": fingerprint, "state": packed}
    return files


def write_checkpoint(run_dir: Path, step: int, files: Files) -> None:
    """Write what `pack_state` has returned, beside the checkpoint before.

    One of this step or a later one is what a resumed run could not read, and goes first.
    """
    folder = run_dir / f"step-{step:08d}"
    earlier = [each for each in find_checkpoints(run_dir) if each.name < folder.name]
    for unread in find_checkpoints(run_dir):
        if unread.name >= folder.name:
            shutil.rmtree(unread)
    for old in earlier[KEPT - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    write_folder(folder, files)


def read_checkpoint(
    run_dir: Path, fingerprint: Mapping[str, Any], progress: Progress = SILENT
) -> dict[str, Any] | None:
    """Return the newest whole state, with tensors on the CPU; None if no checkpoint exists.

    A damaged one is passed over, which `progress` is told.

    Raises:
        ParameterError: it belongs to a run with another fingerprint.
        ModelFileError: there are checkpoints, but every one of them is damaged.
    """
    damage = None
    for folder in find_checkpoints(run_dir):
        try:
            files = read_folder(folder)
            then, packed = files.config["fingerprint"], files.config["state"]
            state: dict[str, Any] = _unpack(packed, files.arrays)
        except (ModelFileError, KeyError, TypeError, ValueError) as error:
            damage = damage or error
            progress.say(f"Passing over a damaged checkpoint: {error}")
            continue
        _check_same_run(folder, then, fingerprint)
        return state
    if damage is not None:
        raise ModelFileError(
            f"{run_dir}: no checkpoint is whole, so training cannot be resumed ({damage}); "
            "train again without --resume"
        )
    return None


def find_checkpoints(run_dir: Path) -> list[Path]:
    """Return the checkpoint folders in `run_dir`, whole or not, the newest first."""
    if not run_dir.is_dir():
        return []
    steps = {folder: _NAME.fullmatch(folder.name) for folder in run_dir.iterdir()}
    found = [(int(match[1]), folder) for folder, match in steps.items() if match]
    return [folder for _, folder in sorted(found, reverse=True)]


def remove_checkpoints(run_dir: str | Path, n_newest: int | None = None) -> None:
    """Remove all checkpoints, as when the model that they led to is saved, or the newest ones."""
    for folder in find_checkpoints(Path(run_dir))[:n_newest]:
        shutil.rmtree(folder)


def make_run_dir(run_dir: str | Path) -> Path:
    """Make the folder unless it exists."""
    path = Path(run_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LongtailError(f"{path}: cannot keep checkpoints here: {error.strerror}") from error
    return path


def as_fingerprint(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts as they will be once they were written and read."""
    plain: dict[str, Any] = json.loads(
        json.dumps(dict(facts), default=lambda value: value.tolist())
    )
    return plain


def _check_same_run(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if names:
        changes = "; ".join(f"{name} was {then.get(name)}, is {now.get(name)}" for name in names)
        raise ParameterError(
            f"{folder}: belongs to another run: {changes}; "
            "set these back, or train again without --resume"
        )


# ------------------------------------------------------------------------- nested state and arrays


def _pack(value: Any, name: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return `value` as JSON, which alone knows no int keys or tuples; tensors go to `arrays`."""
    if isinstance(value, Tensor):
        arrays[name] = value.detach().cpu().numpy()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[k, _pack(item, f"{name}.{k}", arrays)] for k, item in value.items()]}
    if isinstance(value, list | tuple):
        container = "list" if isinstance(value, list) else "tuple"
        return {container: [_pack(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which a checkpoint cannot hold")


def _unpack(packed: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Undo `_pack`."""
    if not isinstance(packed, dict):
        return packed
    ((container, content),) = packed.items()
    if container == "tensor":
        return torch.from_numpy(arrays[content])
    if container == "dict":
        return {key: _unpack(item, arrays) for key, item in content}
    items = [_unpack(item, arrays) for item in content]
    return items if container == "list" else tuple(items)


# ------------------------------------------------------------------------------ optimizers' state


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what an optimizer remembers, by the numbers of its parameters."""
    state: dict[str, Any] = optimizer.state_dict()["state"]
    return state


def restore_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[int, Any]) -> None:
    """Give an optimizer back what it remembered, to the bit.

    Its own load_state_dict would turn every tensor to the type of the weights, counters as well.
    As there, the number of steps lies on the CPU unless the optimizer is fused or capturable; so
    does what RowAdam keeps on the host.
    """
    on_host = ("mean", "square") if keeps_on_host(optimizer) else ()
    placed = [
        (parameter, group) for group in optimizer.param_groups for parameter in group["params"]
    ]
    for number, memory in state.items():
        parameter, group = placed[number]
        counts_on_cpu = not (group.get("fused") or group.get("capturable"))
        on_cpu = (*on_host, "step") if counts_on_cpu else on_host
        optimizer.state[parameter] = {
            name: _put(value, "cpu" if name in on_cpu else parameter.device)
            for name, value in memory.items()
        }


def keeps_on_host(optimizer: torch.optim.Optimizer) -> bool:
    """Whether what an optimizer remembers lies in RAM, though the weights do not."""
    return isinstance(optimizer, RowAdam) and optimizer.moments.is_on_host


def _put(value: Any, device: str | torch.device) -> Any:
    return value.to(device, copy=True) if isinstance(value, Tensor) else value
