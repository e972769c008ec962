"""The report of a comparison and its plots: nothing from outside, nothing unescaped."""

import base64
import hashlib
import re
from xml.etree import ElementTree

import pytest
from made_up_comparison import LINEAR, made_up_run, make_split, results_of

from longtail.compare.machine import describe
from longtail.compare.noise import Noise
from longtail.compare.report import write_report
from longtail.compare.run import Failure
from longtail.compare.split import TrainTestSplit
from longtail.data import Dataset
from longtail.pages.svg import (
    Interval,
    Scale,
    Series,
    bars,
    color,
    intervals,
    lines,
    scatter,
    spell,
)
from longtail.peers import OURS, Contender

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)>&\"'{{7*7}}{% raw %}"


def whole_results(split, *runs):
    return results_of(*runs, split=split) | {
        "date": "2026-01-01 00:00 UTC",
        "seconds": 1.0,
        "seeds": [0, 1],
        "depth": 6,
        "jobs": 1,
        "files": {HOSTILE: "00"},
        "machine": describe(2),
        "missing": [{"package": "omikuji", "command": "pip install omikuji"}],
        "command": f"longtail compare {HOSTILE}",
    }


def hostile_split():
    split = make_split(120)

    def dress(data):
        names = [f"{HOSTILE}{i}" for i in range(data.n_labels)]
        return Dataset(data.Y, names, texts=[HOSTILE] * len(data))

    return TrainTestSplit(dress(split.train), dress(split.test), HOSTILE)


@pytest.fixture(scope="module")
def page():
    split = hostile_split()
    curve = [{"step": i, "epoch": i / 4, "loss": 1 / (i + 1), "seconds": i} for i in range(9)]
    one, other = made_up_run(HOSTILE, split, 0.2), made_up_run("b", split, 0.7)
    other.measured["curves"] = {"": curve}
    failed = Failure(Contender(f"{HOSTILE}2", OURS, "x", LINEAR), "1", 0, HOSTILE)
    return write_report(whole_results(split, one, other, failed))


def test_nothing_hostile_survives(page):
    assert page.count("<script") == page.count("</script>") == 1
    assert "<img" not in page
    assert "onerror=alert(1)&gt;" in page
    assert not re.search(r"""[ "']on\w+=["']""", page)
    assert "{{7*7}}" in page
    assert "&#39;49" not in page


def test_the_page_needs_nothing_but_itself(page):
    assert not re.search(r"""(src|href)=["']?(https?:|//|\w+\.\w)""", page)
    assert "@import" not in page
    assert "url(" not in page
    assert len(page) < 300_000


def test_the_policy_lets_only_our_script_run(page):
    style, script = (
        base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        for tag in ("style", "script")
        if (found := re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL))
    )
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)[1]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r"<[^>]* style=", page)


def test_the_page_has_all_its_parts(page):
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Accuracy",
        "Which differences are significant",
        "Frequent and rare labels",
        "Time and memory",
        "Training curves",
        "Calibration",
        "Where methods agree",
        "Where methods disagree",
        "How to repeat this",
    ]
    assert "Not installed and left out: omikuji (pip install omikuji)" in page
    assert "failed: " in page


def test_a_page_with_wrong_labels_has_their_curves():
    split = make_split(400, clean=True)
    noises = [None, Noise("missing", 0.4), Noise("invalid", 0.4)]
    runs = [
        made_up_run(name, split, wrong * (1 + i), seed, noise)
        for i, noise in enumerate(noises)
        for name, wrong in (("a", 0.1), (HOSTILE, 0.2))
        for seed in (0, 1)
    ]
    contender = Contender("gone", OURS, "x", LINEAR)
    failures = [Failure(contender, "1", 0, "why"), Failure(contender, "1", 1, "noisy", noises[1])]
    page = write_report(whole_results(split, *runs, *failures))
    section = page[page.index('<section id="noise">') : page.index('<section id="bands">')]
    assert re.findall(r"<figcaption>(.*?)</figcaption>", section) == [
        f"{metric} with {kind}"
        for metric in ("P@1", "P@3", "P@5")
        for kind in ("missing labels", "missing and invalid labels")
    ]
    assert section.count("<polyline") == 2 * 6
    assert section.count('stroke-width="1.6"') == 2 * 6 * 2  # one for each point
    assert "mean ± standard deviation over 2 seeds" in section
    assert "gone (missing=0.4, seed 1) failed: noisy" in page
    assert "gone failed: why" in page
    assert page.count("<script") == 1


def test_a_page_without_a_finished_method_still_says_why():
    split = make_split(40)
    failed = Failure(Contender("gone", OURS, "x", LINEAR), "1", 0, "out of memory")
    page = write_report(whole_results(split, failed))
    assert "gone failed: out of memory" in page
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["How to repeat this"]


def test_a_page_of_one_method_compares_nothing():
    split = make_split(60)
    page = write_report(whole_results(split, made_up_run("a", split, 0.2)))
    assert "Which differences are significant" not in page
    assert 'id="accuracy"' in page


@pytest.mark.parametrize(
    "svg",
    [
        scatter(
            [Interval(HOSTILE, 1, 0.5, 2, 3, number=0), Interval("b", 1, 1, 1, 3, number=1)],
            x_label=HOSTILE,
            y_label="y",
            log_x=True,
        ),
        lines([Series(HOSTILE, [0, 1], [float("nan"), 1])], x_label="x", y_label=HOSTILE),
        lines([Series("a", [0.1], [0.2])], x_label="x", y_label="y", diagonal=True),
        lines([Series("a", [], [])], x_label="x", y_label="y"),
        lines([Series("a", [1, 2], [1, 2], 0, [0.5, 0.0])], x_label="x", y_label="y"),
        bars(["head", HOSTILE], [Series("a", [0, 1], [0, 0])], y_label="y"),
        intervals([Interval(HOSTILE * 3, 5, 5, 5)], x_label="x"),
        intervals([], x_label="x"),
    ],
)
def test_plots_are_well_formed(svg):
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "nan" not in svg


def test_ticks_are_round_and_within():
    assert Scale(0, 1, 0, 100).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert Scale(59.3, 66.1, 0, 400).ticks() == pytest.approx([60, 62, 64, 66])
    assert Scale(0.05, 2000, 0, 400, log=True).ticks() == pytest.approx([0.1, 1, 10, 100, 1000])
    near = Scale(0.08, 0.4, 0, 400, log=True)
    assert all(
        near(b) - near(a) >= 34 for a, b in zip(near.ticks(), near.ticks()[1:], strict=False)
    )


def test_scales_lead_from_end_to_end():
    scale = Scale(10, 1000, 0, 100, log=True)
    assert (scale(10), scale(100), scale(1000)) == pytest.approx((0, 50, 100))
    assert Scale(0, 4, 100, 0)(1) == 75
    assert Scale.covering([5, 5], 0, 1).low < 5 < Scale.covering([5, 5], 0, 1).high
    assert Scale.covering([], 0, 1, log=True).low > 0


def test_numbers_and_colors():
    assert [spell(v) for v in (0, 0.05, 1000, 2e-7, 3e6)] == [
        "0",
        "0.05",
        "1,000",
        "2e-07",
        "3e+06",
    ]
    assert color(1).startswith("var(--c1, #")
    assert color(10) == color(0)
