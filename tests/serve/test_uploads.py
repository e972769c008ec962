"""The text of .docx and .pdf files, and files that are meant to break the reader."""

import io
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import served, train_planted
from shown import make_docx

from longtail.errors import DataError
from longtail.serve.extracting import extract_text, find_kind
from longtail.serve.state import MOST_FILES


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with served(train_planted(tmp_path_factory.mktemp("models") / "planted")) as found:
        yield found


def make_pdf(text, *, password=None):
    """Return a .pdf file of one page that shows a line in Helvetica."""
    pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = pypdf.PdfWriter()
    page = writer.add_blank_page(300, 100)
    content = DecodedStreamObject()
    content.set_data(f"BT /F1 12 Tf 10 50 Td ({text}) Tj ET".encode())
    page[NameObject("/Contents")] = writer._add_object(content)
    names = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(a): NameObject(b) for a, b in names.items()})
    fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if password:
        writer.encrypt(password)
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def zip_of(**files):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as held:
        for name, content in files.items():
            held.writestr(name.replace("__", "/"), content)
    return file.getvalue()


def test_the_text_of_files(running):
    for file in (make_docx("hops and malt", "then yeast"), make_pdf("hops and malt")):
        answer = running.client.post("/v1/text", content=file)
        assert answer.status_code == 200
        assert answer.json()["text"].startswith("hops and malt")


def test_tabs_and_line_ends_of_a_docx_are_kept():
    inside = "rook</w:t><w:tab/><w:t>pawn</w:t><w:br/><w:t>king &amp; queen"
    assert extract_text(make_docx(inside, "Äpfel")) == "rook\tpawn\nking & queen\nÄpfel"


def test_text_boxes_of_a_docx_are_read_once():
    box = "<w:txbxContent><w:p><w:r><w:t>sail</w:t></w:r></w:p><w:p/></w:txbxContent>"
    both = f"<m:Choice>{box}</m:Choice><m:Fallback><w:pict>{box}</w:pict></m:Fallback>"
    old = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    held = f'<m:AlternateContent xmlns:m="{old}">{both}</m:AlternateContent>'
    for inside in (held, f"<w:pict>{box}</w:pict>"):
        text = extract_text(make_docx(f"rook</w:t>{inside}<w:t> and pawn", "king"))
        assert text.split() == ["rook", "and", "pawn", "sail", "king"]


def test_more_files_than_may_wait_are_refused(running, monkeypatch):
    go_on = threading.Event()

    def wait(data):
        assert go_on.wait(20)
        return {"text": "read"}

    monkeypatch.setattr("longtail.serve.uploads._extract", wait)

    def send(_):
        return running.client.post("/v1/text", content=b"%PDF-1.7")

    with ThreadPoolExecutor(MOST_FILES) as pool:
        taken = [pool.submit(send, i) for i in range(MOST_FILES)]
        until = time.monotonic() + 20
        while running.state.n_files < MOST_FILES and time.monotonic() < until:
            time.sleep(0.01)
        refused = send(0)
        go_on.set()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["detail"].startswith("8 files are being read, and 8 may;")
        assert [each.result().status_code for each in taken] == [200] * MOST_FILES
    assert send(0).status_code == 200


ODD = [
    (b"", "neither .pdf nor .docx"),
    (b"just a text", "neither .pdf nor .docx"),
    (zip_of(a="b"), "no document of Word's"),
    (zip_of(word__document="x"), "no document of Word's"),
    (make_docx("text")[:200], "damaged"),
    (make_docx("<broken"), "damaged"),
    (make_docx(" "), "holds no text"),
    (b"%PDF-1.7\n%%EOF", "damaged"),
]


@pytest.mark.parametrize(("file", "said"), ODD)
def test_files_that_cannot_be_read(running, file, said):
    answer = running.client.post("/v1/text", content=file)
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


def test_a_file_with_a_password_is_told():
    with pytest.raises(DataError, match="password"):
        extract_text(make_pdf("secret", password="key"))


def test_files_that_grow_are_refused(running):
    bomb = make_docx("a" * (70 << 20))
    assert len(bomb) < 1 << 20
    laughs = '<!DOCTYPE w [<!ENTITY a "ha"><!ENTITY b "' + "&a;" * 9 + '">'
    for i in range(40):
        laughs += f'<!ENTITY c{i} "' + (f"&c{i - 1};" if i else "&b;") * 9 + '">'
    laughs += "]><w>&c39;</w>"
    entities = io.BytesIO()
    with zipfile.ZipFile(entities, "w") as held:
        held.writestr("word/document.xml", laughs)
    for file in (bomb, entities.getvalue()):
        answer = running.client.post("/v1/text", content=file)
        assert answer.status_code == 422
        assert len(answer.json()["detail"]) < 100


def test_what_a_file_is_is_told_by_its_beginning():
    assert find_kind(b"\n%PDF-1.4") == "pdf"
    assert find_kind(b"PK\x03\x04") == "docx"
