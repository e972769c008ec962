"""The studies of AttentionXML run on small data and compare what they say."""

import json
from itertools import pairwise

import pytest
from planted import planted_dataset, planted_texts

torch = pytest.importorskip("torch", reason="AttentionXML needs torch")

from bench import attention_speed, attention_study  # noqa: E402
from longtail.data import Splits, write_dataset  # noqa: E402
from longtail.runtime.parallel import set_threads  # noqa: E402

SMALL = {"word_dim": 8, "hidden": 8, "head": 8, "epochs": 2, "batch_size": 32}
GIVEN = [part for name in SMALL for part in ("--set", f"{name}={SMALL[name]}")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_dataset(Splits(planted_texts(120), planted_texts(40, seed=1)), folder / "planted")
    return folder / "planted"


def run(study, data, tmp_path, *more):
    attention_study.main([study, str(data), "--device", "cpu", *more, "--json", f"{tmp_path}/out"])
    return json.loads((tmp_path / "out").read_text())


@pytest.mark.slow
def test_every_part_of_table_4(data, tmp_path, capsys):
    rows = run("components", data, tmp_path, *GIVEN)
    assert [row["model"] for row in rows] == list(attention_study.COMPONENTS)
    assert all(0 <= row["P@5"] <= 100 for row in rows)
    shown = capsys.readouterr().out
    assert shown.startswith("planted: 96 documents to train on, 24 measured\n")
    assert "| … + averaging " in shown


def test_components_differ_by_one_thing_each():
    defaults = {
        "encoder": "bilstm",
        "pooling": 1,
        "attention": True,
        "direct": True,
        "averaging": True,
    }
    variants = [defaults | change for change in attention_study.COMPONENTS.values()]
    for before, after in pairwise(variants):
        assert sum(before[name] != after[name] for name in after) == 1


def test_trees_are_the_first_of_one_ensemble(data, tmp_path):
    rows = run("trees", data, tmp_path, *GIVEN, "--trees", "1,2", "--test")
    assert [row["trees"] for row in rows] == [1, 2]
    known, measured = attention_study.load_splits(data, test=True)
    assert (len(known), len(measured)) == (120, 40)
    alone, _ = attention_study.fit({**SMALL, "device": "cpu"}, known)
    assert attention_study.measure(alone, measured)["P@5"] == rows[0]["P@5"]
    assert rows[1]["GB"] >= rows[0]["GB"] >= 0


def test_a_tree_against_none_over_seeds(data, tmp_path, capsys):
    more = ("--set", "branching=4", "--set", "candidates=2", "--levels", "0,1", "--seeds", "2")
    rows = run("levels", data, tmp_path, *GIVEN, *more)
    assert [row["levels"] for row in rows] == [0, 1]
    flat, tree = rows
    assert flat["nodes"] == "12"
    assert flat["P@5"] == flat["P@5 (0.0)"]
    assert tree["P@5"] == tree["P@5 (0.5)"]  # the default
    assert flat["followed"] == [100.0, 100.0]
    assert all(0 < share < 100 for share in tree["followed"])
    assert len(tree["P@1"]) == 2
    assert " ± " in capsys.readouterr().out


def test_at_most_so_many_documents(data):
    known, measured = attention_study.load_splits(data, test=False, most=50)
    assert (len(known), len(measured)) == (50, 24)


def test_figure_2_compares_models_and_settings(data, tmp_path):
    pytest.importorskip("matplotlib")
    models = "linear,attention-xml:epochs=1;hidden=4"
    given = [part if part == "--set" else f"attention-xml.{part}" for part in GIVEN]
    plot = tmp_path / "psp.svg"
    rows = run("psp", data, tmp_path, "--models", models, *given, "--plot", str(plot))
    assert [row["model"] for row in rows] == models.split(",")
    assert rows[0]["PSP@1"] > 80
    assert {"PSP@1", "PSP@3", "PSP@5", "P@1", "train s"} <= rows[1].keys()
    text = plot.read_text()
    assert "PSP@3" in text
    assert "linear" in text


def test_results_of_several_data_sets_are_drawn_side_by_side(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    row = {"trees": 2, "P@1": 50.0, "P@3": 40.0, "P@5": 30.0, "train s": 1.0}
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for file in files:
        file.write_text(json.dumps([row]))
    names = [str(file) for file in files]
    attention_study.main(["draw", *names, "--plot", str(tmp_path / "trees.svg")])
    text = (tmp_path / "trees.svg").read_text()
    assert all(part in text for part in ("first", "second", "2 trees", "P@3"))
    for wrong, message in ((["draw", *names], "draw needs --plot"), (["psp", *names], "one DATA")):
        with pytest.raises(SystemExit):
            attention_study.main(wrong)
        assert message in capsys.readouterr().err


def test_settings_of_a_contender():
    given = ["attention-xml.hidden=4", "linear.trees=2"]
    read = attention_study.read_contender
    assert read("attention-xml:trees=3;epochs=2", given) == (
        "attention-xml",
        {"hidden": "4", "trees": "3", "epochs": "2"},
    )
    assert read("linear", given) == ("linear", {"trees": "2"})


def test_rows_of_features_are_refused(tmp_path):
    write_dataset(planted_dataset(), tmp_path / "rows.txt")
    with pytest.raises(SystemExit, match="holds rows of features; attention-xml needs texts"):
        attention_study.main(["components", str(tmp_path / "rows.txt")])


def test_no_test_part(tmp_path):
    write_dataset(planted_texts(20), tmp_path / "texts.jsonl")
    with pytest.raises(SystemExit, match="has no test split"):
        attention_study.main(["components", str(tmp_path / "texts.jsonl"), "--test"])


@pytest.fixture
def few(monkeypatch):
    """Few documents to time, and threads as they were."""
    monkeypatch.setattr(attention_speed, "N_TEST", 30)
    monkeypatch.setattr(attention_speed, "N_SINGLE", 5)
    n_threads = torch.get_num_threads()
    yield
    set_threads(None)
    torch.set_num_threads(n_threads)


@pytest.mark.usefixtures("few")
def test_speed_of_training_and_prediction(data, capsys):
    attention_speed.main([str(data), "--device", "cpu", *GIVEN])
    found = json.loads(capsys.readouterr().out)
    assert "P@1" not in found
    assert (found["documents"], found["labels"]) == (120, 12)
    assert found["steps"] == 2 * 4
    assert found["training documents per second"] == pytest.approx(
        240 / found["seconds of training"], rel=0.5
    )
    assert found["predicted documents per second"] > 0
    assert 0 < found["one text p50 ms"] <= found["one text p99 ms"]


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_speed_on_made_up_texts_with_a_tree(capsys):
    size = ["--labels", "300", "--documents", "200", "--set", "levels=1", "--set", "branching=16"]
    attention_speed.main([*size, "--device", "cpu", *GIVEN])
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["labels"]) == (200, 300)
    assert 0 <= found["P@1"] <= 100


def test_either_data_or_labels(capsys):
    with pytest.raises(SystemExit):
        attention_speed.main([])
    assert "give either DATA or --labels" in capsys.readouterr().err
