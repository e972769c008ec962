"""A driver for test_faults.py, in a process of its own: `driver.py predict|train FOLDER OUT`."""

import sys
from pathlib import Path

import longtail
from longtail.cluster import Request, connected, predict
from longtail.data import documents


def main(task, folder, out):
    if task == "train":
        settings = {"flat": 0, "branching": 4, "max_leaf": 5, "trees": 8, "max_passes": 400}
        settings["tolerance"] = 1e-6
        longtail.train(
            folder / "train.jsonl",
            model="linear",
            settings=settings,
            valid=0,
            out=out,
            overwrite=True,
            cluster="auto",
        )
        return
    documents.BATCH = 50
    with connected("auto") as workers:
        source = folder / "in.jsonl"
        predict(folder / "model", source, out, workers, Request(k=3), part_batches=2)


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
