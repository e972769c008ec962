"""A trained model's labels, its card, and its folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Self

from longtail.data import Dataset
from longtail.errors import ModelFileError, TrainingError
from longtail.evaluation.calibration import Calibration
from longtail.evaluation.metrics import TrainingCounts
from longtail.labels.state import LabelState
from longtail.models.card import FEW, Card
from longtail.models.columns import add_columns, columns_from, describe_columns
from longtail.models.contract import Contract
from longtail.models.restraint import Restraint, widen
from longtail.progress import SILENT, Progress, shown
from longtail.runtime.schema import (
    Schema,
    Sizes,
    Texts,
    Value,
    counts,
    look_up,
    parameters_of,
    refuse,
    size,
)
from longtail.runtime.settings import configurable, settings_of, show_settings
from longtail.runtime.store import Files, to_json, write_folder
from longtail.text.tfidf import Tfidf
from longtail.visible import html_table, visible


@configurable
class Saved(Contract):
    """Knows what its labels are called, says where it comes from, is written and read."""

    # -- its labels -----------------------------------------------------------------------------

    @property
    def label_uris(self) -> Sequence[str | None] | None:
        """The URI of each label, None for those without; None if no label has one."""
        return self.label_state_.uris

    def names_in(self, language: str) -> list[str]:
        """Return what labels are called in a language of the vocabulary."""
        self._check_fitted()
        return self.label_state_.names_in(language, self.label_names_)

    def set_label_names(self, names: Sequence[str]) -> None:
        """Give labels other names; further ones at the end are labels without documents."""
        self.label_names_ = list(names)
        self.label_state_ = self.label_state_.widen(len(names))
        if self.restraint_ is not None:
            self.restraint_ = Restraint(widen(self.restraint_, len(names)))
        counts = self.training_counts_
        self.training_counts_ = TrainingCounts(counts.n_documents, counts.padded(len(names)))

    @property
    def current_counts(self) -> TrainingCounts:
        """The training documents of labels as they are given now, at most; see `label_state_`."""
        counts = self.training_counts_
        found = self.label_state_.count(counts.label_counts, counts.n_documents)
        return TrainingCounts(counts.n_documents, found)

    def read_labels(self, dataset: Dataset, progress: Progress | bool = SILENT) -> Dataset:
        """Return documents whose labels have the names that the model has for them.

        By its vocabulary, URIs and other names become the model's own; labels that were merged
        become what they were merged into, and those that were dropped are passed over.
        """
        self._check_fitted()
        found, notes = self.label_state_.read(dataset, self.label_names_)
        with shown(progress) as shows:
            for note in notes:
                shows.say(f"Note: {note}.")
        return found

    # -- where it comes from ------------------------------------------------------------------

    def make_card(self) -> Card:
        """Return the card, with what the model itself knows now; see `longtail.models.card`."""
        self._check_fitted()
        settings = self.get_parameters()
        if self.features_ is not None:
            features = settings_of(Tfidf)
            settings |= {f"tfidf.{name}": getattr(self.features_, name) for name in features}
        card = self.card_ or Card(self.name, trained="at an unknown time")
        notes, limits = self.describe_training(), self._find_limits()
        return replace(card, settings=settings, notes=notes, limits=limits)

    def note_event(self, event: str) -> None:
        """Write into the card what happened to the model."""
        if self.card_ is not None:
            self.card_ = self.card_.add_to_history(event)

    def _find_limits(self) -> list[str]:
        """Say what not to expect of this model."""
        carried = self.training_counts_.label_counts[self.training_counts_.label_counts > 0]
        n_few = int((carried < FEW).sum())
        few = f" {n_few:,} of them had fewer than {FEW} documents and are seldom found."
        limits = [
            f"It gives none but the {len(carried):,} labels that its training documents carry."
            f"{few if n_few else ''}",
            "A document without any known word or feature gets the most frequent labels.",
        ]
        if self.trained_on == "rows":
            limits.append(f"It reads rows of {self.n_features_:,} features, made as in training.")
        if self.calibration_ is None:
            limits.append("Its scores order labels; they are no probabilities.")
        else:
            limits.append(
                f"Its scores are probabilities, learned from {self.calibration_.n_documents:,} "
                "documents: they hold for documents of the same kind."
            )
        return limits

    def __repr__(self) -> str:
        """Return the parameters that are not the default, and where the model comes from."""
        if not self.is_fitted:
            return show_settings(self)
        return "\n  ".join([show_settings(self), *self._summarize()])

    def _repr_html_(self) -> str:
        """Return the same as a table for notebooks, with all parameters."""
        title = "; ".join([type(self).__name__, *self._summarize()])
        values = self.get_parameters().items()
        return html_table(title, ["parameter", "value"], [[name, str(v)] for name, v in values])

    def _summarize(self) -> list[str]:
        """Say what it knows, where it comes from and how good it is, each in a line."""
        if not self.is_fitted:
            return ["not trained yet"]
        origin = "" if self.card_ is None else f", {visible(self.card_.summary)}"
        lines = [f"{len(self.label_names_):,} labels{origin}"]
        metrics = {} if self.card_ is None else self.card_.metrics
        shown = [f"{name} {metrics[name]:.1f}" for name in ("P@1", "P@3", "P@5") if name in metrics]
        return [*lines, f"on held-out documents: {', '.join(shown)}"] if shown else lines

    # -- saving -----------------------------------------------------------------------------

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the model to the new folder `path`, whole or not at all."""

        def make_card(n_bytes: int) -> tuple[str, str]:
            card = replace(self.make_card(), n_bytes=n_bytes)
            return card.to_json(), card.to_page()

        files = self.to_files()
        try:
            self.check_files(replace(files, config=to_json(files.config)))
        except (ModelFileError, ValueError) as error:
            raise TrainingError(
                f"{path}: the model was not saved, as it could not be opened again: {error}; "
                "nothing was replaced. Feature values that are extremely large or small may be the "
                "cause: scale them to about 1 and train again"
            ) from error
        write_folder(path, files, overwrite=overwrite, make_card=make_card)

    def check_files(self, files: Files) -> None:
        """Raise ValueError for what the schema refuses; all numbers are looked at."""
        sizes: Sizes = {}
        self._describe_shared(files).check(files, sizes)
        self._check_own(files, sizes)

    def _check_own(self, files: Files, sizes: Sizes) -> None:
        """Check what this model has beside what all models have, and that there is no more."""
        self.describe(files).check(files, sizes)
        self.describe_all(files).check_names(files)

    def to_files(self) -> Files:
        """Return what `save` writes."""
        self._check_fitted()
        config = {
            "model": self.name,
            "package": type(self).__module__.partition(".")[0],
            "trained_on": self.trained_on,
            "parameters": self.get_parameters(),
            "n_features": self.n_features_,
            "n_documents": self.training_counts_.n_documents,
        }
        files = Files(
            config=config,
            arrays={"label_counts": self.training_counts_.label_counts},
            texts={"label_names": self.label_names_},
        )
        if self.features_ is not None:
            self.features_.to_files(files)
        if self.calibration_ is not None:
            self.calibration_.add_to_files(files)
        if self.restraint_ is not None:
            self.restraint_.add_to_files(files)
        self.label_state_.add_to_files(files)
        add_columns(files, self.columns_)
        self.add_to_files(files)
        return files

    @classmethod
    def from_files(cls, files: Files, path: str | Path) -> Self:
        """Rebuild a model from the files of its folder `path`, which is named in errors.

        They may be a stranger's, so all of them are checked before a model takes anything from
        them: first what all models have, then what the parameters say that this one has.
        """
        try:
            sizes: Sizes = {}
            cls._describe_shared(files).check(files, sizes)
            model = cls(**files.config["parameters"])
            model.label_names_ = files.texts["label_names"]
            label_counts = files.arrays["label_counts"]
            model.training_counts_ = TrainingCounts(files.config["n_documents"], label_counts)
            model.trained_on = files.config["trained_on"]
            model.n_features_ = files.config["n_features"]
            model._check_own(files, sizes)
            model.features_ = Tfidf.from_files(files) if "features" in files.config else None
            model.tfidf = model.features_
            model.calibration_ = Calibration.from_files(files)
            model.restraint_ = Restraint.from_files(files)
            model.label_state_ = LabelState.from_files(files)
            model.columns_ = columns_from(files)
            model.restore(files)
            model.card_ = None if files.card is None else Card.from_json(files.card)
        except ModelFileError as error:  # of a part, which does not know the folder
            raise ModelFileError(f"{path}: {error}") from error
        except ValueError as error:
            raise refuse(path, error) from error
        return model

    def describe_all(self, files: Files) -> Schema:
        """Return the schema of a whole folder with this model."""
        return self._describe_shared(files) | self.describe(files)

    @classmethod
    def _describe_shared(cls, files: Files) -> Schema:
        """Return the schema of what all models have."""
        shared = Schema(
            config={
                "model": Value(str),
                "package": Value(str),
                "trained_on": Value(Literal[cls.reads]),
                "parameters": parameters_of(cls, without=("tfidf",)),
                "n_features": size("n_features", least=0),
                "n_documents": size("n_documents"),
            },
            arrays={"label_counts": counts("n_labels", most="n_documents")},
            texts={"label_names": Texts("n_labels", unique=True)},
        )
        if cls.makes_rows and look_up(files.config, "trained_on") == "texts":
            shared |= Tfidf.describe()
        if "calibration" in files.config:
            shared |= Calibration.describe()
        shared |= Restraint.describe(files)
        return shared | LabelState.describe(files) | describe_columns(files)
