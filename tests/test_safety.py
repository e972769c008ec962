"""The classes of vulnerability known from peers and model hubs, one named test or more for each.

docs/safety.md lists them. What each test tries has been a CVE of some package that reads models,
data sets or reports of strangers.
"""

import ast
import gzip
import hashlib
import json
import pickle
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from command_line import LONGTAIL, fail, succeed
from planted import planted_texts

import longtail
from longtail import load_model
from longtail.errors import ModelFileError
from longtail.models import get_model_class
from longtail.runtime.quantized import QuantizedRows
from longtail.runtime.store import Files, write_folder

PACKAGE = Path(longtail.__file__).parent


class Exploit:
    """A pickle that leaves a trace when it is opened."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (Path.touch, (self.trace,))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a model of texts."""
    path = tmp_path_factory.mktemp("saved") / "model"
    get_model_class("linear")().fit(planted_texts()).save(path)
    return path


def copy_folder(source, target):
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def rename_in_manifest(folder, old, new):
    """Let the manifest call a file by another name."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][new] = manifest["files"].pop(old)
    (folder / "manifest.json").write_text(json.dumps(manifest))


# -- 1: pickle ------------------------------------------------------------------------------------


def test_pickle_nothing_in_the_package_can_run_code_from_a_file():
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
    calls = {"eval", "exec", "compile", "__import__"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not forbidden & {name.name.partition(".")[0] for name in node.names}, path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in forbidden, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in calls, (path, node.lineno)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                raise AssertionError(path)
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert not getattr(node.value, "value", True), path


@pytest.mark.parametrize("name", ["weights.safetensors", "config.json", "label_names.txt"])
def test_pickle_in_place_of_a_model_file_is_not_opened(saved, tmp_path, name):
    folder, trace = copy_folder(saved, tmp_path / "model"), tmp_path / "trace"
    content = pickle.dumps(Exploit(trace))
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][name] = {"size": len(content), "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelFileError):
        load_model(folder)
    assert not trace.exists()


# -- 2: path traversal ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../secret.txt", "/etc/passwd", "a/../../x.txt", "..\\x.txt", "~"]
)
def test_path_traversal_in_a_manifest_is_refused(saved, tmp_path, name):
    folder = copy_folder(saved, tmp_path / "model")
    (tmp_path / "secret.txt").write_text("secret\n")
    rename_in_manifest(folder, "label_names.txt", name)
    with pytest.raises(ModelFileError, match="which is no model file"):
        load_model(folder)


def test_path_traversal_in_the_names_of_members_is_refused(tmp_path):
    files = get_model_class("fusion")(members="linear,knn").fit(planted_texts()).to_files()
    files.config["members"] = ["../linear", "knn"]
    write_folder(tmp_path / "model", files)
    with pytest.raises(ModelFileError, match="the members are not those whose files are there"):
        load_model(tmp_path / "model")
    with pytest.raises(ValueError, match="cannot be a file name"):
        write_folder(tmp_path / "other", Files(texts={"../x": []}))


# -- 3: zip slip ----------------------------------------------------------------------------------


def test_zip_slip_archives_are_never_unpacked(tmp_path):
    archive = tmp_path / "data.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../slipped.txt", "x")
    before = sorted(tmp_path.rglob("*"))
    assert "data.zip" in fail("data", "info", archive)
    assert "data.zip" in fail("verify", archive)
    assert sorted(tmp_path.rglob("*")) == before
    unpackers = (".extract(", ".extractall(", "unpack_archive", "tarfile")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert not any(name in sources for name in unpackers)


# -- 4: links -------------------------------------------------------------------------------------


def test_symlink_in_a_model_folder_is_not_followed(saved, tmp_path):
    folder = copy_folder(saved, tmp_path / "model")
    outside = tmp_path / "outside.txt"
    (folder / "label_names.txt").rename(outside)
    (folder / "label_names.txt").symlink_to(outside)
    with pytest.raises(ModelFileError, match="is a link"):
        load_model(folder)


def test_symlink_as_a_target_is_not_written_through(saved, tmp_path):
    copy_folder(saved, tmp_path / "model")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    with pytest.raises(longtail.LongtailError, match="is a link"):
        load_model(saved).save(tmp_path / "link", overwrite=True)


# -- 5: decompression -----------------------------------------------------------------------------


def test_decompression_of_a_gzip_bomb_stops_early(tmp_path):
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(bytes(64 << 20)) * 48)  # 3 GiB
    assert bomb.stat().st_size < 4 << 20
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30));"
        "from longtail.cli import main; sys.argv[1:] = ['data', 'info', sys.argv[1]]; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program, bomb], capture_output=True, text=True)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "bomb.jsonl.gz" in ended.stderr


def test_decompression_of_a_parquet_bomb_stops_early(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    text = arrow.array(["x" * 1_000_000])
    repeated = arrow.DictionaryArray.from_arrays(arrow.array([0] * 100_000, arrow.int32()), text)
    parquet.write_table(arrow.table({"text": repeated}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 1 << 20
    assert "bomb.parquet" in fail("data", "info", tmp_path / "bomb.parquet")


# -- 6: regular expressions -----------------------------------------------------------------------


def test_redos_by_a_row_of_numbers_is_refused_at_once(tmp_path):
    file = tmp_path / "re.txt"
    file.write_text("0" + ":1111" * 3000 + "x\n")
    command = [*LONGTAIL, "data", "info", file]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


# -- 7 and 8: pages -------------------------------------------------------------------------------

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "</style><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% for x in ().__class__.__mro__ %}{{ x }}{% endfor %}",
    "${7*7} #{7*7} <%= 7*7 %>",
    "\u202egnp.exe\x1b[31m\x07\x9b",
)


class Tags(HTMLParser):
    """Collects the tags of a page, with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """An explanation of a text, by a model whose labels and words are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    lines = [{"text": f"{text} word{i}", "labels": [text]} for text in HOSTILE for i in range(20)]
    data = folder / "hostile.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    succeed("train", data, "--out", folder / "model", "--model", "knn")
    text = " ".join(HOSTILE)
    succeed("explain", folder / "model", text, "--html", folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


def test_xss_labels_and_texts_are_escaped(page):
    tags = Tags(page).tags
    assert not {"img", "iframe", "object", "embed", "link", "base"} & {tag for tag, _ in tags}
    for tag, attributes in tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert not any("javascript:" in (value or "") for value in attributes.values())
        assert "src" not in attributes
    assert page.count("<script") <= 1


def test_xss_pages_have_a_strict_policy(page):
    policies = [a["content"] for _, a in Tags(page).tags if a.get("http-equiv")]
    assert len(policies) == 1
    assert "default-src 'none'" in policies[0]
    assert "unsafe" not in policies[0].partition("style-src")[0]


def test_template_injection_braces_stay_braces(page):
    assert "{{ 7 * 7 }}" in page
    assert "49" not in page.partition("<body")[2].replace("word49", "")
    assert "class" in page  # the page itself


# -- 9: headers -----------------------------------------------------------------------------------


def test_header_dos_by_a_sparse_file_costs_what_occurs(tmp_path):
    file = tmp_path / "wide.txt"
    file.write_text("2 2147483647 20000000\n0 0:1\n1 5:1\n")
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30));"
        "from longtail.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "data", "info", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "header",
    [
        (2**63).to_bytes(8, "little"),
        (2**40).to_bytes(8, "little") + b"{}",
        (16).to_bytes(8, "little") + b'{"a":' + b"[" * 11,
    ],
)
def test_header_dos_by_safetensors_is_refused(saved, tmp_path, header):
    folder = copy_folder(saved, tmp_path / "model")
    (folder / "weights.safetensors").write_bytes(header)
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(header).hexdigest()
    manifest["files"]["weights.safetensors"] = {"size": len(header), "sha256": digest}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelFileError, match="is not a valid safetensors file"):
        load_model(folder)


def test_header_dos_by_a_manifest_is_refused(saved, tmp_path):
    folder = copy_folder(saved, tmp_path / "model")
    with (folder / "manifest.json").open("ab") as file:
        file.write(b" " * (2 << 20))
    with pytest.raises(ModelFileError, match="is larger than any manifest can be"):
        load_model(folder)


LARGEST_FACTOR = 32  # docs/safety.md promises it
MEASURE = """
import re, sys
from pathlib import Path
import longtail.models.glas.model, longtail.models.linear.model
from longtail import load_model
from longtail.errors import ModelFileError
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
try:
    load_model(sys.argv[1])
except ModelFileError:
    pass
print(peak() - before)
"""


def many_values(files):
    files.config["members"] = [{}] * 3_000_000


def many_arrays(files):
    files.arrays |= {f"a{i}": np.empty(0, np.int8) for i in range(100_000)}


def many_short_labels(files):
    n = 500_000
    files.texts["label_names"] = [f"{i:x}" for i in range(n)]
    files.arrays["label_counts"] = np.ones(n, np.int64)
    files.config["labels"]["dim"] = 1
    for name, n_rows in {
        "labels.vectors": n,
        "embedder.weight": files.config["n_features"],
        "embedder.second": 1,
    }.items():
        QuantizedRows.of(np.ones((n_rows, 1))).add_to_files(files, name)
    for name in ("embedder.bias", "embedder.second_bias"):
        files.arrays[name] = np.ones(1, np.float32)


def many_short_words(files):
    n = 500_000
    files.texts["vocabulary"] = sorted(f"{i:x}" for i in range(n))
    files.arrays["features.idf"] = np.ones(n, np.float32)
    files.arrays["features.pairs.start"] = np.zeros(n + 1, np.int64)
    files.arrays["features.pairs.second"] = np.empty(0, np.int32)
    files.config["n_features"] = n
    files.arrays["embedder.feature_weight"] = np.ones(n, np.float32)
    files.arrays["embedder.weight"] = np.ones((n, 8), np.float32)


@pytest.mark.parametrize("craft", [many_values, many_arrays, many_short_labels, many_short_words])
def test_header_dos_loading_takes_memory_by_the_size_of_the_folder(craft, tmp_path):
    pytest.importorskip("torch")
    files = get_model_class("glas")(dim=8, epochs=1).fit(planted_texts()).to_files()
    craft(files)
    write_folder(tmp_path / "model", files)
    n_bytes = sum(file.stat().st_size for file in (tmp_path / "model").iterdir())
    assert n_bytes > 4 << 20
    command = [sys.executable, "-c", MEASURE, tmp_path / "model"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ended.stdout) < LARGEST_FACTOR * n_bytes
