"""Build the bundled data set: what Debian's packages say of themselves, and their debtags.

    python scripts/build_debian.py [--suite bookworm] --mirror URL [--out FILE]

Needs a Debian (or a relative with Debian's keyring) with `apt-get`; only the standard library
otherwise. It fetches two signed indexes into a folder of its own and leaves the system's lists
alone: `Packages`, which names each package's source and its debtags (the `Tag:` field), and
`Translation-en`, which holds the long descriptions. The same indexes give the same bytes.

Decisions, so that the numbers measured on this set are honest:

* A document is "short description. long description". The package's name stays out: by Debian's
  naming rules `lib…-dev` or `…-perl` already states the role and the language, so a model would
  decode names where it shall read texts.
* Labels are debtags as they are, such as `use::editing`. Dropped: `special::…` (notes of the
  tagging work), `…::TODO` (placeholders) and labels on fewer than three documents. Packages
  left without any label are dropped.
* Transitional packages are dropped: they are empty, their texts say nothing but that, and their
  labels are those of what once bore the name.
* Packages whose texts have the same letters (versions of one library, flavours of one kernel)
  become one document that carries the labels of all of them.
* Packages built from one source often share most of their text, and so do several versions of one
  source (gcc-11, gcc-12). All of them go to the same part: a source's name without digits,
  joined with every other that shares a long description, is hashed (MD5), and one in five is test.

The output is one gzipped JSON object a line, sorted by source and package:
{"part": "train" | "test", "source": …, "text": …, "labels": […]}.

Descriptions are part of Debian's packages and under the licence of their package; debtags come
from Debian's volunteers. See longtail/data/DEBIAN.md.
"""

import argparse
import gzip
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
OUT = Path(__file__).parent.parent / "longtail" / "data" / "debian.jsonl.gz"
MIN_DOCUMENTS = 3
TEST_ONE_IN = 5
TRANSITIONAL = re.compile(r"transitional (dummy )?(meta-?)?package", re.IGNORECASE)


@dataclass
class Document:
    """One description with the labels of every package that has it."""

    source: str
    short: str
    long: str
    labels: set[str]

    @property
    def text(self) -> str:
        """The short description as a sentence, then the long one."""
        end = "" if self.short.endswith((".", "!", "?")) else "."
        return f"{self.short}{end} {self.long}".strip()


def fetch_indexes(folder: Path, mirror: str, suite: str) -> dict[str, Path]:
    """Let apt fetch and verify the indexes; return the files by what they are."""
    (folder / "lists" / "partial").mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n", encoding="utf-8")
    options = {
        "Dir::State": folder,
        "Dir::Cache": folder,
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Acquire::Languages": "en",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "root",  # else root's apt cannot read a private folder
        "APT::Architectures": "amd64",
    }
    arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", *arguments, "update"], check=True)
    listing = subprocess.run(
        ["apt-get", *arguments, "indextargets", "--format", "$(CREATED_BY) $(FILENAME)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {kind: Path(name) for kind, name in (x.split() for x in listing.stdout.splitlines())}


def read_stanzas(index: Path) -> Iterator[dict[str, str]]:
    """Yield the fields of each stanza of an index; apt knows how it is compressed."""
    command = ["/usr/lib/apt/apt-helper", "cat-file", str(index)]
    text = subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8")
    for stanza in text.split("\n\n"):
        # A line that begins with a space continues the field above it.
        fields = re.findall(r"^(\S+?):[ \t]*(.*(?:\n[ \t].*)*)", stanza, flags=re.MULTILINE)
        if fields:
            yield dict(fields)


def split_description(description: str) -> tuple[str, str]:
    """Return the first line and the rest, each with single spaces and without " ." lines."""
    short, *lines = description.split("\n")
    long = " ".join(line for line in lines if line.strip() != ".")
    return " ".join(short.split()), " ".join(long.split())


def clean_labels(field: str) -> set[str]:
    """Return the labels of a `Tag:` field that say something about the package."""
    labels = {label.strip() for label in field.replace("\n", " ").split(",")} - {""}
    return {x for x in labels if not x.startswith("special::") and not x.endswith("TODO")}


def letters(text: str) -> str:
    """Return only the letters, so that versions and line breaks make no difference."""
    return re.sub(r"[\W\d_]+", "", text.lower())


def build_documents(packages: Path, translations: Path) -> list[Document]:
    """Join descriptions and labels, one document for each distinct text."""
    descriptions = {x["Description-md5"]: x["Description-en"] for x in read_stanzas(translations)}
    tagged = [stanza for stanza in read_stanzas(packages) if "Tag" in stanza]
    tagged.sort(key=lambda stanza: (source_of(stanza), stanza["Package"]))
    documents: dict[str, Document] = {}
    for stanza in tagged:
        short, long = split_description(descriptions[stanza["Description-md5"]])
        labels = clean_labels(stanza["Tag"])
        document = Document(source_of(stanza), short, long, labels)
        if TRANSITIONAL.search(document.text):
            continue
        documents.setdefault(letters(document.text), document).labels |= labels
    return keep_frequent(list(documents.values()))


def source_of(stanza: dict[str, str]) -> str:
    """Return the source package, which goes without saying when its name is the package's."""
    return stanza.get("Source", stanza["Package"]).split()[0]


def keep_frequent(documents: list[Document]) -> list[Document]:
    """Drop rare labels, then documents without labels."""
    counts = Counter(label for document in documents for label in document.labels)
    for document in documents:
        document.labels = {x for x in document.labels if counts[x] >= MIN_DOCUMENTS}
    return [document for document in documents if document.labels]


def stem_of(source: str) -> str:
    """Return the name without version numbers: gcc-11 and gcc-12 are one family."""
    return re.sub(r"[\d.]+", "", source)


def join_families(documents: Iterable[Document]) -> dict[str, str]:
    """Map each stem to the first stem that it is joined with by shared long descriptions."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for document in documents:
        stem = root("stem " + stem_of(document.source))
        long = root("text " + letters(document.long)) if document.long else stem
        parent[stem] = parent[long] = min(stem, long)  # "stem …" sorts before "text …"
    return {name.removeprefix("stem "): root(name) for name in parent if name.startswith("stem ")}


def is_test(family: str) -> bool:
    """Decide by the family's name alone, so that most stays where it is in a later build."""
    return int(md5(family.encode()).hexdigest(), 16) % TEST_ONE_IN == 0


def write(documents: list[Document], out: Path) -> Counter[str]:
    """Write the file and return how many documents went to each part."""
    families = join_families(documents)
    parts: Counter[str] = Counter()
    lines = []
    for document in documents:
        part = "test" if is_test(families[stem_of(document.source)]) else "train"
        parts[part] += 1
        row = {"part": part, "source": document.source, "text": document.text}
        lines.append(json.dumps(row | {"labels": sorted(document.labels)}, ensure_ascii=False))
    content = "".join(line + "\n" for line in lines).encode()
    out.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))
    return parts


def main() -> None:
    """Fetch, build, write, and say what came out."""
    parser = argparse.ArgumentParser(description="Build the bundled data set.")
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--mirror", required=True, help="the address of a Debian mirror")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        indexes = fetch_indexes(Path(folder), options.mirror, options.suite)
        documents = build_documents(indexes["Packages"], indexes["Translations"])
    parts = write(documents, options.out)
    labels = Counter(label for document in documents for label in document.labels)
    print(f"{len(documents)} documents ({parts['train']} train, {parts['test']} test)")
    print(f"{len(labels)} labels, {labels.total() / len(documents):.2f} per document")
    digest = md5(options.out.read_bytes()).hexdigest()
    print(f"{options.out}: {options.out.stat().st_size} bytes, MD5 {digest}")


if __name__ == "__main__":
    main()
