"""What the members of a plan take in memory, one after the other."""

import scipy.sparse as sp

from longtail.models.cost import DeviceType
from longtail.models.estimates import WORTH_SAYING
from longtail.models.fusion.candidates import USUAL_PROPOSED, count_inputs
from longtail.models.fusion.plan import Plan
from longtail.progress import Progress
from longtail.runtime import memory
from longtail.runtime.memory import WORKSPACE, Stage, size_of, total_ram
from longtail.text.tfidf import Tfidf

STACKED = 44  # bytes for each number that describes a candidate, while stacking is learned


def say_memory(
    plan: Plan,
    X: sp.csr_matrix,
    Y: sp.csr_matrix,
    features: Tfidf | None,
    device: DeviceType,
    progress: Progress,
) -> None:
    """Say what the members take if that is much; one that does not fit is left out later."""
    texts = {} if features is None else {"rows of texts": size_of(X) + features.n_bytes}
    fold = 2 * int(size_of(X, Y) * plan.scheme.largest_share)
    members = [member.make() for member in plan.members]
    kept = [model.kept_of(X, Y) for model in members]
    # The models of all folds stay until stacking has their scores, one of each member until it
    # has been trained on all documents.
    n_models = max(1, plan.scheme.folds)
    to_refit = sum(kept) if plan.scheme.folds and plan.scheme.refit else 0
    needs = [model.needs_of(X, Y, device) for model in members]
    stages = []
    for number, own in enumerate(needs):
        others = {
            "other members": max(to_refit, n_models * sum(kept[:number])),
            "rows of a fold": fold,
            "workspace": WORKSPACE,
            **texts,
        }
        stages += [stage.also(others) for stage in own]
    width = min(USUAL_PROPOSED * len(plan.members), Y.shape[1])
    n_numbers = plan.scheme.count_held(X.shape[0]) * width * count_inputs(len(plan.members))
    stacked = {"stacking": STACKED * n_numbers, "members": n_models * sum(kept)}
    stages.append(Stage({**stacked, **texts}))
    plan_text = memory.plan_memory(stages, device=device, refuse=False)
    if total_ram(stages) >= WORTH_SAYING:
        progress.say(f"Memory: {plan_text}")
