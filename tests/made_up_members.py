"""Members of a fusion with made-up lists for the held-out documents."""

import time

import numpy as np
from planted import planted_dataset

from longtail.models.cost import Cost, Facts
from longtail.models.fusion.member import Member
from longtail.models.fusion.plan import Plan
from longtail.models.fusion.scheme import Scheme
from longtail.models.fusion.training import HeldOutMember, MemberTrainer
from longtail.progress import Silent
from longtail.topk import TopK

DATA = planted_dataset()
SCHEME = Scheme(1, 0.1, refit=False)


class Said(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def make_trainer(*members, budget=600.0, left_out=(), run_dir=None, resume=False):
    plan = Plan(members, dict.fromkeys(left_out, "no time"), SCHEME, budget)
    facts = Facts(300, 12, DATA.X.shape[1], DATA.X.nnz, has_texts=False, device="cpu")
    return MemberTrainer(
        DATA,
        DATA.X,
        plan,
        facts,
        device="cpu",
        seed=0,
        began=time.monotonic(),
        run_dir=run_dir,
        resume=resume,
        checkpoint_seconds=300.0,
        progress=Said(),
    )


def right_about(trainer, share, seed):
    """Return lists that have the right label first for a share of the held-out documents."""
    ((_, held),) = trainer.splits
    rng = np.random.default_rng(seed)
    labels = np.array([rng.permutation(12)[:10] for _ in held], np.int32)
    for i, row in enumerate(held):
        right = DATA.Y[row].indices
        if rng.random() < share:
            labels[i] = [*right, *(other for other in labels[i] if other not in right)][:10]
            labels[i] = list(dict.fromkeys([*labels[i], *range(12)]))[:10]
    scores = np.tile(np.linspace(0.9, 0.1, 10, dtype=np.float32), (len(held), 1))
    return [TopK(labels, scores)]


def make_member(name, *, seconds=1.0, epochs=5):
    model = name.split("-")[0]
    return Member(name, model, "", Cost(0.0, seconds / epochs, epochs) if epochs else Cost(seconds))


def hold(trainer, member, share, seed=0):
    return HeldOutMember(member, [None], right_about(trainer, share, seed))
