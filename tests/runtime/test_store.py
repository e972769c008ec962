import ctypes
import errno
import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attack.faults import Fault, save_with
from longtail.errors import LongtailError, ModelFileError
from longtail.runtime.parallel import set_threads
from longtail.runtime.store import (
    Files,
    atomic,
    check_writable,
    manifest,
    read_folder,
    verify_folder,
    write_folder,
)
from longtail.runtime.store.folder import encode_text, parse_text
from longtail.runtime.store.manifest import opened_folder, read_checked, read_manifest
from longtail.runtime.store.safetensors import DTYPES
from longtail.version import __version__


def small_files(seed: int = 0) -> Files:
    rng = np.random.default_rng(seed)
    return Files(
        config={"model": "linear", "seed": seed, "trees": 3},
        arrays={
            "weights": rng.normal(size=(7, 5)).astype(np.float32),
            "indptr": np.arange(8, dtype=np.int64),
            "flags": np.array([True, False, True]),
        },
        texts={"labels": ["beer", "wine and cheese", ""], "vocabulary": [f"word{seed}"]},
    )


def assert_same(got: Files, expected: Files) -> None:
    assert got.config == expected.config
    assert got.texts == {name: list(entries) for name, entries in expected.texts.items()}
    assert got.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert got.arrays[name].dtype == array.dtype
        assert got.arrays[name].shape == array.shape
        np.testing.assert_array_equal(got.arrays[name], array)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_folder(tmp_path / "model", small_files())
    return tmp_path / "model"


def names_beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def edit_manifest(path: Path, **changes: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | changes))


def replace_file(path: Path, name: str, data: bytes) -> None:
    """Put other bytes in a file and make the manifest agree with them."""
    (path / name).write_bytes(data)
    files = json.loads((path / "manifest.json").read_text())["files"]
    files[name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit_manifest(path, files=files)


# What is written is what is read


def test_round_trip(model: Path) -> None:
    assert_same(read_folder(model), small_files())
    assert names_beside(model) == ["model"]
    assert sorted(entry.name for entry in model.iterdir()) == [
        "config.json",
        "labels.txt",
        "manifest.json",
        "vocabulary.txt",
        "weights.safetensors",
    ]


def test_an_empty_model_survives(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", Files())
    assert_same(read_folder(tmp_path / "m"), Files())


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_type_and_shape_survives(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2, size=(3, 4, 2)).astype(DTYPES[name])
    arrays = {
        "full": values,
        "scalar": values[0, 0, 0].reshape(()),
        "empty": values[:, :0],
        "turned": values.T,
        "every second": values[::2, ::-1],
    }
    write_folder(tmp_path / "m", Files(arrays=arrays))
    assert_same(read_folder(tmp_path / "m"), Files(arrays=arrays))


def test_big_endian_arrays_keep_their_values(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", Files(arrays={"a": np.arange(5, dtype=">i4")}))
    got = read_folder(tmp_path / "m").arrays["a"]
    assert got.tolist() == [0, 1, 2, 3, 4]
    assert got.dtype == np.dtype("<i4")


def test_arrays_are_aligned_and_writable(tmp_path: Path) -> None:
    arrays = {"a": np.ones(3, np.int8), "b": np.ones(3, np.float64), "ccc": np.ones(5, np.int16)}
    write_folder(tmp_path / "m", Files(arrays=arrays))
    for array in read_folder(tmp_path / "m").arrays.values():
        assert array.flags.aligned
        assert array.flags.writeable


def test_the_weights_are_ordinary_safetensors(model: Path) -> None:
    loaded = safetensors.numpy.load_file(model / "weights.safetensors")
    assert_same(Files(arrays=loaded), Files(arrays=small_files().arrays))


def test_weights_of_the_safetensors_library_are_read(model: Path) -> None:
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.array([1], np.uint8)}
    replace_file(model, "weights.safetensors", safetensors.numpy.save(arrays, {"by": "hand"}))
    assert_same(Files(arrays=read_folder(model).arrays), Files(arrays=arrays))


@given(entries=st.lists(st.text(st.characters(codec=None, exclude_categories=())), max_size=5))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_string_survives(entries: list[str]) -> None:
    data = np.frombuffer(encode_text(entries), dtype=np.uint8)
    assert parse_text(data, Path("x.txt")) == entries


def test_hard_strings_survive_in_a_folder(tmp_path: Path) -> None:
    hard = ["", "\\", "\\n", "\n", "a\r\nb", "\\\\n", "\x00", "\u2028\x85\x0b", "\ud800", "ä"]
    write_folder(tmp_path / "m", Files(texts={"hard": hard}))
    assert read_folder(tmp_path / "m").texts["hard"] == hard
    assert (tmp_path / "m" / "hard.txt").read_bytes().count(b"\n") == len(hard)


def test_numpy_numbers_in_the_config_become_plain(tmp_path: Path) -> None:
    config = {"n": np.int64(3), "x": np.float32(0.5), "list": np.arange(2)}
    write_folder(tmp_path / "m", Files(config=config))
    assert read_folder(tmp_path / "m").config == {"n": 3, "x": 0.5, "list": [0, 1]}


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (Files(config={"x": object()}), TypeError),
        (Files(arrays={"x": np.array([None])}), TypeError),
        (Files(texts={"../x": []}), ValueError),
    ],
)
def test_what_cannot_be_stored_leaves_nothing(
    tmp_path: Path, files: Files, error: type[Exception]
) -> None:
    with pytest.raises(error):
        write_folder(tmp_path / "m", files)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_obeys_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_folder(tmp_path / "m", small_files())
    finally:
        os.umask(old)
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "m" / "config.json").stat().st_mode & 0o777 == 0o640


# Where a model may be written


def test_an_existing_path_is_refused(model: Path) -> None:
    message = f"{model}: already exists; choose another path, or replace it with overwrite=True"
    for attempt in (lambda: check_writable(model), lambda: write_folder(model, small_files(1))):
        with pytest.raises(LongtailError) as caught:
            attempt()
        assert str(caught.value) == message
    assert_same(read_folder(model), small_files())


def test_overwrite_replaces_a_model(model: Path) -> None:
    check_writable(model, overwrite=True)
    write_folder(model, small_files(1), overwrite=True)
    assert_same(read_folder(model), small_files(1))
    assert names_beside(model) == ["model"]


def test_overwrite_replaces_a_damaged_model(model: Path) -> None:
    (model / "weights.safetensors").unlink()
    write_folder(model, small_files(1), overwrite=True)
    assert_same(read_folder(model), small_files(1))


def test_overwrite_takes_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    write_folder(tmp_path / "m", small_files(), overwrite=True)
    assert_same(read_folder(tmp_path / "m"), small_files())


def test_overwrite_never_deletes_what_is_not_a_model(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    (home / "manifest.json").write_text('{"files": {"thesis.txt": {}}}')
    with pytest.raises(LongtailError) as caught:
        write_folder(home, small_files(), overwrite=True)
    assert str(caught.value) == f"{home}: is not a longtail model, so it is not replaced"
    assert (home / "thesis.txt").read_text() == "years of work"
    assert names_beside(home) == ["home"]


def test_overwrite_keeps_a_foreign_file_in_a_model_folder(model: Path) -> None:
    (model / "notes.md").write_text("mine")
    with pytest.raises(LongtailError) as caught:
        check_writable(model, overwrite=True)
    assert str(caught.value) == (
        f"{model}: holds 'notes.md', which is no part of the model, "
        "so it is not replaced; move that file away first"
    )


def test_overwrite_refuses_a_file_and_a_link(model: Path) -> None:
    file, link = model.parent / "file", model.parent / "link"
    file.write_text("x")
    link.symlink_to(model)
    with pytest.raises(LongtailError, match="is not a folder, so it is not replaced"):
        write_folder(file, small_files(), overwrite=True)
    with pytest.raises(LongtailError, match="is a link; name the folder that it points to"):
        write_folder(link, small_files(), overwrite=True)
    assert_same(read_folder(link), small_files())


def test_a_parent_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for parent, problem in (("none", "does not exist"), ("file", "is not a folder")):
        target = tmp_path / parent / "model"
        with pytest.raises(LongtailError) as caught:
            check_writable(target)
        assert str(caught.value) == (
            f"{target}: cannot write a model here: {tmp_path / parent} {problem}"
        )


def test_a_parent_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    target = tmp_path / "model"
    with pytest.raises(LongtailError) as caught:
        check_writable(target)
    assert str(caught.value) == f"{target}: cannot write a model here: Permission denied"
    with pytest.raises(LongtailError) as caught:
        write_folder(target, small_files())
    assert str(caught.value) == (
        f"{target}: the model could not be saved: Permission denied; no model is there"
    )


def test_names_that_no_file_system_takes(tmp_path: Path) -> None:
    with pytest.raises(LongtailError, match="cannot write a model here: File name too long"):
        check_writable(tmp_path / ("x" * 250))
    with pytest.raises(LongtailError, match="a path cannot contain a null character"):
        check_writable(f"{tmp_path}/a\0b")


def test_check_writable_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder("m", small_files())
    write_folder("./m/", small_files(1), overwrite=True)
    assert_same(read_folder("m"), small_files(1))


# A save that fails


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, n: int) -> list[int]:
    """Let the n-th call of os.`name` find the disk full."""
    real, calls = getattr(os, name), [0]

    def full(*args: object) -> object:
        calls[0] += 1
        if calls[0] == n:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(os, name, full)
    return calls


def count_calls(target: Path, name: str, replaces: bool) -> int:
    if replaces:
        write_folder(target, small_files(0))
    with pytest.MonkeyPatch.context() as monkeypatch:
        calls = fail_at(monkeypatch, name, -1)
        write_folder(target, small_files(1), overwrite=replaces)
    assert calls[0] >= 5
    return calls[0]


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("name", ["write", "fsync"])
def test_a_full_disk_at_any_moment(tmp_path: Path, name: str, replaces: bool) -> None:
    target = tmp_path / "model"
    if replaces:
        write_folder(target, small_files(0))
    kept = "what was there before is untouched" if replaces else "no model is there"
    for n in range(1, count_calls(tmp_path / "rehearsal", name, replaces) + 1):
        with pytest.MonkeyPatch.context() as monkeypatch:
            fail_at(monkeypatch, name, n)
            with pytest.raises(LongtailError) as caught:
                write_folder(target, small_files(1), overwrite=replaces)
        assert str(caught.value) == (
            f"{target}: the model could not be saved: No space left on device; {kept}"
        )
        assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]
        assert target.exists() == replaces
        if replaces:
            assert_same(read_folder(target), small_files(0))


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda to, data: real(to, data[: max(1, len(data) // 3)]))
    write_folder(tmp_path / "m", small_files())
    assert_same(read_folder(tmp_path / "m"), small_files())


def test_ctrl_c_leaves_the_old_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_folder(model, small_files(1), overwrite=True)
    assert_same(read_folder(model), small_files())
    assert names_beside(model) == ["model"]


@pytest.mark.parametrize("code", [errno.ENOSYS, None])
def test_overwrite_without_an_atomic_exchange(
    model: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    def unsupported(first: bytes, second: bytes) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(atomic, "_system_exchange", lambda: unsupported if code else None)
    write_folder(model, small_files(1), overwrite=True)
    assert_same(read_folder(model), small_files(1))
    assert names_beside(model) == ["model"]


def test_a_failed_exchange_is_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(first: bytes, second: bytes) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(atomic, "_system_exchange", lambda: fails)
    with pytest.raises(LongtailError, match="could not be saved: Input/output error; what was"):
        write_folder(model, small_files(1), overwrite=True)
    assert_same(read_folder(model), small_files())


def test_the_moment_without_a_target_is_explained(model: Path) -> None:
    old = model.parent / ".model.old-01234567"
    model.rename(old)
    with pytest.raises(ModelFileError) as caught:
        read_folder(model)
    assert str(caught.value) == (
        f"{model}: an interrupted save left the model that was here in {old}; rename it back"
    )
    write_folder(model, small_files(1))
    assert old.exists()
    write_folder(model, small_files(2), overwrite=True)
    assert not old.exists()


def test_stale_folders_are_removed_and_live_or_foreign_ones_kept(model: Path) -> None:
    beside = model.parent
    for name in (".model.tmp-00000000", ".model.tmp-11111111", ".other.tmp-00000000", ".model.tmp"):
        (beside / name).mkdir()
        (beside / name / "config.json").write_text("{}")
    lock = atomic.lock_folder(beside / ".model.tmp-11111111")
    assert lock is not None
    write_folder(model, small_files(1), overwrite=True)
    os.close(lock)
    kept = [".model.tmp", ".model.tmp-11111111", ".other.tmp-00000000", "model"]
    assert names_beside(model) == kept


SAVER = """
import sys
from pathlib import Path
import numpy as np
from longtail.runtime.store import Files, write_folder
def files(i):
    return Files({"i": i}, {"a": np.full(300_000, i, dtype=np.int32)}, {"t": [str(i)] * 1000})
i = int(sys.argv[2])
while True:
    i += 1
    write_folder(sys.argv[1], files(i), overwrite=True)
    print(i, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs kill -9")
def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target, last = tmp_path / "model", 0
    for _ in range(8):
        command = [sys.executable, "-c", SAVER, str(target), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            first = int(process.stdout.readline())  # it saves now, not still imports
            time.sleep(float(rng.uniform(0, 0.1)))
            process.send_signal(signal.SIGKILL)
            done = [first, *map(int, process.stdout.read().split())][-1]
        files = read_folder(target)
        last = files.config["i"]
        assert last in (done, done + 1)
        assert (files.arrays["a"] == last).all()
        assert set(files.texts["t"]) == {str(last)}
    write_folder(target, small_files(), overwrite=True)
    assert names_beside(target) == ["model"]


# A folder that is not as it was saved


def refused(path: Path) -> str:
    """Return the one message with which reading and verifying both refuse the folder."""
    with pytest.raises(ModelFileError) as by_reading:
        read_folder(path)
    with pytest.raises(ModelFileError) as by_verifying:
        verify_folder(path)
    assert str(by_reading.value) == str(by_verifying.value)
    return str(by_reading.value)


def test_verify_tells_what_it_found(model: Path) -> None:
    verified = verify_folder(model)
    assert set(verified.files) == {entry.name for entry in model.iterdir()}
    assert verified.n_bytes == sum(entry.stat().st_size for entry in model.iterdir())
    assert verified.format_version == 4
    assert verified.longtail_version == __version__
    assert verified.model_name == "linear"


def test_no_model_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert refused(tmp_path / "none") == f"{tmp_path / 'none'}: no such model folder"
    assert refused(tmp_path / "file") == f"{tmp_path / 'file'}: is a file; a model is a folder"
    assert refused(tmp_path) == f"{tmp_path}: is not a longtail model: it has no manifest.json"


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "labels.txt"])
def test_a_missing_file(model: Path, name: str) -> None:
    (model / name).unlink()
    assert refused(model) == f"{model}: the file '{name}' is missing"


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "labels.txt"])
def test_a_truncated_file(model: Path, name: str) -> None:
    data = (model / name).read_bytes()
    (model / name).write_bytes(data[:-1])
    assert refused(model) == (
        f"{model / name}: has {len(data) - 1:,} bytes instead of the {len(data):,} saved"
    )


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "labels.txt"])
def test_an_altered_file(model: Path, name: str) -> None:
    data = bytearray((model / name).read_bytes())
    data[len(data) // 2] ^= 1
    (model / name).write_bytes(data)
    assert refused(model) == (
        f"{model / name}: was altered since it was saved (its SHA-256 differs)"
    )


def test_an_extra_file(model: Path) -> None:
    (model / "pickle.pkl").write_text("x")
    assert refused(model) == f"{model}: 'pickle.pkl' is no part of this model; remove it"


def test_a_newer_version(model: Path) -> None:
    edit_manifest(model, format_version=7, longtail_version="9.1", files="in another way")
    assert refused(model) == (
        f"{model}: was written by longtail 9.1 in model format 7; this is longtail {__version__}, "
        "which reads formats up to 4; install a newer longtail"
    )


def test_an_older_version(tmp_path: Path) -> None:
    """The manifest of a model that longtail 0.1.0 wrote, as it stood in its folder."""
    manifest = {
        "format": "longtail model",
        "format_version": 1,
        "longtail_version": "0.1.0",
        "model": "linear",
        "files": {"config.json": {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "config.json").write_text("{}")
    assert refused(tmp_path) == (
        f"{tmp_path}: was written by longtail 0.1.0 in the older model format 1, "
        "which this version does not read; train the model again"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not readable as JSON"),
        ('{"format": "longt', "is not readable as JSON"),
        ("[" * 100_000, "is not readable as JSON"),
        ('{"x": ' + "9" * 10_000 + "}", "is not readable as JSON"),
        ("[]", "holds a JSON list instead of an object"),
        ("{}", "is not a longtail model: its manifest.json is another's"),
        ('{"format": "longtail model"}', "has no valid format_version"),
        ('{"format": "longtail model", "format_version": 4}', "its list of files is damaged"),
        (" " * 2_000_000, "is larger than any manifest can be"),
    ],
)
def test_a_damaged_manifest(model: Path, text: str, message: str) -> None:
    (model / "manifest.json").write_text(text)
    assert message in refused(model)


@pytest.mark.parametrize(
    "files",
    [
        [],
        {"config.json": 3},
        {"config.json": {"size": 1.5, "sha256": ""}},
        {"config.json": {"size": float("inf"), "sha256": ""}},
        {"config.json": {"size": 3}},
    ],
)
def test_a_damaged_list_of_files(model: Path, files: object) -> None:
    edit_manifest(model, files=files)
    assert refused(model) == f"{model / 'manifest.json'}: its list of files is damaged"


@pytest.mark.parametrize("name", ["../x.txt", "/etc/passwd", "a/b.txt", "..", "x.pkl", ".x.txt"])
def test_a_name_that_is_no_plain_file_name(model: Path, name: str) -> None:
    edit_manifest(model, files={name: {"size": 0, "sha256": ""}})
    assert refused(model) == f"{model / 'manifest.json'}: lists {name!r}, which is no model file"


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "manifest.json"])
def test_a_link_is_refused(model: Path, name: str) -> None:
    (model / name).rename(model.parent / "elsewhere")
    (model / name).symlink_to(model.parent / "elsewhere")
    assert refused(model) == f"{model / name}: is a link"


def test_a_pipe_is_refused_and_not_waited_for(model: Path) -> None:
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    assert refused(model) == f"{model / 'config.json'}: is not a plain file"


def test_a_file_that_grows_is_refused(model: Path) -> None:
    with (model / "weights.safetensors").open("r+b") as file:
        file.truncate(1 << 35)
    assert "bytes instead of the" in refused(model)


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[1]", b"[" * 100_000])
def test_an_unreadable_config_names_the_file(model: Path, data: bytes) -> None:
    replace_file(model, "config.json", data)
    with pytest.raises(ModelFileError, match=r"config\.json: "):
        read_folder(model)


@pytest.mark.parametrize("data", [b"no end", b"\xff\n"])
def test_unreadable_texts_name_the_file(model: Path, data: bytes) -> None:
    replace_file(model, "labels.txt", data)
    with pytest.raises(ModelFileError, match=r"labels\.txt: "):
        read_folder(model)


def safetensors_of(header: object, values: bytes = b"\0" * 8) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + values


def facts(**changes: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 20,
        safetensors_of([]),
        safetensors_of({"a": 3}),
        safetensors_of({"a": {}}),
        safetensors_of({"a": facts(extra=1)}),
        safetensors_of({"a": facts(dtype="PICKLE")}),
        safetensors_of({"a": facts(dtype=["F32"])}),
        safetensors_of({"a": facts(shape=[3])}),
        safetensors_of({"a": facts(shape=[-1, -2])}),
        safetensors_of({"a": facts(shape="ab")}),
        safetensors_of({"a": facts(shape=[2.0])}),
        safetensors_of({"a": facts(shape=[0, 10**30], data_offsets=[0, 0])}),
        safetensors_of({"a": facts(data_offsets=[0, 16], shape=[4])}),
        safetensors_of({"a": facts(data_offsets=[-8, 0])}),
        safetensors_of({"a": facts(data_offsets=[0])}),
        safetensors_of({"a": facts(data_offsets=None)}),
    ],
)
def test_malformed_weights_are_refused(model: Path, data: bytes) -> None:
    replace_file(model, "weights.safetensors", data)
    with pytest.raises(ModelFileError, match=r"weights\.safetensors: "):
        read_folder(model)


def test_a_replaced_model_is_read_as_one_version(model: Path) -> None:
    with opened_folder(model) as folder:
        model.rename(model.parent / "moved")
        write_folder(model, small_files(1))
        manifest = read_manifest(folder)
        data = read_checked(folder, "config.json", manifest.files["config.json"])
    assert json.loads(bytes(data))["seed"] == 0


def test_files_of_one_model_can_hold_those_of_others(tmp_path: Path) -> None:
    part = Files({"model": "part"}, {"a.b": np.arange(3)}, {"names": ["x", "y"]})
    deeper = Files({"model": "deeper"}, {"a": np.ones(2)}, {})
    part.nest("other", deeper)
    whole = Files({"model": "whole"}, {"a.b": np.zeros(1)}, {"names": ["z"]})
    whole.nest("first", part)
    write_folder(tmp_path / "m", whole)
    back = read_folder(tmp_path / "m")
    assert back.texts["names"] == ["z"]
    assert back.inner("first").config["model"] == "part"
    assert back.inner("first").arrays["a.b"].tolist() == [0, 1, 2]
    assert back.inner("first").texts["names"] == ["x", "y"]
    assert back.inner("first").inner("other").arrays["a"].tolist() == [1, 1]
    with pytest.raises(KeyError, match="second"):
        back.inner("second")


# Every call that fails, and what is said about it


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("replaces", [True, False])
def test_whatever_fails_the_sentence_is_true(
    tmp_path: Path, replaces: bool, can_exchange: bool, stays: bool
) -> None:
    outcomes = Counter[str]()
    for number in count(1):
        fault = Fault(number, errno.EIO, stays)
        outcomes[
            save_with(fault, tmp_path / "m", replaces=replaces, can_exchange=can_exchange)
        ] += 1
        if not fault.failed:
            break
    assert outcomes["refused"] > 20


def test_a_late_failure_that_cannot_be_undone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = atomic._exchange, []

    def once(first: Path, second: Path) -> bool:
        calls.append(first)
        if len(calls) > 1:
            raise OSError(errno.EIO, "Input/output error")
        return real(first, second)

    def no_sync(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "_exchange", once)
    monkeypatch.setattr(atomic, "sync_folder", no_sync)
    with pytest.raises(LongtailError) as caught:
        write_folder(model, small_files(1), overwrite=True)
    assert str(caught.value) == (
        f"{model}: the model could not be saved: No space left on device; "
        "the new model is there, but may be lost if the power fails now"
    )
    assert_same(read_folder(model), small_files(1))


def test_a_model_that_is_replaced_while_it_is_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = manifest.read_checked, iter([1, 2, 3])

    def slow(folder: manifest.OpenFolder, name: str, entry: manifest.Entry) -> object:
        if number := next(left, 0):
            write_folder(model, small_files(number), overwrite=True)
        return real(folder, name, entry)

    monkeypatch.setattr("longtail.runtime.store.folder.read_checked", slow)
    assert_same(read_folder(model), small_files(3))


def test_a_path_that_is_empty_for_a_moment(model: Path) -> None:
    old = model.with_name(".model.old-01234567")
    model.rename(old)
    timer = threading.Timer(0.1, old.rename, [model])
    timer.start()
    assert_same(read_folder(model), small_files())
    timer.join()


def test_a_folder_that_is_replaced_for_ever_is_given_up(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = []

    def replaced(folder: manifest.OpenFolder) -> None:
        readings.append(folder)
        os.utime(model, ns=(0, len(readings)))
        raise ModelFileError("a file is missing")

    with pytest.raises(ModelFileError, match="a file is missing"):
        manifest.read_settled(model, replaced)
    assert len(readings) == manifest.MOST_READINGS


def test_without_locks_only_what_is_a_day_old_is_removed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "lock_folder", lambda folder: None)
    fresh, old = (model.with_name(f".model.tmp-0000000{i}") for i in range(2))
    fresh.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    write_folder(model, small_files(1), overwrite=True)
    assert fresh.exists()
    assert not old.exists()


# Large files are hashed in blocks and mapped


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Save a model of several blocks, which are small here."""
    monkeypatch.setattr(manifest, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(manifest, "MAPPED_BYTES", 1000)
    write_folder(tmp_path / "large", Files(arrays={"a": np.arange(1000)}))
    return tmp_path / "large"


def is_mapped(array: np.ndarray) -> bool:
    owner: object = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return isinstance(owner, mmap.mmap)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is mapped there")
def test_a_large_file_is_mapped_and_its_memory_can_be_written(large: Path) -> None:
    array = read_folder(large).arrays["a"]
    assert is_mapped(array)
    assert array.flags.writeable
    array[:] = 0
    np.testing.assert_array_equal(read_folder(large).arrays["a"], np.arange(1000))


def test_a_file_of_the_mapped_model_may_be_replaced(large: Path) -> None:
    array = read_folder(large).arrays["a"]
    write_folder(large, Files(arrays={"a": np.zeros(1000)}), overwrite=True)
    np.testing.assert_array_equal(array, np.arange(1000))


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is mapped there")
@pytest.mark.parametrize("mode", [0o606, 0o602, 0o662])
def test_what_others_can_write_is_read_and_not_mapped(large: Path, mode: int) -> None:
    (large / "weights.safetensors").chmod(mode)
    array = read_folder(large).arrays["a"]
    assert not is_mapped(array)
    np.testing.assert_array_equal(array, np.arange(1000))


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("place", [0, 999, 1000, 4500, -1])
@pytest.mark.parametrize("mode", [0o600, 0o606])
def test_one_changed_byte_of_any_block_is_refused(
    large: Path, place: int, mode: int, n_threads: int
) -> None:
    path = large / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    path.chmod(mode)
    set_threads(n_threads)
    try:
        assert "was altered since it was saved" in refused(large)
        with pytest.raises(ModelFileError, match="was altered since it was saved"):
            verify_folder(large)
    finally:
        set_threads(None)


def test_the_manifest_holds_a_hash_for_each_block(large: Path) -> None:
    entry = json.loads((large / "manifest.json").read_text())["files"]["weights.safetensors"]
    data = (large / "weights.safetensors").read_bytes()
    blocks = [data[first : first + 1000] for first in range(0, len(data), 1000)]
    assert len(blocks) == 9
    assert entry["sha256"] == "".join(hashlib.sha256(block).hexdigest() for block in blocks)
    files = json.loads((large / "manifest.json").read_text())["files"]
    files["weights.safetensors"]["sha256"] = entry["sha256"][:64]
    edit_manifest(large, files=files)
    assert "was altered since it was saved" in refused(large)
