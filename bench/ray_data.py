"""Ours beside Ray Data: `python -m bench.ray_data ours|theirs FILE MODEL OUT`.

Labels the JSON lines of FILE (with ids and texts) by the model folder MODEL into the new folder
OUT, on a local cluster of two cores: by `longtail.cluster.predict`, or by Ray Data with two actors
that hold the model, and its order kept. Prints seconds by the clock and of all processors, and the
most memory that all processes had together (pages that several share are counted once).
"""

import argparse
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds

from longtail.cluster import Request, connected, predict

CORES, K, BATCH = 2, 5, 8192
LOOK_SECONDS = 1.0


class Watch(threading.Thread):
    """Looks at this process and all that it started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seconds: dict[int, float] = {}
        self.peak = 0

    def run(self) -> None:
        """Look until the program ends."""
        own = psutil.Process()
        while True:
            held = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    times = process.cpu_times()
                    self.seconds[process.pid] = times.user + times.system
                    held += process.memory_full_info().pss
                except psutil.Error:  # it has ended
                    continue
            self.peak = max(self.peak, held)
            time.sleep(LOOK_SECONDS)

    @property
    def total(self) -> float:
        """Seconds that all processes have computed."""
        time.sleep(2 * LOOK_SECONDS)
        return sum(self.seconds.values())


class Labeller:
    """An actor of Ray Data that holds the model."""

    def __init__(self, model: str) -> None:
        import longtail
        from longtail.runtime.parallel import set_threads

        set_threads(1)
        self.model = longtail.load_model(model)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Label a batch."""
        top = self.model.predict([str(text) for text in batch["text"]], K).to_list()
        labels = [[each["label"] for each in found] for found in top]
        scores = [[each["score"] for each in found] for found in top]
        return {"id": batch["id"], "labels": labels, "scores": scores}


def label_by_ray_data(ray: Any, model: Path, source: Path, out: Path) -> None:
    """Do what `predict` does, but for restarts and the bits of parts."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    actors = ray.data.ActorPoolStrategy(size=CORES)
    documents = ray.data.read_json(str(source.absolute()), lines=True)
    documents.map_batches(
        Labeller,
        fn_constructor_args=(str(model.absolute()),),
        batch_size=BATCH,
        compute=actors,
        num_cpus=0.5,  # the rest is for tasks that read and write
    ).write_parquet(str(out.absolute()))


def main() -> None:
    """Label, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("by", choices=("ours", "theirs"))
    for name in ("source", "model", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    watch = Watch()
    watch.start()
    with connected("local", CORES) as workers:
        before, began = watch.total, time.perf_counter()
        if args.by == "ours":
            predict(args.model, args.source, args.out, workers, Request(k=K))
        else:
            import ray.data

            label_by_ray_data(ray, args.model, args.source, args.out)
        wall = time.perf_counter() - began
        computed = watch.total - before
    ids = ds.dataset(args.out).to_table()["id"].to_pylist()
    order = "in order" if ids == sorted(ids, key=int) else "not in order"
    print(
        f"{args.by}: {len(ids):,} documents, {order}; {wall:.1f} s by the clock, {computed:.1f} s "
        f"of processors, at most {watch.peak / 1e6:,.0f} MB"
    )


if __name__ == "__main__":
    main()
