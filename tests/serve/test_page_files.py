"""Files of documents on the page: opened, walked through, ordered, and exported with decisions."""

import csv
import io
import json
import time

import pytest
from shown import TEXT, make_docx, row, write

import longtail
from longtail.serve.feedback import read_feedback

TEXTS = [TEXT, "rook and pawn", "wind in the sails", "oven and flour"]


@pytest.fixture
def given(tmp_path):
    """Return what writes a file and gives its path."""

    def work(name, content):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return work


def open_file(page, *paths):
    page.set_input_files("#file", list(paths))
    page.wait_for_selector("#strip:not([hidden])")


def count_documents(page):
    return int(page.get_attribute("#place", "max"))


def export(page, ending):
    with page.expect_download() as waiting:
        page.click(f"#export-{ending}")
    return waiting.value


def test_a_file_is_labelled_from_first_to_last(page, running, given, tmp_path):
    lines = [json.dumps({"id": f"d{i}", "text": text}) for i, text in enumerate(TEXTS)]
    open_file(page, given("docs.jsonl", "\n".join(lines)))
    assert count_documents(page) == len(TEXTS)
    page.wait_for_selector(row("beer"))
    page.keyboard.press("1")
    page.wait_for_selector(f"{row('beer')}.accepted")
    page.keyboard.press("n")
    page.wait_for_selector(row("chess"))
    assert page.input_value("#text") == TEXTS[1]
    assert page.inner_text("#progress-words") == "1 of 4 decided"
    page.click("button[aria-label='Reject chess']")
    page.click("#previous")
    page.wait_for_selector(f"{row('beer')}.accepted")  # as it was left
    decided = [("d0", ["beer"], []), ("d1", [], ["chess"])]
    for _ in range(100):  # what was decided last may still be on its way
        kept = [each for each in read_feedback(running.file).values() if each.document]
        if len(kept) == len(decided):
            break
        page.wait_for_timeout(50)
    assert [(each.document, each.accepted, each.rejected) for each in kept] == decided
    export(page, "jsonl").save_as(tmp_path / "out.jsonl")
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(each["id"], each["labels"], each["rejected"]) for each in written] == [
        ("d0", ["beer"], []),
        ("d1", [], ["chess"]),
    ]
    data = longtail.load(tmp_path / "out.jsonl")
    data = data if isinstance(data, longtail.Dataset) else data[0]
    assert data.texts[0] == TEXTS[0]


def test_no_decision_is_lost_however_quickly_one_goes_on(page, running, given):
    texts = [f"{TEXT} {i}" for i in range(12)]
    open_file(page, given("many.jsonl", "\n".join(json.dumps(text) for text in texts)))
    for _ in texts:
        page.wait_for_selector(row("beer"))
        page.keyboard.press("1")
        page.keyboard.press("n")
    page.keyboard.press("p")
    page.wait_for_selector("#progress-words:has-text('12 of 12')")
    page.wait_for_timeout(500)
    kept = {each.text for each in read_feedback(running.file).values() if each.accepted}
    assert set(texts) <= kept


@pytest.fixture
def refusing(browser, running):
    """A page that cannot store feedback, which the browser reports; answers come a bit later."""
    page = browser.new_page(locale="en-GB")
    page.set_default_timeout(15_000)

    def refuse(route):
        page.wait_for_timeout(100)
        route.fulfill(status=422, content_type="application/problem+json", body='{"detail": "no"}')

    page.route("**/feedback", refuse)
    page.goto(running.url)
    yield page
    page.close()


@pytest.mark.parametrize("way", ["close", "open", "divide"])
def test_decisions_that_cannot_be_stored_are_asked_about(refusing, given, way):
    page, asked = refusing, []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    open_file(page, given("docs.txt", "\n".join(TEXTS)))
    page.wait_for_selector(row("beer"))
    page.keyboard.press("1")
    page.wait_for_selector("#columns .accepted")
    if way == "close":
        page.click("#close-file")
    elif way == "open":
        page.set_input_files("#file", given("other.txt", "rook and pawn"))
    else:
        page.select_option("#division", "lines")
    page.wait_for_timeout(500)
    assert asked == ["Decisions are not stored yet. Go on without them?"]
    assert page.inner_text("#file-name") == "docs.txt"
    assert page.locator("#columns .accepted").count() == 1


def test_a_text_that_was_replaced_comes_back_if_it_cannot_be_stored(refusing):
    page = refusing
    write(page, TEXT, "beer")
    page.click("button[aria-label='Reject beer']")
    page.fill("#text", "rook and pawn")
    page.wait_for_selector(row("chess"))
    page.click("#previous")
    page.wait_for_selector(f"{row('beer')}.rejected")
    assert page.input_value("#text") == TEXT


def test_a_table_is_exported_with_labels_side_by_side(page, given, tmp_path):
    table = io.StringIO()
    rows = csv.writer(table, delimiter=";")
    rows.writerow(["key", "title", "body"])
    rows.writerow(["a", 'hops; "malt"', "then\nyeast"])
    rows.writerow(["b", "rook", "and pawn"])
    open_file(page, given("docs.csv", table.getvalue()))
    assert count_documents(page) == 2
    assert page.input_value("#text") == 'hops; "malt" then\nyeast'
    page.wait_for_selector(row("beer"))
    page.click("button[aria-label='Accept beer']")
    page.select_option("#division", "title")
    page.wait_for_selector(".accepted", state="detached")  # stored, and a document anew
    assert page.input_value("#text") == 'hops; "malt"'
    page.wait_for_selector(row("beer"))
    page.click("button[aria-label='Accept beer']")
    download = export(page, "csv")
    assert download.suggested_filename == "docs-labels.csv"
    download.save_as(tmp_path / "out.csv")
    (written,) = csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(), newline=""))
    assert (written["id"], written["text"], written["labels"]) == ("a", 'hops; "malt"', "beer")


def test_texts_are_whole_files_or_lines(page, given):
    paths = [
        given("one.txt", "\n".join(TEXTS)),
        given("two.txt", "grüne\r\nÄpfel".encode("cp1252")),
    ]
    open_file(page, *paths)
    assert count_documents(page) == 2
    page.select_option("#division", "lines")
    assert count_documents(page) == 6
    page.fill("#place", "6")
    page.press("#place", "Enter")
    assert page.input_value("#text") == "Äpfel"
    page.click("#close-file")
    page.wait_for_selector("#strip", state="hidden")
    assert page.input_value("#text") == ""


@pytest.mark.parametrize("by", ["unsure", "useful"])
def test_documents_come_in_the_order_of_the_model(page, running, given, by):
    open_file(page, given("docs.jsonl", "\n".join(json.dumps(text) for text in TEXTS)))
    page.select_option("#order", by)
    page.wait_for_selector("#said:has-text('come first')")
    asked = {"texts": TEXTS, "by": by}
    answer = running.client.post("/v1/models/planted/order", json=asked).json()
    shown = []
    for _ in TEXTS:
        shown.append(page.input_value("#text"))
        page.keyboard.press("n")
        page.wait_for_timeout(50)
    assert shown == [TEXTS[i] for i in answer["order"]]
    page.select_option("#order", "file")
    page.wait_for_selector("#said:has-text('as in the file')")
    assert page.input_value("#text") == TEXTS[0]


@pytest.mark.parametrize("meanwhile", ["close", "open", "order"])
def test_an_order_that_comes_too_late_changes_nothing(page, given, meanwhile):
    held = []
    page.route("**/order", lambda route: held.append(route))
    open_file(page, given("docs.jsonl", "\n".join(json.dumps(text) for text in TEXTS)))
    page.select_option("#order", "unsure")
    until = time.monotonic() + 15
    while not held and time.monotonic() < until:
        page.wait_for_timeout(20)
    (asked,) = held
    if meanwhile == "close":
        page.click("#close-file")
        page.wait_for_selector("#strip", state="hidden")
        page.fill("#text", "rook and pawn")
    elif meanwhile == "open":
        open_file(page, given("other.txt", "rook and pawn"))
        page.wait_for_selector("#file-name:text-is('other.txt')")
    else:
        page.select_option("#order", "file")
        page.fill("#place", "2")
        page.press("#place", "Enter")
    page.wait_for_selector(row("chess"))
    with page.expect_response("**/order"):
        asked.continue_()
    page.wait_for_timeout(200)
    assert page.input_value("#text") == "rook and pawn"
    assert page.is_hidden("#strip") == (meanwhile == "close")


def test_the_text_of_a_docx_is_opened(page, given):
    open_file(page, given("letter.docx", make_docx("rook", "and pawn")), given("a.txt", "malt"))
    page.wait_for_selector(row("chess"))
    assert page.input_value("#text") == "rook\nand pawn"
    assert count_documents(page) == 2


def test_a_dropped_file_is_opened(page):
    page.evaluate(
        """() => {
          const held = new DataTransfer();
          held.items.add(new File(['[{"text": "rook and pawn"}, {"text": "malt"}]'], "a.json"));
          const drop = new DragEvent("drop", { dataTransfer: held, bubbles: true });
          document.querySelector("#text").dispatchEvent(drop);
        }"""
    )
    page.wait_for_selector(row("chess"))
    assert count_documents(page) == 2


UNCLOSED = "a.csv, row 2: a quotation mark is not closed, or not doubled inside a cell."


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.xls",
            b"\xd0\xcf\0",
            "a.xls is not a text; open .txt, .csv, .tsv, .jsonl, .docx or .pdf.",
        ),
        ("a.jsonl", '"one"\n{', "a.jsonl, line 2: expected a JSON object or a string."),
        ("a.jsonl", "17", "a.jsonl, line 1: expected a JSON object or a string."),
        ("a.csv", "text\n", "a.csv holds no text."),
        ("a.csv", 'text,by\n"hops,ab\nrook,cd\n', UNCLOSED),
        ("a.csv", 'text,by\n"hops" and malt,ab\n', UNCLOSED),
        ("a.txt", " \n", "a.txt holds no text."),
        ("<b>.csv", "", "<b>.csv holds no text."),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_one_sentence(page, given, name, content, said):
    page.wait_for_selector("#model option", state="attached")
    page.set_input_files("#file", given(name, content))
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem") == said
    assert page.is_hidden("#strip")
