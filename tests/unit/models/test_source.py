"""What stands after -m is a path, a known name, or a file of the hub."""

import importlib
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from llamaserve.errors import ModelLoad
from llamaserve.models import DEFAULT_MODEL, hub, model_name, resolve, source
from llamaserve.models.cache import models_folder
from llamaserve.models.pinned import SMOLLM2


def test_an_existing_file_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    assert resolve(str(path)) == path
    assert resolve(path) == path


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "model.gguf").touch()
    assert resolve("~/model.gguf") == tmp_path / "model.gguf"


@pytest.mark.parametrize("name", ["missing.gguf", "folder/missing", "./missing"])
def test_a_missing_file_is_named(name: str) -> None:
    with pytest.raises(ModelLoad, match=f"no model file '{name}'"):
        resolve(name)


def test_a_folder_is_refused_and_its_models_are_shown(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").touch()
    with pytest.raises(ModelLoad, match=r"is a folder: name a \.gguf file, such as one\.gguf"):
        resolve(str(tmp_path))


def test_an_unknown_name_lists_the_forms_and_the_closest_name() -> None:
    with pytest.raises(
        ModelLoad, match=r'mean \'smollm2\'\?\): give the path.*"smollm2", or "hf:owner/repo/file\.gguf"'
    ):
        resolve("SmolLM")


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(ModelLoad) as caught:
        resolve("zzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "~nobody-has-this-name/m.gguf"])
def test_what_cannot_be_a_path_is_refused_with_a_message(name: str) -> None:
    with pytest.raises(ModelLoad):
        resolve(name)


def test_the_default_name_is_brought_into_the_chosen_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "fetch", lambda model, folder, progress: folder / model.file_name)
    assert resolve(DEFAULT_MODEL, cache_dir=tmp_path) == tmp_path / "models" / SMOLLM2.file_name


def test_the_cache_folder_is_the_users_unless_a_variable_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMASERVE_CACHE", str(tmp_path))
    assert models_folder() == tmp_path / "models"
    monkeypatch.delenv("LLAMASERVE_CACHE")
    assert models_folder().parent.name == "llamaserve"


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:owner",
        "hf:owner/repo",
        "hf:owner/repo/file.bin",
        "hf:owner/repo/../../file.gguf",
        "hf:../repo/file.gguf",
        "hf:owner/repo//file.gguf",
        "hf:owner/repo/a\\..\\file.gguf",
        "hf:/owner/repo/file.gguf",
        "hf:owner/repo/file.gguf\n",
    ],
)
def test_a_hub_name_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ModelLoad, match="is not of the form hf:owner/repo/file"):
        resolve(name)


def test_without_the_hub_package_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoad, match=r'pip install "llamaserve\[hf\]"'):
        resolve("hf:owner/repo/file.gguf")


class Hub:
    """Stands for the hub's library: remembers what was asked for, fails on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str]] = []
        self.error: Exception | None = None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
        monkeypatch.setattr(importlib, "import_module", lambda name: SimpleNamespace(hf_hub_download=self.download))

    def download(self, *, repo_id: str, filename: str) -> str:
        if self.error:
            raise self.error
        self.asked.append((repo_id, filename))
        return f"cache/{filename}"


def test_a_hub_file_may_lie_in_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Hub(monkeypatch)
    assert hub.fetch("hf:owner/repo-GGUF/Q4_K_M/model.v2.gguf") == Path("cache/Q4_K_M/model.v2.gguf")
    assert library.asked == [("owner/repo-GGUF", "Q4_K_M/model.v2.gguf")]


def test_all_files_of_a_split_model_are_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Hub(monkeypatch)
    assert hub.fetch("hf:o/r/m-00001-of-00002.gguf") == Path("cache/m-00001-of-00002.gguf")
    assert [file for _, file in library.asked] == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


def test_a_failure_of_the_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Hub(monkeypatch)
    library.error = RuntimeError("404 Client Error\nRequest ID: 1234")
    with pytest.raises(ModelLoad) as caught:
        hub.fetch("hf:owner/repo/file.gguf")
    assert str(caught.value) == "hf:owner/repo/file.gguf cannot be downloaded: 404 Client Error"


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("smollm2", "smollm2"),
        ("folder/tiny.Q4_1.gguf", "tiny.Q4_1"),
        (Path("tiny.gguf"), "tiny"),
        ("hf:owner/repo/sub/tiny.gguf", "tiny"),
    ],
)
def test_a_model_is_called_by_its_known_name_or_its_file(named: str | Path, name: str) -> None:
    assert model_name(named) == name
