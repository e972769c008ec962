"""What the README and the guides show is run here, as a reader would run it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages_run import find_blocks, find_python, run_console, run_python
from planted import planted_texts

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def find_pages() -> list[Path]:
    pages = sorted((ROOT / "docs").glob("**/*.md"))
    return [README, *(page for page in pages if "_build" not in page.parts)]


def name_page(page: Path) -> str:
    return str(page.relative_to(ROOT))


PAGES = find_pages()
PAGES_WITH_CODE = [page for page in PAGES if find_python(page) and page.parent.name != "tutorials"]


def write_lines(path: Path, seed: int) -> None:
    data = planted_texts(n=150, seed=seed)
    with path.open("w") as file:
        for i, text in enumerate(data.texts):
            labels = [data.label_names[label] for label in data.Y[i].indices]
            file.write(json.dumps({"text": text, "labels": labels}) + "\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path" / "to" / "data").mkdir(parents=True)
    write_lines(tmp_path / "path" / "to" / "data" / "train.jsonl", seed=0)
    write_lines(tmp_path / "path" / "to" / "data" / "test.jsonl", seed=1)
    write_lines(tmp_path / "questions.jsonl", seed=0)
    write_lines(tmp_path / "test.jsonl", seed=1)
    (tmp_path / "new_questions.csv").write_text("id,title,votes\na,word0 word1,3\n")
    return tmp_path


def run_code(page: Path) -> tuple[dict[str, object], str]:
    """Run the Python blocks of a page; return the names they define and what they print."""
    names: dict[str, object] = {"__name__": "example"}
    return names, "".join(run_python(code, page.name, names) for code in find_python(page))


def test_the_python_code_of_the_readme_runs(folder):
    _, printed = run_code(README)
    held_out, tested, labels = printed.splitlines()
    assert float(held_out) > 60
    assert float(tested) > 90
    assert set(labels.strip("[]").replace("'", "").split(", ")) == {"beer", "brewing"}


@pytest.mark.parametrize("page", PAGES_WITH_CODE[1:], ids=name_page)
def test_the_python_code_of_the_other_pages_runs(page, folder):
    if page.name == "comparing.md":
        write_comparison(folder)
    names, _ = run_code(page)
    if page.name == "plug-ins.md":
        try_plug_in(names["Nearest"], folder)


def write_comparison(folder: Path) -> None:
    """Make the folder that `longtail compare` would have written."""
    options = ["path/to/data", "--models", "linear", "--out", "report"]
    command = [sys.executable, "-m", "longtail", "compare", *options]
    subprocess.run(command, check=True, capture_output=True)
    assert (folder / "report" / "report.html").exists()


def try_plug_in(model_class, folder: Path) -> None:
    """Train, save and restore the model of the tutorial."""
    from longtail.runtime.store import read_folder

    data = planted_texts(n=150, seed=0)
    model = model_class(sharpness=3).fit(data)
    top = model.predict(data, k=1)
    assert data.Y[range(len(data)), top.labels[:, 0]].mean() > 0.8
    model.save("nearest")
    restored = model_class.from_files(read_folder("nearest"), "nearest")
    assert (restored.predict(data, k=3).scores == model.predict(data, k=3).scores).all()


def make_quick(command: str) -> str:
    """Return what is run here: no model that takes its time, and a text of planted documents."""
    command = command.replace("--budget 2m", "--set members=linear,knn")
    return re.sub(r'"Why .*?"', f'"{planted_texts(n=1).texts[0]}"', command)


def test_the_commands_run_in_the_order_shown(folder):
    block = next(each for each in find_blocks(README) if "questions.jsonl" in each.text)
    printed = []
    for command, _, real, code in run_console(block, folder, make_quick):
        assert code == 0, (command, real)
        printed.append(real)
    assert len(printed) == 6
    assert "No problems." in printed[0]
    assert (folder / "labels.csv").read_text().startswith("id,title,votes,labels,scores\na,word0 ")
    assert re.search(r"^1 .*label \d+ [01]\.\d\d", printed[4], re.MULTILINE)
    assert re.search(r"^word\d+ +-?\d\.\d+", printed[5], re.MULTILINE)


def test_the_table_of_commands_names_them_all():
    page = (ROOT / "docs" / "guides" / "command-line.md").read_text()
    shown = set(re.findall(r"^\| `longtail (\w+)", page, re.MULTILINE))
    help_text = subprocess.run(
        [sys.executable, "-m", "longtail", "--help"], capture_output=True, text=True, check=True
    ).stdout
    commands = set(re.findall(r"^  (\w+) {2,}", help_text.split("Commands:")[1], re.MULTILINE))
    assert shown == commands


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_page)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_guides_and_model_pages_are_short():
    short = [page for page in PAGES if page.parent.name in ("guides", "models")]
    assert [name_page(page) for page in short if len(page.read_text().splitlines()) > 80] == []


def test_every_model_has_a_page():
    from longtail.models.registry import BUILT_IN

    for name in BUILT_IN:
        assert (ROOT / "docs" / "models" / f"{name}.md").exists()
