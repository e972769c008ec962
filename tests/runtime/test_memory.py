"""The memory plan: what it says, what it refuses and what it advises."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

from longtail.errors import MemoryPlanError, ParameterError
from longtail.runtime import memory
from longtail.runtime.mapped import MatrixWriter, as_sent, is_mapped
from longtail.runtime.memory import (
    Stage,
    format_bytes,
    free_ram,
    full_size_of,
    plan_memory,
    size_of,
    total_ram,
    train_stage,
)

GIB = 1 << 30
SIZES = {
    "parameters": 2 * GIB,
    "gradients": GIB,
    "optimizer": 4 * GIB,
    "activations": GIB // 2,
    "best": 2 * GIB,
}
SMALL_SIZES = {**SIZES, "parameters": GIB, "optimizer": 2 * GIB, "best": GIB}


def needs(device="cpu", sizes=SIZES):
    return (train_stage(device, **sizes),)


@pytest.fixture
def free(monkeypatch):
    """Return a function that sets how much memory is free."""

    def set_free(ram, gpu=None):
        monkeypatch.setattr(memory, "free_ram", lambda: ram)
        monkeypatch.setattr(memory, "free_gpu_memory", lambda: gpu)

    return set_free


def test_one_line_says_it_all(free):
    free(ram=16 * GIB)
    assert plan_memory(needs()) == (
        "training takes about 9.5 GiB (parameters 2.0 GiB, gradients 1.0 GiB, optimizer 4.0 GiB, "
        "activations 512 MiB, best weights 2.0 GiB, workspace 40.0 MiB); 16.0 GiB of RAM is free"
    )


def test_the_largest_stage_counts(free):
    free(ram=16 * GIB)
    stages = [Stage({"label graph": 12 * GIB, "rows": GIB}), *needs()]
    assert total_ram(stages) == 13 * GIB
    assert plan_memory(stages).startswith(
        "training takes about 13.0 GiB (label graph 12.0 GiB, rows 1.0 GiB); "
    )
    more = [stage.also({"rows of texts": 4 * GIB}) for stage in stages]
    with pytest.raises(MemoryPlanError, match=r"17\.0 GiB .*rows of texts 4\.0 GiB"):
        plan_memory(more)


def test_on_a_gpu_the_best_weights_stay_in_ram(free):
    free(ram=5 * GIB, gpu=8 * GIB)
    assert plan_memory(needs("cuda"), device="cuda") == (
        "training takes about 7.5 GiB (parameters 2.0 GiB, gradients 1.0 GiB, optimizer 4.0 GiB, "
        "activations 512 MiB); 8.0 GiB of GPU memory is free"
    )


def test_what_does_not_fit_is_refused_with_what_would(free):
    free(ram=6 * GIB)
    others = {"dim=256": needs(sizes=SMALL_SIZES), "batch_size=512": needs()}
    with pytest.raises(MemoryPlanError) as error:
        plan_memory(needs(), alternatives=lambda: others)
    assert str(error.value) == (
        "training would take about 9.5 GiB (parameters 2.0 GiB, gradients 1.0 GiB, "
        "optimizer 4.0 GiB, activations 512 MiB, best weights 2.0 GiB, workspace 40.0 MiB), but "
        "only 6.0 GiB of RAM is free; what fits: dim=256 (5.5 GiB)"
    )
    assert isinstance(error.value, ParameterError)


def test_if_no_alternative_fits_the_advice_is_general(free):
    free(ram=GIB)
    others = {"dim=256": needs(sizes=SMALL_SIZES)}
    with pytest.raises(MemoryPlanError, match=r"; train on fewer documents$"):
        plan_memory(needs(), alternatives=lambda: others)


def test_a_gpu_that_is_too_small(free):
    free(ram=64 * GIB, gpu=6 * GIB)
    others = {"dim=256": needs("cuda", SMALL_SIZES)}
    with pytest.raises(
        MemoryPlanError, match=r"but only 6\.0 GiB of GPU memory is free; what fits: .*\(4\.5 GiB\)"
    ):
        plan_memory(needs("cuda"), device="cuda", alternatives=lambda: others)


def test_too_little_ram_beside_a_gpu(free):
    free(ram=3 * GIB, gpu=64 * GIB)
    with pytest.raises(
        MemoryPlanError,
        match=r"4\.0 GiB .* of RAM beside the GPU's 7\.5 GiB, but only 3\.0 GiB of RAM is free",
    ):
        plan_memory(needs("cuda"), device="cuda")


def test_a_part_of_what_is_free_stays_free(free):
    free(ram=total_ram(needs()))
    with pytest.raises(MemoryPlanError):
        plan_memory(needs())


def test_where_the_system_does_not_tell_nothing_is_refused(free):
    free(ram=None)
    assert plan_memory(needs()).endswith("; how much RAM is free is unknown")


def test_the_size_of_matrices():
    matrix = sp.csr_matrix(np.eye(3, dtype=np.float32))
    assert size_of(matrix, matrix) == 2 * (3 * 4 + 3 * 4 + 4 * 4)


def test_sizes_are_readable():
    sizes = (1, 5000, 3 << 20, 1536 << 20, 250 * GIB, 3 << 40)
    assert [format_bytes(size) for size in sizes] == [
        "1 KiB",
        "5 KiB",
        "3.0 MiB",
        "1.5 GiB",
        "250 GiB",
        "3.0 TiB",
    ]


# ------------------------------------------------------------------------------- what there is


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_free_ram_of_a_machine(tmp_path):
    write(tmp_path, {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable:  700 kB\n"})
    assert free_ram(tmp_path) == 700 * 1024


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_counts(tmp_path, version):
    write(tmp_path, {"proc/meminfo": "MemAvailable:  700 kB\n"})
    limits = {
        1: {
            "memory/memory.limit_in_bytes": "5000\n",
            "memory/memory.usage_in_bytes": "3000\n",
            "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1000\n",
        },
        2: {
            "memory.max": "5000\n",
            "memory.current": "3000\n",
            "memory.stat": "anon 2000\ninactive_file 1000\n",
        },
    }[version]
    write(tmp_path / "sys/fs/cgroup", limits)
    assert free_ram(tmp_path) == 3000


def test_a_container_without_limit(tmp_path):
    write(tmp_path, {"proc/meminfo": "MemAvailable:  700 kB\n"})
    write(tmp_path / "sys/fs/cgroup", {"memory.max": "max\n", "memory.current": "3000\n"})
    assert free_ram(tmp_path) == 700 * 1024


def test_this_machine_has_some():
    assert free_ram() > 1 << 20
    assert re.fullmatch(r"[\d.]+ [KMGT]iB", format_bytes(free_ram()))


def test_a_limit_of_the_address_space_counts(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    write(tmp_path, {"proc/meminfo": "MemAvailable:  700 kB\n", "proc/self/statm": "10 5 5\n"})
    limit = 20 * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert free_ram(tmp_path) == 10 * resource.getpagesize()


def test_what_lies_in_files_takes_memory_on_another_machine():
    plain = sp.random(20, 10, 0.4, format="csr", dtype=np.float32, random_state=1)
    file = MatrixWriter()
    file.add(plain)
    mapped = file.map()
    assert is_mapped(mapped)
    assert size_of(mapped) < full_size_of(mapped) == full_size_of(plain) == size_of(plain)
    sent = as_sent(mapped)
    assert not is_mapped(sent)
    assert np.shares_memory(sent.data, mapped.data)
    assert (sent != plain).nnz == 0
    assert as_sent(plain) is plain
