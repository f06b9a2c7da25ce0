"""Kernels and bytes counted in a graph, and the profile tool's report. No test looks at how long anything took."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from vivavoce.stages.bench.graph import arrays, census
from vivavoce.stages.bench.machine import Machine
from vivavoce.stages.speech.qwen3 import launch

ROOT = Path(__file__).parents[2]
CUSTOM = ROOT / "tests" / "golden" / "data" / "checkpoints" / "custom06"


def test_a_graph_tells_its_kernels_and_how_often_each_array_is_read() -> None:
    matrix, table, cache, other = (mx.zeros((8, 8)) for _ in range(4))
    row, index, at = mx.zeros((1, 8)), mx.zeros(1, mx.int32), mx.array([2])
    mx.eval(matrix, table, cache, other, row, index, at)
    given = {"matrix": matrix, "table": table, "cache": cache, "other": other}
    x = (row @ matrix.T) @ matrix + mx.take(table, index, axis=0)
    written = mx.slice_update(cache, x, at, axes=(0,))
    made = [written @ x.reshape(8, 1)]
    # Twice the matrix, of the table a row, and the cache with what was written into it.
    assert census(made, given).bytes == matrix.nbytes * 2 + cache.nbytes
    # Transpose, Reshape and what `take` adds are no kernels.
    assert census([x.T, x.reshape(-1)], given)[1:] == census(x, given)[1:]
    assert census(x, given).kernels == 4
    assert census(x, given).primitives > 4
    mx.eval(made)
    assert census(made, given) == (0, 0, 0)


def test_arrays_are_found_once_wherever_they_are() -> None:
    one, two = mx.zeros(1), mx.zeros(2)
    found = list(arrays([one, {"a": (two, one)}, None, "text", object()]))
    assert [array.size for array in found] == [1, 2]


def test_the_profile_tells_of_every_stage() -> None:
    command = [sys.executable, ROOT / "tools" / "profile_speech.py", "--model", CUSTOM, "--text", "Hi."]
    command += ["--frames", "2", "--rows", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    steps = {(step["name"], step["frames"], step["rows"]): step for step in report["steps"]}
    chunks = [("codec decoder", count, 1) for count in (1, 2, 4, 8)]
    assert list(steps) == [("prompt", 0, 1), ("code predictor", 1, 2), ("talker", 1, 2), *chunks]
    for step in steps.values():
        assert 0 < step["kernels"] < step["primitives"]
        assert min(step["bytes"], step["limit_ms"], step["ms"]["median"], step["python_ms"]) > 0
    machine, whole = report["machine"], report["pipelined"]
    bytes_ms = steps["talker", 1, 2]["bytes"] / machine["bytes_per_s"] * 1e3
    kernels_ms = steps["talker", 1, 2]["kernels"] * machine["operation_s"] * 1e3
    assert abs(steps["talker", 1, 2]["limit_ms"] - bytes_ms - kernels_ms) < 1e-6
    assert whole["host_reads_per_frame"] > 0
    for words in ("codec decoder, 8 frames", "talker, 1 frame, 2 requests", "a frame of one request"):
        assert words in done.stderr


def test_a_step_that_queues_what_it_makes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = mx.zeros((8, 8))
    mx.eval(matrix)

    def launching(ticket: mx.array, row: mx.array) -> tuple[mx.array, mx.array]:
        return row @ matrix, ticket

    step = launch.one_by_one(launching)
    monkeypatch.syspath_prepend(ROOT / "tools")
    profile_speech: Any = importlib.import_module("profile_speech")
    model = SimpleNamespace(rows=None, talker=None, predictor=None, codec=matrix)
    profile = profile_speech.Profile(model, Machine("", 1e9, 1e-6), 1)
    profile.add("codec decoder", 1, 1, step, mx.zeros((1, 8)), 1)
    (counted,) = profile.steps
    # The row that it starts from is what the time before made.
    assert (counted.kernels, counted.bytes) == (1, matrix.nbytes + 8 * 4)
    assert counted.limit_ms > 0
