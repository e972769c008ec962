"""What several processes hold and send: `python -m bench.processes [--processes 1,2,4]`.

Trains glas and attention-xml on made-up documents by one, two and four processes of this machine,
each with a copy of the labels and with the labels split. For each it prints the last loss, the
bytes that the first process holds of the labels (weights, means, what Adam remembers), the bytes
of the tensors that it hands over to be exchanged in a step, and its CPU seconds in training.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

N_DOCUMENTS, N_LABELS, N_WORDS, LENGTH = 1024, 20_000, 5_000, 20
SETTINGS: dict[str, dict[str, Any]] = {
    "glas": {"dim": 64, "sampled": 4096, "batch_size": 64, "epochs": 1},
    "attention-xml": {
        **{"hidden": 32, "word_dim": 32, "head": 32, "batch_size": 64, "epochs": 1},
        **{"inner_epochs": 1, "levels": 1, "branching": 64, "candidates": 4, "pretrain": False},
    },
}


def main() -> None:
    """Print the table, or train as one of several processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--models", default=",".join(SETTINGS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train is not None:
        print(json.dumps(measure(args.train, args.device)))
        return
    print("| model | processes | labels | last loss | label bytes | bytes sent a step | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for model in args.models.split(","):
        for count in map(int, args.processes.split(",")):
            for split in (False, True)[: 2 if count > 1 else 1]:
                found = launch(model, count, split, args.device)
                where = "split" if split else "a copy each"
                print(
                    f"| `{model}` | {count} | {where} | {found['loss']:.6f} | {found['held']:,} "
                    f"| {found['sent']:,} | {found['seconds']:.1f} |",
                    flush=True,
                )


def launch(model: str, count: int, split: bool, device: str) -> dict[str, float]:
    """Return what the first of `count` processes measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free.getsockname()[1]}
    place |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "OMP_NUM_THREADS": 1}
    name = f"{model},{'split' if split else 'copy'}"
    command = [sys.executable, "-m", "bench.processes", "--train", name, "--device", device]
    started = []
    for rank in range(count):
        told = {**place, "RANK": rank, "LOCAL_RANK": rank}
        environment = {**os.environ, **{key: str(value) for key, value in told.items()}}
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
    said = [process.communicate()[0] for process in started]
    found: dict[str, float] = json.loads(said[0].splitlines()[-1])
    return found


def measure(name: str, device: str) -> dict[str, float]:
    """Train as one of several processes; return loss, bytes held and sent, and CPU seconds."""
    import torch
    import torch.distributed as dist

    from longtail.models.registry import get_model_class
    from longtail.training import loop

    torch.set_num_threads(1)
    sent, runs = [0], list[dict[str, float]]()

    def count_sent(exchange: Any) -> Any:
        def counted(*args: Any, **extra: Any) -> Any:
            tensor = args[1] if isinstance(args[0], list) else args[0]
            sent[0] += tensor.nbytes
            return exchange(*args, **extra)

        return counted

    for each in ("all_reduce", "all_gather", "broadcast"):
        setattr(dist, each, count_sent(getattr(dist, each)))
    go = loop._Run.go

    def note(run: Any, *args: Any) -> None:
        before, began = sent[0], time.process_time()
        go(run, *args)
        runs.append(
            {
                "loss": run.history.records[-1]["loss"],
                "held": count_held(run),
                "sent": (sent[0] - before) // run.step,
                "seconds": time.process_time() - began,
            }
        )

    loop._Run.go = note  # type: ignore[method-assign]
    model, labels = name.split(",")
    split = {"split_labels": labels == "split"}
    get_model_class(model)(**SETTINGS[model], **split, device=device).fit(*make_up(model))
    return runs[-1]


def count_held(run: Any) -> int:
    """Return the bytes that a run holds of the labels."""
    named = dict(run.module.named_parameters())
    labels = named["labels"]
    means = [mean for mean, name in zip(run.mean.values, named, strict=False) if name == "labels"]
    memory = [value for each in run.optimizers for value in each.state.get(labels, {}).values()]
    return sum(tensor.nbytes for tensor in (labels, *means, *memory))


def make_up(model: str) -> tuple[Any, sp.csr_matrix]:
    """Return documents of random words, and three labels for each."""
    rng = np.random.default_rng(0)
    words = rng.integers(N_WORDS, size=(N_DOCUMENTS, LENGTH))
    labels = rng.integers(N_LABELS, size=3 * N_DOCUMENTS)
    rows = np.repeat(np.arange(N_DOCUMENTS), 3)
    shape = (N_DOCUMENTS, N_LABELS)
    Y = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, labels)), shape=shape)
    Y.data[:] = 1
    if model == "attention-xml":
        return [" ".join(f"word{word}" for word in row) for row in words], Y
    rows = np.repeat(np.arange(N_DOCUMENTS), LENGTH)
    cells = np.ones(len(rows), np.float32), (rows, words.ravel())
    return sp.csr_matrix(cells, shape=(N_DOCUMENTS, N_WORDS)), Y


if __name__ == "__main__":
    main()
