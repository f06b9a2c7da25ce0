"""Model folders that lie in several parts, so that files which they share with others exist once.

Readers want one whole folder: it is made of links, in the user's cache, and its name stands for what they lead to.
"""

import os
import shutil
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path

from ..bus.errors import StartError


def joined(name: str, parts: list[Path]) -> Path:
    """A folder called `name` with the files of all `parts`, the first one's where several have one; a single part
    itself. Raises StartError where the user's cache cannot be written.
    """
    if len(parts) == 1:
        return parts[0]
    files = {
        file.relative_to(part): file
        for part in reversed(parts)
        for file in sorted(part.rglob("*"))
        if file.is_file()
    }
    listed = "\n".join(f"{place} {file}" for place, file in sorted(files.items()))
    folder = cache_folder() / "models" / blake2b(listed.encode(), digest_size=8).hexdigest()
    if not all((folder / name / place).is_file() for place in files):
        try:
            _link(files, folder, name)
        except OSError as error:
            raise StartError(
                f"{name!r} is put together in {folder}, which cannot be written ({error.strerror}): set "
                "XDG_CACHE_HOME to a folder that can"
            ) from None
    return folder / name


def _link(files: dict[Path, Path], folder: Path, name: str) -> None:
    """Make the folder beside its place and move it there, as others may do at the same time."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as made:
        for place, file in files.items():
            link = Path(made) / folder.name / name / place
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
        try:
            os.rename(Path(made) / folder.name, folder)
        except OSError:
            # There is one: another program's, made just now, or one of which files were removed.
            if not all((folder / name / place).is_file() for place in files):
                shutil.rmtree(folder)
                os.rename(Path(made) / folder.name, folder)


def cache_folder() -> Path:
    """Where this system keeps what can be made again for a user."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "vivavoce"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "vivavoce"
    return Path.home() / ".cache" / "vivavoce"
