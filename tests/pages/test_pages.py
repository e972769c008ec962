"""Pages: templates escape what they get, cells sort by numbers, scripts run only where needed."""

import base64
import hashlib
import re
from xml.etree import ElementTree

import pytest
from jinja2 import TemplateNotFound, UndefinedError
from markupsafe import Markup

from longtail.pages.content import Cell, Figure, Table
from longtail.pages.render import TEMPLATES, _environment, render
from longtail.pages.svg import PALETTE, Series, lines
from longtail.visible import is_hidden

HOSTILE = "</script><script>alert('x')</script>\"' onclick=\"alert(1)\" {{7*7}} {% raw %}"


def show_table(table, css):
    macros = _environment().get_template("macros.html").module
    return re.sub(r"\n", "", str(macros.show_table(table, css)))


def reliability(**changed):
    given = {"subject": "linear", "error": 0.25, "figure": Figure(Markup("<svg></svg>"), "points")}
    return render("reliability.html", **given | {"bins": Table(["a"], [[Cell("1")]])} | changed)


def test_cells_carry_what_they_are_sorted_by():
    cell = Cell("1,000", 1000.0, note="±3", tip="from 997", dot="#fff", css="best")
    html = show_table(Table(["a", "b"], [[Cell("x"), cell]]), "sortable")
    assert '<table class="sortable">' in html
    assert "<th>a</th><th>b</th>" in html
    assert (
        '<td>x</td><td data-v="1000" class="best" title="from 997">'
        '<svg class="dot" viewBox="0 0 2 2"><circle cx="1" cy="1" r="1" fill="#fff"/></svg>1,000 '
        "<small>±3</small></td>"
    ) in html


def test_every_field_of_a_cell_is_escaped():
    cell = Cell(HOSTILE, 1.0, note=HOSTILE, tip=HOSTILE, dot=HOSTILE, css=HOSTILE)
    html = show_table(Table([HOSTILE], [[cell]]), HOSTILE)
    assert "<script" not in html
    assert 'onclick="' not in html
    assert html.count("{{7*7}}") == 7


def test_a_page_without_sortable_tables_runs_no_script():
    page = reliability()
    assert "script-src 'none'" in page
    assert "<script" not in page
    assert "<svg></svg>" in page


def test_what_is_no_svg_of_ours_is_escaped():
    page = reliability(figure=Figure(HOSTILE, HOSTILE), subject=HOSTILE)
    assert "<script" not in page
    assert "{{7*7}}" in page


def test_a_template_that_is_given_too_little_fails():
    with pytest.raises(UndefinedError):
        render("reliability.html", subject="x")
    with pytest.raises(TemplateNotFound):
        render("../render.py")


def test_the_dark_page_has_a_color_for_each_of_the_palette():
    style = (TEMPLATES / "style.css").read_text()
    assert re.findall(r"--c(\d+):", style) == [str(i) for i in range(len(PALETTE))]


HIDDEN = "a\x1b[31m\x9b1m\x7f\u202e\u2066\u200b\u2028\ud800\uffff\x00b"
SPELLED = "a\\x1b[31m\\x9b1m\\x7f\\u202e\\u2066\\u200b\\u2028\\ud800\\uffff\\x00b"


def test_hidden_characters_are_spelled_out_in_pages_and_plots():
    plot = lines([Series(HIDDEN, [0, 1], [0, 1])], x_label=HIDDEN, y_label=HIDDEN)
    page = reliability(subject=HIDDEN, figure=Figure(plot, HIDDEN))
    assert page.count(SPELLED) == 11
    assert not [char for char in page if is_hidden(char) and char != "\n"]
    ElementTree.fromstring(str(plot))


def test_lines_and_tabs_of_a_text_stay():
    assert "<h1>Calibration: a\n\tb\nc\\r</h1>" in reliability(subject="a\n\tb\r\nc\r")


def test_the_policy_allows_the_style_of_this_page_alone():
    page = reliability(rules=".x { color: red; }")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert style.endswith(".x { color: red; }")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; script-src 'none';" in page
