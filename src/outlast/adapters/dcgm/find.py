"""Where a machine has `dcgmi`, if it has it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_FOLDERS: Final = ("usr/bin", "usr/local/bin", "bin", "opt/nvidia/dcgm/bin")


def find_dcgmi(host_root: Path = Path("/")) -> tuple[str, ...] | None:
    """The command that runs `dcgmi`, or None where there is none.

    First the mounted machine's own, run with that root because it loads that machine's libraries; then
    the one that came along in the image.
    """
    if host_root != Path("/"):
        for folder in _FOLDERS:
            if os.access(host_root / folder / "dcgmi", os.X_OK):
                return ("chroot", str(host_root), f"/{folder}/dcgmi")
    folders = [Path(entry) for entry in os.environ.get("PATH", os.defpath).split(os.pathsep) if entry]
    found = next((path for folder in folders if os.access(path := folder / "dcgmi", os.X_OK)), None)
    return None if found is None else (str(found),)
