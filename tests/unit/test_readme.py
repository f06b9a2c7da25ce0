"""What the README tells people to type is what the command line takes."""

import shlex
from pathlib import Path

import pytest

from vivavoce.api import cli

README = (Path(__file__).parents[2] / "README.md").read_text()


def commands() -> list[str]:
    """Of the README's blocks, and those of its sentences that have arguments; `NAME|FILE` is a form, no command."""
    blocks = "".join(README.split("```")[1::2])
    lines = [line.removeprefix("$ ").split("&& ")[-1] for line in blocks.splitlines()]
    lines += [part for part in README.split("`")[1::2] if len(part.split()) > 3]
    return [line for line in lines if line.startswith("vivavoce ") and "|" not in line]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_is_understood(command: str) -> None:
    assert callable(cli.parser().parse_args(shlex.split(command, comments=True)[1:]).run)
