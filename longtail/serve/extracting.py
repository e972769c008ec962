"""The text of .docx and .pdf files, read by a process of its own.

Such a file may be anybody's, and is meant to be hard to read: so the process has little time and
memory, knows no path, and gets no network from us. Run as a module, it reads a file from standard
input and writes `{"text": …}` or `{"problem": …}`.
"""

import io
import json
import sys
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from longtail.errors import DataError, LongtailError, MissingExtraError

PDF, ZIP = b"%PDF-", b"PK\x03\x04"
SECONDS = 20
MEMORY = 1 << 30  # bytes
MOST_XML = 64 << 20  # bytes of the document that a .docx holds
MOST_LETTERS = 4_000_000
WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
PARAGRAPH = f"{WORD}p"
OLD = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
BREAKS = {f"{WORD}tab": "\t", f"{WORD}br": "\n", f"{WORD}cr": "\n"}


def find_kind(data: bytes) -> str:
    """Return pdf or docx, by how a file begins; DataError for others."""
    for kind, beginning in (("pdf", PDF), ("docx", ZIP)):
        if beginning in data[: 1024 if kind == "pdf" else len(ZIP)]:
            return kind
    raise DataError("the file is neither .pdf nor .docx; send the text itself to predict")


def extract_text(data: bytes) -> str:
    """Return the text of a .docx or .pdf file."""
    text = _read_pdf(data) if find_kind(data) == "pdf" else _read_docx(data)
    if not text.strip():
        raise DataError("the file holds no text; are its pages pictures?")
    if len(text) > MOST_LETTERS:
        raise DataError(f"the file holds over {MOST_LETTERS:,} characters; divide it")
    return text.strip()


def _read_pdf(data: bytes) -> str:
    try:
        from pypdf import PdfReader
        from pypdf.errors import PyPdfError
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("reading .pdf files needs the package pypdf", "pdf") from error
    try:
        pages = PdfReader(io.BytesIO(data)).pages
        return "\n\n".join(page.extract_text() for page in pages)
    except PyPdfError as error:
        raise DataError("the .pdf file is damaged, or closed by a password") from error


def _read_docx(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as held, held.open("word/document.xml") as document:
            content = document.read(MOST_XML + 1)
        if len(content) > MOST_XML:
            raise DataError(f"the .docx file holds over {MOST_XML >> 20} MiB; divide it")
        paragraphs = _drop_fallbacks(ElementTree.fromstring(content)).iter(PARAGRAPH)
        return "\n".join("".join(_read_paragraph(each)) for each in paragraphs)
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError, RuntimeError) as error:
        raise DataError("the .docx file is damaged, or is no document of Word's") from error


def _read_paragraph(paragraph: Element) -> Iterator[str]:
    for each in _walk(paragraph):
        if each.tag == f"{WORD}t":
            yield each.text or ""
        elif each.tag in BREAKS:
            yield BREAKS[each.tag]


def _walk(paragraph: Element) -> Iterator[Element]:
    """Yield what is in a paragraph, but not in one of a text box, which is read by itself."""
    waiting = [paragraph]
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(inner for inner in reversed(each) if inner.tag != PARAGRAPH)


def _drop_fallbacks(document: Element) -> Element:
    """Leave out what is there once more for old programs, such as text boxes."""
    for each in list(document.iter(f"{OLD}AlternateContent")):
        if each.find(f"{OLD}Choice") is not None:
            for fallback in each.findall(f"{OLD}Fallback"):
                each.remove(fallback)
    return document


def _limit() -> None:
    """Allow this process little, where the system can see to that."""
    try:
        import resource
    except ModuleNotFoundError:  # not on Windows; there is still the limit of time
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def main() -> None:
    """Read a file from standard input, and write its text."""
    _limit()
    try:
        answer = {"text": extract_text(sys.stdin.buffer.read())}
    except LongtailError as error:
        answer = {"problem": str(error)}
    except Exception:  # whatever a file meant to break has broken
        answer = {"problem": "the file cannot be read; save it as text"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
