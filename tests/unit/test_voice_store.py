"""Stored voices: names, damage, several programs, and a writer that is killed."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vivavoce.bus.errors import RequestError, VivavoceError
from vivavoce.configs.voice_store import VoiceStore, default_folder

PCM = bytes(range(256)) * 200


def test_a_voice_is_kept_and_forgotten(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path / "voices")
    assert store.all() == []
    made = store.add("Ada", PCM, text="Hello.", consent="yes", description="A friend")
    other = VoiceStore(tmp_path / "voices")
    assert other.find("ada") == made
    assert [voice.name for voice in other.all()] == ["Ada"]
    assert other.remove("ADA")
    assert not other.remove("ada")
    assert store.all() == []


def test_everything_is_for_the_user_alone(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path / "voices")
    store.add("ada", PCM)
    (file,) = store.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_name_is_taken_once_in_whatever_case(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    store.add("ada", PCM)
    with pytest.raises(RequestError) as refused:
        store.add("ADA", PCM[::-1])
    assert refused.value.failure.status == 409
    store.add("ADA", PCM[::-1], replace=True)
    found = store.find("ada")
    assert found is not None
    assert found.pcm == PCM[::-1]


@pytest.mark.parametrize(
    "name", ["", "../ada", "a/b", "a\\b", "/etc/passwd", "a.b", "a" * 65, "ä", "a\0", "-a", "a\n", "%2e%2e"]
)
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    store = VoiceStore(tmp_path / "voices")
    with pytest.raises(RequestError):
        store.add(name, PCM)
    assert store.find(name) is None
    assert not store.remove(name)
    assert list(tmp_path.rglob("*")) == []


def test_damaged_files_are_no_voices_and_are_named(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    store.add("ada", PCM)
    good = (tmp_path / "ada.voice").read_bytes()
    (tmp_path / "half.voice").write_bytes(good[:100])
    (tmp_path / "eve.voice").write_bytes(good)  # another's recording under this name
    (tmp_path / "bob.voice").write_bytes(good.replace(PCM[:40], bytes(40)))
    (tmp_path / "notes.txt").write_text("no voice")
    assert [voice.name for voice in store.all()] == ["ada"]
    assert store.refused() == ["bob.voice", "eve.voice", "half.voice"]


def test_a_writer_killed_at_any_moment_leaves_a_usable_store(tmp_path: Path) -> None:
    """The child adds voices until it is killed."""
    code = (
        "import sys, itertools; from pathlib import Path; from vivavoce.configs.voice_store import VoiceStore\n"
        "store = VoiceStore(Path(sys.argv[1]))\n"
        "for n in itertools.count():\n"
        "    store.add(f'v{n % 7}', bytes([n % 256]) * 500000, replace=True); print(n, flush=True)\n"
    )
    for enough in (1, 4, 9):
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(enough):
                child.stdout.readline()
            child.kill()
        store = VoiceStore(tmp_path)
        assert store.all()
        assert store.refused() == []
        store.add("after", PCM, replace=True)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VivavoceError, match="voices cannot be kept"):
        VoiceStore(tmp_path / "file").add("ada", PCM)


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_folder() == Path("/data/vivavoce/voices")
