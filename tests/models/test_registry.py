"""Models of other packages: a tiny one, installed as its users would install it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from planted import write_planted_texts

from longtail.errors import LongtailError, ParameterError
from longtail.models import get_model_class, model_names, registry
from longtail.models.fusion.eligible import known_members

PLUG_IN = Path(__file__).parents[1] / "plug_in"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the plug-in into a folder of its own, and return that folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", folder, PLUG_IN]
    subprocess.run([str(part) for part in command], check=True)
    return folder


def run(*arguments, site=None):
    """Run the command line, with the plug-in if a folder is given."""
    paths = filter(None, [site and str(site), os.environ.get("PYTHONPATH")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "longtail", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_it_works_like_a_model_of_ours(installed, tmp_path):
    data, test = (write_planted_texts(tmp_path / name, seed=seed) for seed, name in enumerate("ab"))
    assert "nearest-centroid" in run("models", site=installed).stdout
    shown = run("models", "nearest-centroid", site=installed).stdout
    assert "power of the cosine that is the score" in shown
    out = tmp_path / "model"
    options = ("--model", "nearest-centroid", "--set", "sharpness=2", "--out", out)
    trained = run("train", data, *options, site=installed)
    assert "The nearest-centroid model of " in trained.stdout, trained.stderr
    report = run("evaluate", out, test, "--json", "-", site=installed)
    assert json.loads(report.stdout)["P@1"] > 90
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["model"], manifest["package"]) == ("nearest-centroid", "nearest_centroid")


def test_it_is_compared_and_fused(installed, tmp_path):
    data = write_planted_texts(tmp_path / "data")
    models = "linear,nearest-centroid:sharpness=2"
    compared = run("compare", data, "--models", models, "--out", tmp_path / "r", site=installed)
    assert "nearest-centroid:sharpness=2" in compared.stdout, compared.stderr
    members = "members=linear,nearest-centroid"
    fused = run("train", data, "--set", members, "--out", tmp_path / "f", site=installed)
    assert "The fusion model of " in fused.stdout, fused.stderr


def test_without_the_package_the_error_names_it(installed, tmp_path):
    data, out = write_planted_texts(tmp_path / "data"), tmp_path / "model"
    run("train", data, "--model", "nearest-centroid", "--out", out, site=installed)
    failed = run("predict", out, data)
    assert failed.returncode == 2
    assert failed.stderr == (
        f"Error: {out}: holds a model 'nearest-centroid' of the package nearest_centroid, which is "
        "not installed here or does not register it; install nearest_centroid, then load the "
        "model again\n"
    )


def test_a_wrong_setting_is_refused_by_its_declaration(installed, tmp_path):
    options = ("--model", "nearest-centroid", "--set", "sharpness=0", "--out", tmp_path / "m")
    failed = run("train", write_planted_texts(tmp_path / "data"), *options, site=installed)
    assert "'sharpness' parameter of NearestCentroid must be above 0" in failed.stderr


def test_presets_of_a_plug_in_work_in_python(monkeypatch):
    monkeypatch.syspath_prepend(PLUG_IN)
    from nearest_centroid import NearestCentroid

    monkeypatch.setattr(NearestCentroid, "presets", {"sharp": {"sharpness": 4.0}})
    assert NearestCentroid.preset("sharp").sharpness == 4
    assert NearestCentroid.preset("sharp", seed=2).get_parameters() == {"sharpness": 4.0, "seed": 2}
    with pytest.raises(ParameterError, match="NearestCentroid has no preset 'shrp'; did you mean"):
        NearestCentroid.preset("shrp")


class Point:
    """An entry point that the tests make up."""

    dist = None

    def __init__(self, name, value, found):
        self.name, self.value, self.found = name, value, found

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.fixture
def register(monkeypatch):
    def add(*points):
        monkeypatch.setattr(registry, "entry_points", lambda group: points)
        registry._plug_ins.cache_clear()

    yield add
    registry._plug_ins.cache_clear()


def test_a_package_cannot_take_the_name_of_a_model_of_ours(register):
    register(Point("linear", "evil:Linear", object))
    assert model_names().count("linear") == 1
    assert get_model_class("linear").__module__ == "longtail.models.linear.model"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            ImportError("no such thing"),
            "cannot be imported from broken:Model: ImportError: no such",
        ),
        (object, "is broken:Model, which is no subclass of longtail.models.Model"),
    ],
)
def test_what_is_no_model_is_said_in_one_line(register, found, message):
    register(Point("broken", "broken:Model", found))
    with pytest.raises(LongtailError, match=message):
        get_model_class("broken")


def test_an_unknown_name_suggests_the_nearest(register):
    register(Point("nearest", "some:Nearest", object))
    with pytest.raises(ParameterError, match="there is no model 'nearst'; did you mean 'nearest'"):
        get_model_class("nearst")


def test_a_broken_package_stops_nobody_who_does_not_ask_for_its_model(register):
    register(Point("broken", "broken:Model", ImportError("no such thing")))
    found, problems = registry.find_models()
    assert [model.name for model in found] == list(registry.BUILT_IN)
    assert "the model 'broken' of an unknown package cannot be imported" in problems[0]
    assert known_members()[0] == "linear"
    assert "broken" not in known_members()
