"""A small task for the trainer, and a run of it for tests that need processes of their own."""

import atexit
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from planted import planted_rows

from longtail.evaluation.metrics import evaluate
from longtail.topk import TopK
from longtail.training.config import TrainingConfig
from longtail.training.draws import dropout
from longtail.training.loop import train


class Module(torch.nn.Module):
    """Feature rows to an embedding (sparse gradients) to label scores (dense gradients)."""

    def __init__(self, n_features, n_labels, dim=16):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(n_features, dim, mode="sum", sparse=True)
        self.output = torch.nn.Linear(dim, n_labels)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, columns, starts):
        hidden = torch.relu(self.embedding(columns, starts))
        return self.output(dropout(hidden, self.dropout.p, self.training))


class PlantedTask:
    """Learns planted data; `noise` lets batches carry random numbers of their own."""

    def __init__(self, n=201, noise=0.01, dropout=0.2, seed=0):
        self.X, self.Y = planted_rows(n, seed=seed)
        self.held_out_X, self.held_out_Y = planted_rows(80, seed=seed + 100)
        self.n_documents, self.noise = n, noise
        torch.manual_seed(seed)
        self.module = Module(self.X.shape[1], self.Y.shape[1])
        self.module.dropout.p = dropout
        self.steps = 0
        self.on_loss = lambda step, loss: loss

    def batch(self, rows, rng, mine):
        X = self.X[rows[mine]]
        targets = self.Y[rows].toarray()
        targets += self.noise * rng.random(targets.shape)
        return {
            "columns": torch.from_numpy(X.indices.astype(np.int64)),
            "starts": torch.from_numpy(X.indptr[:-1].astype(np.int64)),
            "targets": torch.from_numpy(targets[mine]),
        }

    def loss(self, batch):
        scores = self.module(batch["columns"], batch["starts"])
        targets = batch["targets"].clamp(max=1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, targets)
        self.steps += 1
        return self.on_loss(self.steps, loss)

    def optimizers(self, learning_rate):
        return [
            torch.optim.SparseAdam(self.module.embedding.parameters(), learning_rate),
            torch.optim.Adam(self.module.output.parameters(), learning_rate),
        ]

    def scores(self):
        X = self.held_out_X
        device = next(self.module.parameters()).device
        columns = torch.from_numpy(X.indices.astype(np.int64)).to(device)
        return self.module(columns, torch.from_numpy(X.indptr[:-1].astype(np.int64)).to(device))

    def validate(self):
        top = self.scores().topk(5)
        found = TopK(top.indices.cpu().numpy().astype(np.int32), top.values.cpu().numpy())
        measured = evaluate(found, self.held_out_Y)
        return {name: measured[name] for name in ("P@1", "nDCG@5")}


CONFIG = TrainingConfig(
    epochs=3,
    batch_size=40,
    learning_rate=0.02,
    schedule="cosine",
    warmup=0.1,
    clip=1.0,
    averaging="mean",
    averaging_every=2,
    validate_every=4,
)


def weights(task):
    return {name: tensor.cpu().numpy() for name, tensor in task.module.state_dict().items()}


# ------------------------------------------------------------- runs for processes of their own


def run_killed_again_and_again(folder):
    """Train in children, each resumed from the last and killed at a later write to the disk."""
    import torch._dynamo  # which the first step of an optimizer imports: once, not in every child

    torch.set_num_threads(1)
    for n_syncs in range(1, 12):
        status = _in_child(lambda n=n_syncs: _train_until_killed(folder / "run", n))
        assert os.WTERMSIG(status) == signal.SIGKILL, (n_syncs, status)
    assert _in_child(lambda: _train_into(folder / "resumed.npz", folder / "run", True)) == 0
    assert _in_child(lambda: _train_into(folder / "whole.npz", None, False)) == 0


def _in_child(function):
    child = os.fork()
    if child == 0:
        function()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def _train_until_killed(run_dir, n_syncs):
    left, sync = n_syncs, os.fsync

    def count_down(descriptor):
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    os.fsync = count_down
    train(PlantedTask(), CONFIG, device="cpu", run_dir=run_dir, resume=True, checkpoint_seconds=0)


def _train_into(path, run_dir, resume):
    task = PlantedTask()
    train(task, CONFIG, device="cpu", run_dir=run_dir, resume=resume)
    np.savez(path, **weights(task))


def run_among_several(folder):
    """Train as one of several processes, and write what this one ends with."""
    torch.set_num_threads(1)
    rank = os.environ.get("RANK", "0")
    atexit.register(lambda: (folder / f"threads{rank}.txt").write_text("\n".join(_own_threads())))
    task = PlantedTask()
    history = train(task, CONFIG, device="cpu", run_dir=folder / "run")
    assert history.best is not None
    np.savez(folder / f"rank{rank}.npz", **weights(task))


def _own_threads():
    """Return the names of this process's threads, in a system that tells."""
    return sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))


if __name__ == "__main__":
    {"kill": run_killed_again_and_again, "several": run_among_several}[sys.argv[1]](
        Path(sys.argv[2])
    )
