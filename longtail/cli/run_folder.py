"""The run folder `DIR.run`: the log and the checkpoints of a model that is trained for DIR."""

from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from longtail.errors import ParameterError

if TYPE_CHECKING:
    from longtail.models.base import Model

MEASURING, TRAINING = "measuring", "training"


class RunFolder:
    """Where a model that is worth it writes its log and its checkpoints.

    Checkpoints go once the model is saved, the log stays. Models that train in a minute or two
    have no use for it, and then the folder is never made.
    """

    def __init__(self, out: Path, *, resume: bool) -> None:
        self.path = out.with_name(out.name + ".run")
        self.resume = resume

    def find_checkpoints(self) -> list[Path]:
        """Return the folders of all checkpoints, whole or not, and of parts that are done."""
        found = [*self.path.glob("**/step-*"), *self.path.glob("*/parts/*")]
        return [folder for folder in found if folder.is_dir()]

    def require_finished(self) -> None:
        """Raise ParameterError if an earlier run left checkpoints that a new one would remove."""
        if self.find_checkpoints():
            raise ParameterError(
                f"{self.path} holds checkpoints of a run that was stopped; add --resume to go on "
                "with it, or --overwrite to begin again"
            )

    def prepare(self, model: Any, part: str) -> "Model":
        """Let `model` write into the folder `part` of this one, if it is one that does."""
        if hasattr(model, "run_dir"):
            model.run_dir, model.resume = self.path / part, self.resume
        prepared: Model = model
        return prepared

    def remove_checkpoints(self) -> None:
        """Remove what nobody needs once the model is saved."""
        # By name, as checkpoint.py would load torch for models that never used it.
        for folder in self.find_checkpoints():
            rmtree(folder, ignore_errors=True)
        for folder in self.path.glob("*/parts"):
            rmtree(folder, ignore_errors=True)

    def say_what_is_kept(self, out: Path) -> str:
        """Return what to tell a user who stopped training."""
        kept = f"no model was saved and {out} is as it was before"
        if not self.find_checkpoints():
            return f"{kept}."
        return f"{kept}; the same command with --resume goes on from where it stopped."
