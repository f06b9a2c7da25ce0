"""Model folders made of parts."""

import shutil
from pathlib import Path

import pytest

from vivavoce.bus.errors import StartError
from vivavoce.configs import models
from vivavoce.configs.joined import joined


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two of a model's parts; `config.json` is in both."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for place in ("own/config.json", "own/codec/extra", "shared/config.json", "shared/codec/weights"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    return [tmp_path / "own", tmp_path / "shared"]


def _content(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def test_the_first_part_counts_where_both_have_a_file(parts: list[Path]) -> None:
    folder = joined("both", parts)
    assert folder.name == "both"
    assert _content(folder) == {
        "config.json": "own/config.json",
        "codec/extra": "own/codec/extra",
        "codec/weights": "shared/codec/weights",
    }
    assert joined("both", parts) == folder


def test_files_that_were_removed_or_added_are_there_the_next_time(parts: list[Path]) -> None:
    folder = joined("both", parts)
    shutil.rmtree(folder / "codec")
    assert "codec/weights" in _content(joined("both", parts))
    (parts[0] / "card").write_text("new")
    assert _content(joined("both", parts))["card"] == "new"


def test_one_part_needs_no_cache(parts: list[Path], tmp_path: Path) -> None:
    assert joined("own", parts[:1]) == parts[0]
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_told(parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StartError, match="XDG_CACHE_HOME"):
        joined("both", parts)


@pytest.mark.parametrize("name", models.SHIPPED)
def test_every_embedded_model_is_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = models.find(name)
    assert models.split_name(name) == (name, name)
    assert models.kind(folder) == models.SPEECH
    for file in ("tokenizer.json", "MODEL_CARD.md", "speech_tokenizer/config.json"):
        assert (folder / file).is_file()
