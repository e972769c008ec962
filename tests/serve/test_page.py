"""The page in a real browser, by mouse and by keyboard: texts, labels, decisions, models."""

import json
import shlex
import subprocess
import sys

import pytest
from command_line import planted_rows
from served import served, train_named, train_planted
from shown import ROWS, TEXT, row, write

from longtail.serve.feedback import read_feedback


def last_said(running, model="planted"):
    kept = read_feedback(running.file).values()
    return [each for each in kept if each.model == model][-1]


def count_marks(page):
    return page.evaluate("[...CSS.highlights.values()].reduce((n, each) => n + each.size, 0)")


def test_labels_appear_and_can_be_judged_by_mouse(page, running):
    page.fill("#by", "ab")
    write(page, TEXT, "beer")
    assert 0.5 < float(page.inner_text(f"{row('beer')} .score")) <= 1
    assert "training documents" in page.inner_text(f"{row('beer')} .facts")
    page.click("button[aria-label='Accept beer']")
    page.click("#save")
    page.wait_for_selector("#said:text-is('Saved.')")
    kept = last_said(running)
    assert (kept.text, kept.accepted, kept.rejected, kept.by) == (TEXT, ["beer"], [], "ab")
    assert kept.shown[0]["label"] == "beer"


def test_everything_by_keyboard(page, running):
    page.focus("#text")
    page.keyboard.type("rook and pawn")
    page.wait_for_selector(f"{row('chess')} .facts:not(:empty)")
    page.keyboard.press("Escape")  # to the first label, whose words are marked
    page.wait_for_selector("#marked-for:has-text('chess')")
    assert count_marks(page) == 2
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{row('chess')}.accepted")
    page.keyboard.press("x")
    page.wait_for_selector(f"{row('chess')}.rejected")
    page.keyboard.press("u")
    page.wait_for_selector(f"{row('chess')}.accepted")
    page.keyboard.press("1")  # once more: no decision
    page.wait_for_selector(f"{row('chess')}:not(.accepted)")
    page.keyboard.press("1")
    page.keyboard.press("/")
    page.keyboard.type("saling")
    page.wait_for_selector("#found li[aria-selected=true]")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{row('sailing')}.accepted")
    page.keyboard.press("Escape")
    page.keyboard.press("s")
    page.wait_for_selector("#said:text-is('Saved.')")
    assert set(last_said(running).labels) == {"chess", "sailing"}
    page.keyboard.press("?")
    page.wait_for_selector("#keys-dialog[open]")


def test_keys_go_from_label_to_label_past_what_is_open(serve_page, tmp_path):
    import longtail

    texts, labels = zip(*planted_rows(120, 0), strict=True)
    longtail.Fusion(members="linear,knn").fit(list(texts), list(labels)).save(tmp_path / "both")
    with serve_page(tmp_path / "both") as page:
        page.fill("#text", TEXT)
        page.fill("#threshold", "0")
        page.click(f"{row('beer', 'both')} .name")
        page.wait_for_selector(f"{row('beer', 'both')} .details ol.documents")
        labels = [each.get_attribute("data-label") for each in page.locator(ROWS).all()]
        page.keyboard.press("ArrowDown")
        second, third = (row(label, "both") for label in labels[1:3])
        page.wait_for_selector(f"{second} .name:focus")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector(f"{third} .name:focus")
        page.keyboard.press("3")
        page.wait_for_selector(f"{third}.accepted")
        assert page.locator("#columns .accepted").count() == 1


def test_sliders_choose_among_the_labels_and_say_what_to_expect(page):
    write(page, TEXT, "beer")
    page.fill("#threshold", "0")
    page.fill("#k", "2")
    assert page.locator("#columns li").count() == 2
    page.wait_for_selector("#expected:has-text('Expected')")
    low = page.inner_text("#expected")
    page.fill("#threshold", "0.9")
    page.wait_for_timeout(100)
    assert page.inner_text("#expected") != low
    page.click("#best-threshold")
    assert 0 < float(page.input_value("#threshold")) < 1
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    assert page.input_value("#k") == "2"  # as it was left


def test_hover_marks_words_and_details_open(page):
    write(page, "hops and malt 🍺 then yeast", "beer")
    page.hover(row("beer"))
    page.wait_for_selector("#marked-for:has-text('beer')")
    marked = page.evaluate(
        "[...CSS.highlights.values()].flatMap((each) => [...each].map((range) => String(range)))"
    )
    assert {"hops", "malt", "yeast"} <= set(marked)  # behind a character of two code units, too
    page.click(f"{row('beer')} .name")
    page.wait_for_selector(f"{row('beer')} .details section")
    details = page.inner_text(f"{row('beer')} .details")
    assert "Why" in details
    assert "hops" in details
    page.click(f"{row('beer')} .name")
    assert page.locator(".details").count() == 0


def test_labels_are_named_in_the_language_that_a_person_chooses(serve_page, tmp_path):
    said = tmp_path / "said.db"
    with serve_page(train_named(tmp_path / "words"), said) as page:
        asked = []
        page.on("request", lambda request: "/labels" in request.url and asked.append(request.url))
        beer = row("beer", "words")
        page.fill("#text", "malt hops")
        page.wait_for_selector(f"{beer} .facts:has-text('5')")
        assert len(asked) == 1  # however many labels there are
        assert page.inner_text(f"{beer} .name") == "beer"
        page.select_option("#naming", label="Finnish")
        page.wait_for_selector(f"{beer} .name:has-text('olut')")
        page.click(f"{beer} .name")
        details = page.locator(f"{beer} .details")
        details.get_by_text("šakki").first.wait_for()  # related
        details.get_by_text("juoma").first.click()  # broader, which adds it
        page.wait_for_selector("#said:has-text('juoma')")
        page.fill("#search", "sakk")
        page.wait_for_selector("#found li:has-text('šakki')")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"{row('chess', 'words')} .name:has-text('šakki')")
        page.screenshot(path=tmp_path / "named.png")
        page.click("#save")
        page.wait_for_selector("#said:text-is('Saved.')")
        page.reload()
        page.fill("#text", "malt hops")
        page.wait_for_selector(f"{beer} .name:has-text('olut')")  # as it was left
    (kept,) = read_feedback(said).values()
    assert set(kept.labels) == {"drink", "chess"}  # by the model's own names


def test_a_fusion_tells_all_it_knows_of_a_label(serve_page, tmp_path):
    import longtail

    texts, labels = zip(*planted_rows(120, 0), strict=True)
    held = [[*each, "thing"] if i % 2 else list(each) for i, each in enumerate(labels)]
    longtail.Fusion(members="linear,knn").fit(list(texts), held).save(tmp_path / "both")
    with serve_page(tmp_path / "both") as page:
        page.fill("#text", TEXT)
        beer = row("beer", "both")
        page.click(f"{beer} .name")
        page.wait_for_selector(f"{beer} .details section")
        titles = page.locator(f"{beer} .details h3").all_inner_texts()
        assert titles[0] == "Why"
        wanted = {"Members of the fusion", "Similar training documents", "Similar labels"}
        assert wanted <= set(titles)
        assert page.locator(f"{beer} .votes tbody tr").count() == 2
        assert page.locator(f"{beer} .documents .chip.same").count() >= 1
        page.click(f"{beer} button.chip:has-text('thing')")  # a similar label, to be added
        page.wait_for_selector(f"{row('thing', 'both')}.accepted")


def test_another_text_is_another_document_and_decisions_are_kept(page, running):
    write(page, TEXT, "beer")
    page.click("button[aria-label='Reject beer']")
    page.focus("#text")
    page.keyboard.press("End")
    page.keyboard.type(" and barley")  # the same text, corrected
    page.wait_for_timeout(500)
    assert page.locator(f"{row('beer')}.rejected").count() == 1
    write(page, "rook and pawn", "chess")
    assert page.locator(".rejected").count() == 0
    kept = last_said(running)
    assert (kept.text, kept.rejected) == (f"{TEXT} and barley", ["beer"])


def test_labels_of_a_text_that_was_cleared_do_not_appear(page):
    held = []
    page.wait_for_selector("#model option", state="attached")
    page.route("**/predict", lambda route: held.append(route))
    with page.expect_request("**/predict"):
        page.fill("#text", TEXT)
    page.fill("#text", "")
    page.wait_for_timeout(500)
    held[0].continue_()
    page.wait_for_timeout(300)
    assert page.locator("#columns li").count() == 0
    assert page.is_visible("#hint")


def test_what_to_expect_is_asked_again_if_it_failed(browser, running):
    page = browser.new_page(locale="en-GB")  # the browser reports the answer 500, which is meant
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.route("**/thresholds?k=10", lambda route: route.fulfill(status=500, body="{}"), times=1)
    with page.expect_response("**/thresholds?k=10"):
        page.goto(running.url)
    page.wait_for_timeout(200)
    assert page.inner_text("#expected") == ""
    write(page, TEXT, "beer")
    page.wait_for_selector("#expected:has-text('Expected')")
    page.close()
    assert problems == []


def test_another_version_is_asked_why_again(serve_page, tmp_path, monkeypatch):
    monkeypatch.setattr("longtail.serve.app.LOOK_SECONDS", 0.02)
    folder = train_planted(tmp_path / "planted")
    with serve_page(folder) as page:
        write(page, TEXT, "beer")
        with page.expect_request("**/explain"):
            page.focus(f"{row('beer')} .name")
        before = page.inner_text("#version")
        train_planted(folder, 3, overwrite=True)
        for text in ("rook and pawn", TEXT) * 20:
            page.fill("#text", text)
            page.wait_for_timeout(500)
            if text == TEXT and page.inner_text("#version") != before:
                break
        with page.expect_request("**/explain"):
            page.focus(f"{row('beer')} .name")


def test_two_models_side_by_side(page, running):
    write(page, TEXT, "beer")
    page.fill("#threshold", "0")
    page.select_option("#other", "second")
    page.wait_for_selector(row("beer", "second"))
    assert page.locator(".column").count() == 2
    page.fill("#k", "1")
    page.fill("#text", "hops and rook, malt and pawn, sails and wind")
    page.wait_for_timeout(1000)
    first, second = (page.get_attribute(f".column:nth-child({i}) li", "data-label") for i in (1, 2))
    assert (first != second) == (page.locator(".differs:text-is('only here')").count() > 0)
    page.focus(".column:nth-child(1) li .name")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.keyboard.press("s")
    page.wait_for_selector("#said:text-is('Saved.')")
    assert last_said(running, "second").accepted == [second]
    assert last_said(running, "planted").labels == [second]


def test_the_card_and_the_request_to_copy(page, running, tmp_path):
    write(page, 'it\'s malt & hops, "yeast"', "beer")
    page.click("#card-button")
    page.wait_for_selector("#card-dialog[open] td:has-text('linear')")
    page.keyboard.press("Escape")
    page.click("#copy-button")
    curl, python, command = page.locator("#copies pre").all_inner_texts()
    (said,) = [json.loads(word) for word in shlex.split(curl) if word.startswith("{")]
    assert said["text"] == 'it\'s malt & hops, "yeast"'
    answer = running.client.post("/v1/models/planted/predict", json=said).json()
    best = answer["documents"][0]["labels"][0]["label"]
    (tmp_path / "ask.py").write_text(python)
    printed = subprocess.run(
        [sys.executable, tmp_path / "ask.py"], capture_output=True, text=True, check=True
    ).stdout
    assert printed.startswith(best)
    words = shlex.split(command)
    assert json.loads(words[2]) == {"text": said["text"]}
    assert words[4:7] == ["longtail", "predict", "planted"]
    page.click("#copies button >> nth=0")
    page.wait_for_selector("#copies button:text-is('Copied.')")


def test_labels_are_shown_as_text_whatever_they_hold(serve_page, tmp_path):
    import longtail

    names = ["<img src=x onerror=alert(1)>", "nul\0 and\nline", "\u202eright to left", "x" * 10_000]
    texts = ["malt hops", "rook pawn", "wind mast", "oven flour"] * 5
    longtail.Linear().fit(texts, [[name] for name in names] * 5).save(tmp_path / "odd")
    with serve_page(tmp_path / "odd", viewport={"width": 320, "height": 700}) as opened:
        opened.fill("#text", "malt hops rook pawn wind mast oven flour")
        opened.fill("#threshold", "0")
        opened.wait_for_selector("#columns li")
        shown = opened.locator("#columns .name bdi").all_text_contents()
        opened.click("#columns .name >> nth=0")
        opened.wait_for_selector(".details section")
        assert opened.locator("main img").count() == 0
        assert opened.evaluate("document.documentElement.scrollWidth") <= 320
    assert set(shown) == {names[0], "nul\\u0000 and\\u000aline", "\\u202eright to left", names[3]}


def test_a_token_is_asked_for(browser, tmp_path):
    folder, file = train_planted(tmp_path / "planted"), tmp_path / "tokens"
    file.write_text("a-token-for-the-page")
    with served(folder, token_file=file) as running:
        opened = browser.new_page()  # the browser reports the answer 401, which is meant
        opened.goto(running.url)
        opened.wait_for_selector("#token-form:not([hidden])")
        opened.fill("#token", "a-token-for-the-page")
        opened.press("#token", "Enter")
        opened.wait_for_selector("#model option", state="attached")
        opened.wait_for_selector("#problem", state="hidden")
        opened.close()


def test_a_server_that_keeps_no_feedback_says_so(serve_page, tmp_path):
    with serve_page(train_planted(tmp_path / "planted")) as page:
        page.fill("#text", TEXT)
        page.click("button[aria-label='Accept beer']")
        page.wait_for_selector("#said:has-text('export your decisions')")
        assert page.is_hidden("#save")
        asked = []
        page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        file = tmp_path / "other.txt"
        file.write_text("rook and pawn")
        page.set_input_files("#file", file)
        page.wait_for_timeout(300)
        assert asked == ["Decisions are not stored yet. Go on without them?"]
        assert page.locator(f"{row('beer')}.accepted").count() == 1
        with page.expect_download():
            page.click("#export-csv")
        page.set_input_files("#file", file)
        page.wait_for_selector(row("chess"))
        assert len(asked) == 1


@pytest.mark.parametrize("text", ["", "   "])
def test_no_text_no_labels(page, text):
    page.fill("#text", text)
    page.wait_for_selector("#hint:not([hidden])")
    page.click("#save")
    page.wait_for_selector("#said:has-text('first')")
