import pytest
from planted import planted_dataset, planted_texts

pytest.importorskip("torch")

from bench import mnn_study
from longtail.data import write_dataset


@pytest.mark.parametrize("data", [planted_dataset(), planted_texts()], ids=["rows", "texts"])
def test_a_fifth_is_held_out(data) -> None:
    X, Y, held_X, held_Y = mnn_study.split_rows(data)
    assert X.shape[0] == Y.shape[0] == 240
    assert held_X.shape[0] == held_Y.shape[0] == 60


def test_every_variant_gets_a_row(tmp_path, capsys, monkeypatch) -> None:
    write_dataset(planted_dataset(), tmp_path / "data.txt")
    variants = {"the paper's": {"preset": "paper"}, "ours": {}}
    monkeypatch.setattr(mnn_study, "VARIANTS", variants)
    settings = ["dim=16", "learning_rate=0.01", "device=cpu"]
    command = [str(tmp_path / "data.txt"), "--seeds", "2"]
    mnn_study.main([*command, *(f"--set={setting}" for setting in settings)])
    lines = capsys.readouterr().out.splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    assert [cell.strip() for cell in table[0]] == mnn_study.HEADINGS
    assert [row[0].strip() for row in table[2:]] == list(variants)
    for row in table[2:]:
        assert all(float(cell.split("±")[0]) > 90 for cell in row[1:5])
