"""Where a machine has `dcgmi`, if it has it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_FOLDERS: Final = ("usr/bin", "usr/local/bin", "bin", "opt/nvidia/dcgm/bin")


def find_dcgmi(host_root: Path = Path("/")) -> tuple[str, ...] | None:
    """The command that runs the machine's `dcgmi`, or None where it has none.

    Below another root it is run with that root, because it loads the machine's own libraries.
    """
    if host_root == Path("/"):
        folders = [Path(entry) for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry]
        found = next((p for f in folders if os.access(p := f / "dcgmi", os.X_OK)), None)
        return None if found is None else (str(found),)
    for folder in _FOLDERS:
        if os.access(host_root / folder / "dcgmi", os.X_OK):
            return ("chroot", str(host_root), f"/{folder}/dcgmi")
    return None
