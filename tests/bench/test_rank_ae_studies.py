"""The studies of Rank-AE's parts and of its attention, on made-up data."""

import json
from pathlib import Path

import pytest
from planted import planted_texts

from bench import rank_ae_ablation, rank_ae_attention, trials
from longtail.data import write_dataset

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

SPACES = Path(rank_ae_ablation.__file__).parent / "spaces"


@pytest.fixture
def folder(tmp_path):
    write_dataset(planted_texts(), tmp_path / "data")
    return tmp_path / "data"


def test_the_ablation_is_drawn_from_trials(folder, tmp_path):
    space = tmp_path / "space.toml"
    small = "dim = 16\nword_dim = 16\nepochs = 3\n"
    space.write_text(f"[no-attention]\nattention = false\n{small}[Rank-AE]\n{small}")
    out = tmp_path / "runs.jsonl"
    command = [str(space), str(folder), "--model", "rank-ae", "--device", "cpu", "--out", str(out)]
    trials.main(command)
    panels = rank_ae_ablation.average(trials.read_runs(out))
    assert list(panels) == ["data"]
    assert sorted(panels["data"]) == ["Rank-AE", "no-attention"]
    rank_ae_ablation.main([str(out), "--out", str(tmp_path / "ablation.png")])
    assert (tmp_path / "ablation.png").stat().st_size > 5_000


@pytest.mark.parametrize("name", ["rank-ae", "rank-ae-attention", "rank-ae-ablation"])
def test_the_spaces_hold_settings_that_exist(name):
    for fixed, tried in trials.read_space(SPACES / f"{name}.toml").values():
        settings = trials.draw_settings(fixed, tried, 1)[0]
        trials.get_model_class("rank-ae").from_settings(
            {key: str(value).lower() for key, value in settings.items()}
        )


def test_attention_is_measured_before_and_after_training(folder, tmp_path, capsys):
    out = tmp_path / "attention.jsonl"
    forms = ["gain=1", "gain=100", "reader=bilstm"]
    command = [str(folder), "--device", "cpu", "--out", str(out)]
    for form in forms:
        command += ["--form", f"{form},dim=16,word_dim=16,epochs=3"]
    rank_ae_attention.main(command)
    small, large, bilstm = map(json.loads, out.read_text().splitlines())
    assert 20 * small["spread at start"] < large["spread at start"]
    assert all(0 < run["mean"] < 1 and run["spread"] > 0 for run in (small, large, bilstm))
    assert "| spread" in capsys.readouterr().out
