"""The count of a device's steps, written by its thread and read by others."""

import threading
import time

import pytest

from vivavoce.bus.control import Progress


def test_progress_is_read_from_another_thread() -> None:
    progress = Progress()
    inside, seen = threading.Event(), threading.Event()

    def work() -> None:
        with progress:
            inside.set()
            seen.wait(5)

    before = time.monotonic()
    worker = threading.Thread(target=work)
    worker.start()
    assert inside.wait(5)
    assert progress.busy_since is not None
    assert before <= progress.busy_since <= time.monotonic()
    assert progress.steps == 0
    first = progress.busy_s
    assert progress.busy_s >= first >= 0
    seen.set()
    worker.join(5)
    assert (progress.steps, progress.busy_since, progress.busy_s) == (1, None, 0.0)
    assert 0 <= progress.age_s <= time.monotonic() - before


def test_a_failed_step_is_no_longer_busy() -> None:
    progress = Progress()
    with pytest.raises(RuntimeError), progress:
        raise RuntimeError
    assert progress.busy_since is None
