"""What is in the folders is in the wheel, and the wheel works without the checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder appears in the checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in ("api", "bus", "configs", "stages"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(target), str(source)]
    subprocess.run(pip, check=True, capture_output=True)
    return next(target.glob("*.whl"))


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("vivavoce/")}
    files = {
        f"vivavoce/{path.relative_to(ROOT)}"
        for folder in ("api", "bus", "configs", "stages")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == files


def test_nothing_lands_at_the_top_of_site_packages(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"vivavoce"}


def test_the_unpacked_wheel_imports_and_finds_its_data(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
        "from vivavoce.bus import layout; from vivavoce.configs import models\n"
        "assert layout.__file__.startswith(sys.argv[1]), layout.__file__\n"
        "assert layout.load('speech').name == 'speech'\n"
        "assert (models.find('embedded') / 'model.safetensors').is_file()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
