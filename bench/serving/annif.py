"""Annif, serving an Omikuji project of the same texts, in an environment of its own."""

import subprocess
from pathlib import Path
from urllib.parse import urlencode

from bench.environments import install
from bench.serving.load import Requests
from bench.serving.process import PORT
from longtail.data import Dataset

PACKAGES = ["annif[omikuji]"]
PROJECT = """[omikuji]
name=Omikuji
language=en
backend=omikuji
analyzer=simple
vocab=labels
"""
# Annif splits sentences by a file that it would download; without what it has learned about
# abbreviations, words are nearly the same and take the same time.
SPLITTER = {
    "collocations.tab": "a\tb\n",
    "sent_starters.txt": "",
    "abbrev_types.txt": "",
    "ortho_context.tab": "a\t0\n",
}
LABELS = 5  # for each text, as ours


def prepare_annif(
    train: Dataset, texts: list[str], work: Path, n_workers: int
) -> tuple[list[str], Requests]:
    """Install and train Annif if that was not done; return what serves it, and what to ask it."""
    home, python = work / "annif", install("annif", PACKAGES, work / "envs").absolute()
    if not (home / "trained").exists():
        _train(home, python, train)
    bodies = work / "forms.txt"
    forms = (urlencode({"text": text, "limit": LABELS}) for text in texts)
    bodies.write_text("".join(form + "\n" for form in forms))
    command = [
        *("env", f"NLTK_DATA={(home / 'nltk').absolute()}", "OMP_NUM_THREADS=1"),
        *(str(python), "-m", "gunicorn", "--workers", str(n_workers), "--keep-alive", "75"),
        *("--worker-class", "uvicorn.workers.UvicornWorker", "--bind", f"127.0.0.1:{PORT}"),
        *("--timeout", "120", "annif:create_app()"),
    ]
    kind = "application/x-www-form-urlencoded"
    return command, Requests("/v1/projects/omikuji/suggest", kind, bodies)


def _train(home: Path, python: Path, train: Dataset) -> None:
    """Write the texts in Annif's form, and train the project."""
    splitter = home / "nltk" / "tokenizers" / "punkt_tab" / "english"
    splitter.mkdir(parents=True, exist_ok=True)
    for name, content in SPLITTER.items():
        (splitter / name).write_text(content)
    (home / "projects.cfg").write_text(PROJECT)
    names = train.label_names
    uris = [f"<http://example.org/{i}>" for i in range(len(names))]
    lines = [f"{uri}\t{_flatten(name)}\n" for uri, name in zip(uris, names, strict=True)]
    (home / "labels.tsv").write_text("".join(lines))
    with (home / "train.tsv").open("w") as file:
        for i, text in enumerate(train.texts or []):
            labels = train.Y.indices[train.Y.indptr[i] : train.Y.indptr[i + 1]]
            file.write(f"{_flatten(text)}\t{' '.join(uris[label] for label in labels)}\n")
    load = ["load-vocab", "--language", "en", "labels", "labels.tsv"]
    for command in (load, ["train", "omikuji", "train.tsv"]):
        print("annif", *command, flush=True)
        environment = {"NLTK_DATA": str((home / "nltk").absolute()), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            [python, "-c", "from annif.cli import cli; cli()", *command],
            cwd=home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(
                f"annif {command[0]} failed:\n{done.stdout[-500:]}{done.stderr[-2000:]}"
            )
    (home / "trained").touch()


def _flatten(text: str) -> str:
    return " ".join(text.split())
