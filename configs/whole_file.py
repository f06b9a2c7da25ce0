"""Files that are there whole or not at all."""

import os
import tempfile
from pathlib import Path


def write(path: Path, *parts: bytes) -> None:
    """A file of the user alone (mode 0600), in the place of another of that name. Raises OSError.

    Not fsynced: after a power failure it may be damaged, which its reader has to notice.
    """
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with open(handle, "wb") as file:
            file.writelines(parts)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
