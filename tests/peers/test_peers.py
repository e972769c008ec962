"""The peers' adapters: the table of them, and the real packages where their environments are."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from made_up_comparison import comparison_of, open_folder
from planted import planted_texts

from longtail.compare.contenders import Home, find_home
from longtail.compare.run import Run, run_all
from longtail.compare.split import TrainTestSplit
from longtail.evaluation.metrics import evaluate
from longtail.peers import PEERS, SLOW_PEERS
from longtail.peers.measure import count, pad
from longtail.progress import SILENT

ENVIRONMENTS = Path(__file__).parents[2] / "bench" / ".work" / "envs"


def test_every_peer_has_an_adapter_and_a_name_of_its_own():
    peers = [*PEERS, *SLOW_PEERS]
    assert len({peer.name for peer in peers}) == len(peers)
    for peer in peers:
        assert not peer.ours
        assert (Path(find_spec("longtail.peers").origin).parent / f"{peer.module[15:]}.py").exists()


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_learns_planted_texts(peer, tmp_path, monkeypatch):
    home = find_home(peer, ENVIRONMENTS)
    if not isinstance(home, Home):
        pytest.skip(f"{peer.package} is not installed; make bench installs it")
    train, test = planted_texts(400).split(0.25)
    split = TrainTestSplit(train, test, "made up")
    monkeypatch.setattr("longtail.compare.contenders.find_home", lambda *_: home)
    (run,) = run_all(comparison_of(split, [peer]), open_folder(tmp_path / "out"), SILENT)
    assert isinstance(run, Run), run
    assert run.version == home.version
    assert run.top.k == 10
    assert (np.diff(run.top.scores, axis=1) <= 0).all()
    assert evaluate(run.top, test, train=train)["P@1"] > 90
    assert run.measured["rows_seconds"] > 0


def test_lists_of_pairs_become_arrays():
    labels, scores = pad([[(7, 0.5), (2, 0.4)], []], 3)
    assert labels.tolist() == [[7, 2, -1], [-1, -1, -1]]
    assert scores[0].tolist() == pytest.approx([0.5, 0.4, 0])
    assert count(["a", "b"]) == 2
    assert count(np.zeros((3, 1))) == 3
