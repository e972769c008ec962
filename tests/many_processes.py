"""Train small models as one of several processes; write the loss of every step, and predictions.

One of two writes what they exchanged before that, as well.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from planted import planted_texts

from longtail.errors import ParameterError
from longtail.models import neural
from longtail.models.registry import get_model_class
from longtail.training import loop
from longtail.training.averaging import WeightMean
from longtail.training.history import Clock
from longtail.training.layers import RowAdam
from longtail.training.processes import join_processes
from longtail.training.split import SplitRows, gather_rows

PARTS = ("losses", "scores", "held")
N_DOCUMENTS = 65  # with batches of 16, the last of an epoch has one document only
ROWS = {"epochs": 2, "batch_size": 16, "device": "cpu"}
CASES = {
    "glas": {**ROWS, "dim": 16, "valid": 0.1},
    "glas, sampled": {**ROWS, "dim": 16, "sampled": 3, "embedding": "linear", "averaging": True},
    "glas, int8": {**ROWS, "dim": 16, "sampled": 3, "optimizer_state": "int8"},
    "mnn": {**ROWS, "dim": 16, "dropout": 0.2},
    "mnn, hardest": {**ROWS, "dim": 16, "loss": "hardest", "negatives": 4},
    "dxml": {**ROWS, "dim": 8, "hidden": 16},
    "dxml, summed": {**ROWS, "dim": 8, "hidden": 16, "sum_losses": True, "optimizer": "sgd"},
    "rank-ae": {**ROWS, "dim": 16},
    "rank-ae, sampled": {**ROWS, "dim": 16, "sampled": 4, "reader": "bilstm"},
    "attention-xml": {**ROWS, "hidden": 8, "word_dim": 8},
    "attention-xml, tree": {
        **ROWS,
        **{"hidden": 8, "word_dim": 8, "levels": 1, "branching": 4, "candidates": 2},
    },
}
SPLIT = {
    name: {**CASES[name.removesuffix(", split")], "split_labels": True}
    for name in ("glas, split", "glas, sampled, split", "attention-xml, tree, split")
}
SPLIT["attention-xml, split"] = {**CASES["attention-xml"], "split_labels": True, "attention": False}
for loss in ("margin", "mining", "softmax"):
    SPLIT[f"glas, {loss}, split"] = {
        **CASES["glas"],
        "loss": loss,
        "mined": 2,
        "split_labels": True,
    }
SPLIT["glas, softmax, split"]["sampled"] = 3
SPLIT["glas, automatically split"] = CASES["glas, sampled"]  # as memory will seem too small
CASES |= SPLIT
# A gradient that is 0 but for rounding has either sign, and Adam makes a whole step of it. Of 400
# runs of `glas, …, split` (seeds 0 to 99) one process and two went apart in 17 for this reason, by
# up to 2e-3 of a loss. The first gradients that differed were up to 5e-6, in float64 below 2e-14;
# the largest beside them, 4 to 76. Dropout had left one neuron of a document, and a unit vector
# keeps nothing of its size: words for which no other document uses this neuron have no gradient. In
# `rank-ae, sampled` (3 of 10 seeds, 1e-9 in place of 0) as many documents pull at a label's bias as
# push. A larger ε makes little of these gradients and much of others: all those runs, and ten
# seeds of every case, agree to 2e-6.
# With seed 35, dropout leaves nothing of a document: that was a fault of `glas`, not rounding.
CALM, EPS = ", calm, seed ", 1e-2
SEEDS = {
    "glas, split": (3, 21),
    "glas, margin, split": (32, 72),
    "glas, mining, split": (21, 35),
    "glas, softmax, split": (29, 80),
    "rank-ae, sampled": (0, 7),
}
CALM_CASES = {
    f"{name}{CALM}{seed}": {**CASES[name], "seed": seed}
    for name, seeds in SEEDS.items()
    for seed in seeds
}
CASES |= CALM_CASES
for case in CASES.values():
    case["device"] = os.environ.get("LONGTAIL_TEST_DEVICE", "cpu")
CASES["attention-xml, plain"] = {**CASES["attention-xml"], "attention": False}


def train_all(names):
    """Return, by the name of a case, losses of all steps, scores, bytes held of the labels."""
    torch.set_num_threads(1)
    return {name: train_one(name) for name in names}


def train_one(name):
    losses, held, count = [], [], Clock.count
    go, finish = loop._Run.go, loop._Run.finish

    def note(clock, loss, n_documents):
        losses.append(loss)
        count(clock, loss, n_documents)

    def calm(run, *given):
        for group in run.groups if CALM in name else ():
            group["eps"] = EPS
        go(run, *given)

    def weigh(run):
        held.append(count_bytes(run))
        finish(run)

    settings = {"seed": 4, **CASES[name]}
    if "RANK" not in os.environ:  # there is nobody to split with
        settings.pop("split_labels", None)
    Clock.count, loop._Run.go, loop._Run.finish = note, calm, weigh
    fits, all_fits = neural.fits_memory, "automatically" not in name
    neural.fits_memory = lambda needs, device: all_fits and fits(needs, device)
    try:
        model = get_model_class(name.split(",")[0])(**settings)
        model.fit(planted_texts(N_DOCUMENTS))
        asked = planted_texts(20, seed=9)
        scores = model.score(asked, np.tile(np.arange(12, dtype=np.int32), (20, 1)))
    finally:
        Clock.count, loop._Run.go, loop._Run.finish = count, go, finish
        neural.fits_memory = fits
    return np.array(losses), scores, np.array(held)


def count_bytes(run):
    """Return how many bytes a run holds of the labels: weights, means, what Adam remembers."""
    named = dict(run.module.named_parameters())
    labels = named.get("labels")
    if labels is None:
        return 0
    means = [mean for mean, name in zip(run.mean.values, named, strict=False) if name == "labels"]
    memory = [each.state[labels] for each in run.optimizers if labels in each.state]
    tensors = [value for each in memory for value in each.values()]
    return sum(tensor.nbytes for tensor in (labels, *means, *tensors) if tensor.ndim)


def start(count, command):
    """Start a command as each of so many processes that train together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = []
    for rank in range(count):
        told = {**place, "RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
        told["OMP_NUM_THREADS"] = 1
        paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
        told["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        run = [sys.executable, *map(str, command)]
        started.append(subprocess.Popen(run, env=environment, **pipes))
    return started


def train_among(count, folder, names):
    """Return what `train_all` returns in the first of so many processes; they all agree."""
    processes = start(count, [__file__, folder, *names])
    ended = [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
    assert [code for _, code in ended] == [0] * count, ended
    found = []
    for rank in range(count):
        with np.load(folder / f"rank{rank}.npz") as kept:
            found.append({name: tuple(kept[f"{name}/{part}"] for part in PARTS) for name in names})
    for other in found[1:]:
        for name in names:
            np.testing.assert_array_equal(found[0][name][0], other[name][0])
            np.testing.assert_array_equal(found[0][name][1], other[name][1])
    return found[0]


def write(folder, found):
    """Write what `train_all` returned in this process."""
    flat = {
        f"{name}/{part}": array
        for name, arrays in found.items()
        for part, array in zip(PARTS, arrays, strict=True)
    }
    np.savez(folder / f"rank{os.environ['RANK']}.npz", **flat)


def sparse(rows, values):
    return torch.sparse_coo_tensor(
        [rows], [[float(value)] for value in values], (4, 1), check_invariants=True
    )


def exchange(processes):
    """Return what a process has after two of them exchanged gradients, weights and rows."""
    rank = processes.rank
    dense, half, table, half_table, untouched = (
        torch.nn.Parameter(torch.zeros(4, 1)) for _ in range(5)
    )
    dense.grad = torch.full((4, 1), float(rank))
    table.grad = sparse([0, 2], [2, 4]) if rank == 0 else sparse([2, 3, 2], [1, 6, 1])
    if rank == 1:  # a batch need not touch every parameter in every process
        half.grad, half_table.grad = torch.ones(4, 1), sparse([1], [8])
    processes.sum_gradients([dense, half, table, half_table, untouched])
    assert untouched.grad is None
    gradients = [dense.grad, half.grad, table.grad.to_dense(), half_table.grad.to_dense()]
    module = torch.nn.Linear(2, 2)
    processes.share_weights(module)
    found = {
        "sums": [gradient.flatten().tolist() for gradient in gradients],
        "weights": module.weight.tolist(),
        "shared": processes.share({"P@1": 1 / 3, "n": 7} if rank == 0 else None),
        "nothing": processes.share(None),
        "refused": refuse(processes, {"seed": 3, "data": f"d{rank}"}),
    }
    processes.require_same({"seed": 3})
    rows = gather_rows(torch.arange(7)[rank::2], processes).tolist()
    return {**found, "rows": rows, "state": join_and_cut(processes)}


def refuse(processes, facts):
    try:
        processes.require_same(facts)
    except ParameterError as error:
        return str(error)


def join_and_cut(processes):
    """Return whether the state of a run with split rows becomes whole, and what it was again."""
    module = torch.nn.Module()
    module.other = torch.nn.Parameter(torch.ones(2))
    module.labels = torch.nn.Parameter(torch.arange(10.0).view(5, 2)[processes.rank :: 2].clone())
    optimizer = RowAdam(module.labels)
    module.labels.grad = torch.ones_like(module.labels).to_sparse(1)
    optimizer.step()
    mean = WeightMean(module.parameters())
    mean.add()
    split = SplitRows(module, ("labels",), processes)
    memory = {0: dict(optimizer.state[module.labels])}
    state = {"weights": dict(module.state_dict()), "average": mean.values}
    state |= {"best": {}, "optimizers": [memory], "step": 4}
    whole = split.join(state, [optimizer])
    if processes.is_main:
        assert whole["weights"]["labels"].shape == whole["average"][1].shape == (5, 2)
        assert whole["optimizers"][0][0]["steps"].tolist() == [1] * 5
        cut = split.cut(whole, [optimizer])
        assert torch.equal(cut["weights"]["labels"], module.labels)
        assert torch.equal(cut["optimizers"][0][0]["mean"], memory[0]["mean"])
    return torch.equal(whole["weights"]["other"], module.other)


if __name__ == "__main__":
    if os.environ["WORLD_SIZE"] == "2":
        found = exchange(join_processes("cpu"))
        Path(sys.argv[1], f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    write(Path(sys.argv[1]), train_all(sys.argv[2:]))
