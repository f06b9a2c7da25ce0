"""What is computed of stored voices, on disk: never another's, never half, and gone with the voice."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from vivavoce.configs import voice_files
from vivavoce.configs.voice_store import VoiceStore

PCM = bytes(range(256)) * 200


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    made = VoiceStore(tmp_path / "voices")
    made.add("Ada", PCM)
    return made


def test_data_is_kept_for_the_user_alone_and_goes_with_the_voice(store: VoiceStore) -> None:
    store.files.keep("Ada", "codec-1", b"one")
    store.files.keep("ada", "codec-2", b"two")
    assert store.files.find("ADA", "codec-1") == b"one"
    assert store.files.find("Ada", "codec-3") is None
    assert dict(store.files.all("codec-")) == {"codec-1": b"one", "codec-2": b"two"}
    folder = store.folder / "ada.files"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert store.remove("ada")
    assert list(store.folder.iterdir()) == []


def test_there_is_none_without_a_voice_nor_of_the_voice_before(store: VoiceStore) -> None:
    store.files.keep("Eve", "codec-1", b"one")
    store.files.keep("../Ada", "codec-1", b"one")
    assert not list(store.folder.parent.rglob("*.files"))
    store.files.keep("Ada", "codec-1", b"one")
    store.add("Ada", PCM[::-1], replace=True)
    assert store.files.find("Ada", "codec-1") is None
    store.files.keep("Ada", "codec-1", b"one")
    (store.folder / "ada.voice").unlink()
    store.add("Bob", PCM)
    assert not list(store.folder.glob("*.files"))


@pytest.mark.parametrize("vice", ["cut", "empty", "changed", "another's"])
def test_what_is_broken_or_foreign_is_absent_and_made_anew(store: VoiceStore, vice: str) -> None:
    store.files.keep("Ada", "codec-1", b"one" * 1000)
    file = store.folder / "ada.files" / "codec-1"
    good = file.read_bytes()
    store.files.keep("Ada", "codec-2", b"two" * 1000)
    other = file.with_name("codec-2").read_bytes()
    file.write_bytes({"cut": good[:-1], "empty": b"", "changed": good[:-1] + b"x", "another's": other}[vice])
    assert store.files.find("Ada", "codec-1") is None
    assert dict(store.files.all("codec-")) == {"codec-2": b"two" * 1000}
    store.files.keep("Ada", "codec-1", b"one" * 1000)
    assert store.files.find("Ada", "codec-1") == b"one" * 1000


def test_the_longest_unused_make_room(store: VoiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_files, "MOST_BYTES", 3000)
    for number in range(3):
        store.files.keep("Ada", f"codec-{number}", bytes(900))
        os.utime(store.folder / "ada.files" / f"codec-{number}", (number, number))
    assert store.files.find("Ada", "codec-0") is not None
    store.files.keep("Ada", "codec-3", bytes(900))
    assert {name for name, _ in store.files.all("codec-")} == {"codec-0", "codec-2", "codec-3"}
    store.files.keep("Ada", "codec-4", bytes(4000))
    assert store.files.find("Ada", "codec-4") is None


def test_a_writer_killed_at_any_moment_leaves_whole_files(store: VoiceStore) -> None:
    code = (
        "import sys, itertools; from pathlib import Path; from vivavoce.configs.voice_files import VoiceFiles\n"
        "files = VoiceFiles(Path(sys.argv[1]))\n"
        "for n in itertools.count():\n"
        "    files.keep('ada', f'codec-{n % 3}', bytes([n % 256]) * 500000); print(n, flush=True)\n"
    )
    for enough in (1, 4, 9):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(store.folder)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            for _ in range(enough):
                child.stdout.readline()
            child.kill()
        for path in (store.folder / "ada.files").glob("codec-*"):
            data = store.files.find("ada", path.name)
            assert data is not None
            assert data == data[:1] * 500000


def test_a_folder_that_cannot_be_written_is_told_and_harms_nobody(
    store: VoiceStore, caplog: pytest.LogCaptureFixture
) -> None:
    (store.folder / "ada.files").write_text("")
    store.files.keep("Ada", "codec-1", b"one")
    assert store.files.find("Ada", "codec-1") is None
    assert "cannot be kept" in caplog.text


def test_what_cannot_be_read_or_removed_is_only_no_file(
    store: VoiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.files.keep("Ada", "codec-1", b"one")
    folder = store.folder / "ada.files"
    (folder / "codec-1").write_bytes(b"damaged")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:  # as of a folder that is read-only; the superuser may do all
        patch.setattr(Path, "unlink", denied)
        assert store.files.find("Ada", "codec-1") is None
        assert dict(store.files.all("codec-")) == {}
    with monkeypatch.context() as patch:  # and of one that may not be searched
        patch.setattr(os, "stat", denied)
        assert not store.files.has("Ada", "codec-1")
        store.files.keep("Ada", "codec-1", b"one")


def test_files_of_a_voice_that_cannot_be_looked_at_are_not_swept(
    store: VoiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.files.keep("Ada", "codec-1", b"one")
    look = os.stat

    def denied(path: Path, **how: bool) -> os.stat_result:
        if str(path).endswith(".voice"):
            raise PermissionError(13, "Permission denied")
        return look(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", denied)
        store.files.sweep()
    assert store.files.has("Ada", "codec-1")
    (store.folder / "ada.voice").unlink()
    store.files.sweep()
    assert not store.files.has("Ada", "codec-1")


def test_a_link_to_nowhere_does_not_stop_files_from_being_kept(
    store: VoiceStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.files.keep("Ada", "codec-1", b"one")
    (store.folder / "ada.files" / "codec-2").symlink_to("nowhere")
    store.files.keep("Ada", "codec-1", b"two")
    assert store.files.find("Ada", "codec-1") == b"two"
    assert not caplog.records
