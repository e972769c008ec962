"""The model on a node: the one that was meant, in a folder that nobody else can write."""

import shutil
import sys

import pytest
from planted import planted_texts

from longtail.cluster.model_folder import ModelFolder, offer_model, open_model
from longtail.errors import LongtailError
from longtail.models import Linear


class _Nodes:
    """Stands for a cluster whose object store is this process."""

    def share(self, value):
        return value


@pytest.fixture
def saved(tmp_path):
    model = Linear(trees=1).fit(planted_texts(60))
    model.save(tmp_path / "model")
    return model, tmp_path / "model"


def test_a_model_that_was_replaced_meanwhile_is_not_taken_for_it(saved, monkeypatch):
    monkeypatch.setattr("longtail.cluster.model_folder._are_all_here", lambda _: True)
    model, path = saved
    offered = offer_model(path, _Nodes())
    model.set_label_names([f"new {name}" for name in model.label_names_])
    model.save(path, overwrite=True)
    with pytest.raises(LongtailError, match=r"was replaced .* run the command again"):
        open_model(offered)
    assert open_model(offer_model(path, _Nodes())).label_names_ == model.label_names_


def test_the_files_that_are_shared_are_those_of_the_digest(saved, monkeypatch):
    from longtail.cluster import model_folder

    _, path = saved
    monkeypatch.setattr(model_folder, "_are_all_here", lambda _: False)
    before = offer_model(path, _Nodes())
    manifest = path / "manifest.json"
    find = model_folder._find_digest

    def replace_after(folder):
        found = find(folder)
        manifest.write_text(manifest.read_text() + " ")
        return found

    monkeypatch.setattr(model_folder, "_find_digest", replace_after)
    assert offer_model(path, _Nodes()) == before


@pytest.mark.skipif(sys.platform == "win32", reason="has other permissions")
@pytest.mark.parametrize("kind", ["open to others", "a link"])
def test_a_folder_of_copies_that_may_be_anothers_is_refused(tmp_path, monkeypatch, kind):
    pytest.importorskip("ray")
    from longtail.runtime.private import make_private, name_private

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = name_private("models")
    make_private(home)
    if kind == "a link":
        shutil.move(home, tmp_path / "theirs")
        home.symlink_to(tmp_path / "theirs")
    else:
        home.chmod(0o777)
    with pytest.raises(LongtailError, match=f"{home} may be another user's"):
        open_model(ModelFolder("/not here", "0" * 64, {"manifest.json": b""}))
