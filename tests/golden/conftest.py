"""Loaders for the golden data, numbers of the official implementation; README.md beside this file describes it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vivavoce.configs.models import SHIPPED, find

Arrays = dict[str, npt.NDArray[Any]]

DATA = Path(__file__).parent / "data"


def checkpoint_folder(name: str) -> Path:
    """The folder of checkpoint `name`: `custom`, `custom06`, `base`, `design`, or that of an embedded model."""
    return find(name) if name in SHIPPED else DATA / "checkpoints" / name


def load_arrays(name: str, part: str) -> Arrays:
    """All arrays of `data/<name>/<part>.npz`, by name."""
    with np.load(DATA / name / f"{part}.npz") as stored:
        return {key: stored[key] for key in stored.files}


def load_json(name: str, part: str) -> Any:
    """What `data/<name>/<part>.json` says."""
    return json.loads((DATA / name / f"{part}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[str], Path]:
    """`checkpoint("custom")` is the folder to load that model from."""
    return checkpoint_folder


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], Arrays]:
    """`golden("custom", "prompts")["full.embeds"]` is one array of the official implementation."""
    return load_arrays


@pytest.fixture(scope="session")
def golden_json() -> Callable[[str, str], Any]:
    """`golden_json("custom", "prompts")["full"]` describes one case."""
    return load_json
