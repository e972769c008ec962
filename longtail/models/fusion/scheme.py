"""Which documents are held out, so that stacking learns from some that members have not seen.

What is learned from the members' lists must come from documents that they were not trained on, so
each member is trained several times:

    up to 20,000 documents     three folds: each third (at most 3,333 documents of it) is predicted
                               by members trained on the others, then they are trained on all
    up to 100,000              a tenth is held out, then the members are trained on all documents
    beyond                     a fiftieth is held out, at most 10,000, and there is no second
                               training
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from longtail.models.fusion.member import Member
from longtail.runtime.rows import hold_out

FEW, MANY = 20_000, 100_000  # documents
FOLDS = 3
HELD_OUT, SHARE = 10_000, 0.02  # of many documents, at most; more teach nothing new
LEAST_HELD_OUT = 20  # with fewer there is nothing to learn stacking from

Split = tuple[Any, Any]


class Scheme(NamedTuple):
    """Which documents are held out, and whether members are trained on all of them at the end."""

    folds: int
    share: float
    refit: bool

    @property
    def held_out_trainings(self) -> float:
        """How many trainings on all documents those without some of them cost."""
        return self.folds * (1 - self.share)

    def trainings(self, member: Member) -> float:
        """Return how many trainings on all documents a member costs."""
        return self.held_out_trainings + (self.refit and not member.once)

    def seconds(self, member: Member) -> float:
        """Return how long all trainings of a member take, about."""
        return self.trainings(member) * member.seconds

    def ways(self, member: Member) -> list[Member]:
        """Return the member, and as it is trained if there is no time for a last training.

        That is for members of epochs, which cost more than it brings. A member of several folds has
        seen too few of the documents to do without.
        """
        spares = self.folds == 1 and self.refit and member.cost.epochs > 0 and not member.once
        return [member, member._replace(once=True)] if spares else [member]

    @property
    def largest_share(self) -> float:
        """The largest share of the documents that is copied for a training; all need no copy."""
        return 1 - self.share if self.folds else 0.0

    def count_held(self, n_documents: int) -> int:
        """Return how many documents are held out and predicted, in all folds."""
        if self.folds > 1:
            return min(n_documents, self.folds * (HELD_OUT // self.folds))
        return round(self.share * n_documents) if self.folds else 0

    def split(self, n_documents: int, seed: int) -> list[Split]:
        """Return for each fold the documents to train on and those held out, to be predicted."""
        if self.folds == 1:
            return [hold_out(n_documents, self.share, seed)]
        order = np.random.default_rng(seed).permutation(n_documents)
        thirds = [order[fold :: self.folds] for fold in range(self.folds)]
        enough = HELD_OUT // self.folds
        return [(np.setdiff1d(order, held), np.sort(held[:enough])) for held in thirds]

    def describe(self, n_documents: int, once: Sequence[str] = ()) -> str:
        """Say in one line what happens to the documents; `once` are trained on a part alone."""
        if not self.folds:
            return (
                f"no documents are held out, as {n_documents} are too few; "
                "all members get the same weight"
            )
        if self.folds > 1:
            return (
                f"each member is trained {self.folds} times, each time without another "
                f"{_ORDINALS[self.folds]} of the documents, then once on all"
            )
        n_held = round(self.share * n_documents)
        others = f" but {' and '.join(once)}" if once else ""
        ending = f", then each member{others} is trained on all" if self.refit else ""
        return f"{n_held:,} of {n_documents:,} documents are held out for stacking{ending}"


_ORDINALS = {2: "half", 3: "third", 4: "quarter", 5: "fifth"}
NOTHING_HELD_OUT = Scheme(0, 0.0, True)


def choose_schemes(n_documents: int) -> list[Scheme]:
    """Return what suits so many documents, then what takes less time."""
    folds = Scheme(FOLDS, 1 / FOLDS, refit=True)
    tenth = Scheme(1, 0.1, refit=True)
    once = Scheme(1, 0.1, refit=False)
    if n_documents > MANY:
        once = Scheme(1, min(SHARE, HELD_OUT / n_documents), refit=False)
    if n_documents < LEAST_HELD_OUT:
        return [NOTHING_HELD_OUT]
    if n_documents <= FEW:
        return [folds, tenth, once]
    return [tenth, once] if n_documents <= MANY else [once]
