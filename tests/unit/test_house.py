"""The rules of the house: who may import whom, and that what is in the folders is in the package."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("api", "bus", "configs", "stages")

# What a package must not import, by the first parts of the absolute name.
FORBIDDEN = {
    "bus": ("mlx", "mlx_lm", "mlx_audio", "quart", "hypercorn", "vivavoce.api", "vivavoce.stages"),
    "stages": ("quart", "hypercorn", "vivavoce.api"),
    "api": ("mlx", "mlx_lm", "mlx_audio", "vivavoce.stages"),
    "configs": ("mlx", "quart", "hypercorn", "vivavoce.api", "vivavoce.stages"),
}


def _imports(path: Path) -> Iterator[str]:
    package = ["vivavoce", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*base, *(node.module or "").split(".")]).strip(".")


@pytest.mark.parametrize("package", PACKAGES)
def test_dependency_rule(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        for name in _imports(path):
            for forbidden in FORBIDDEN[package]:
                assert not f"{name}.".startswith(f"{forbidden}."), f"{path} imports {name}"


def test_the_rule_sees_relative_imports() -> None:
    """Guards the guard: stages/host.py imports bus and configs relatively."""
    found = set(_imports(ROOT / "stages" / "host.py"))
    assert {"vivavoce.bus.loop", "vivavoce.configs.models"} <= found


def test_every_package_folder_is_listed() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {
        ".".join(["vivavoce", *init.parent.relative_to(ROOT).parts])
        for package in PACKAGES
        for init in (ROOT / package).rglob("__init__.py")
    }
    assert folders == listed


def test_every_package_is_typed_and_linked_for_checkers() -> None:
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()
        assert (ROOT / "tools" / "typing" / "vivavoce" / package).resolve() == ROOT / package
