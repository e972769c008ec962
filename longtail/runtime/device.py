"""Where models predict: on a GPU if there is one, unless the user chose otherwise."""

from importlib.util import find_spec

from longtail.errors import ParameterError, suggest

DEVICES = ("auto", "cpu", "cuda")

_chosen = "auto"


def set_device(name: str) -> None:
    """Let all models of this process predict on "cpu" or "cuda"; "auto" takes a GPU if it can.

    Training has a parameter of its own, `device`.
    """
    global _chosen
    if name not in DEVICES:
        raise ParameterError(
            f"The device must be 'auto', 'cpu' or 'cuda'. Got {name!r} instead"
            f"{suggest(name, DEVICES) or '.'}"
        )
    if name == "cuda" and not _sees_gpu():
        raise ParameterError("there is no GPU that torch can use; choose the device cpu or auto")
    _chosen = name


def chosen_device() -> str:
    """Return what was chosen: "auto", "cpu" or "cuda"."""
    return _chosen


def _sees_gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()
