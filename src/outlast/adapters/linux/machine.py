"""Who this machine is and which boot this is, from /proc and the firmware's own tables.

The boot id is made by the kernel at each boot; it is what proves that a reboot happened.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from outlast.model.observation import MachineFacts

_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WORD_MAX = 128


class LinuxMachine:
    """Implements `outlast.ports.node.Machine`; `root` is where the machine's /proc and /sys are."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def facts(self) -> MachineFacts:
        """Boot id (empty when unreadable), kernel release, and the instance type where EC2 states it."""
        boot_id = self._word("proc/sys/kernel/random/boot_id").lower()
        vendor = self._word("sys/devices/virtual/dmi/id/sys_vendor")
        return MachineFacts(
            boot_id=boot_id if _BOOT_ID.fullmatch(boot_id) else "",
            # On EC2 (Nitro) the firmware's product name is the instance type.
            instance_type=self._word("sys/devices/virtual/dmi/id/product_name")
            if vendor == "Amazon EC2"
            else "",
            kernel_release=self._word("proc/sys/kernel/osrelease"),
            suspended_s=_suspended_s(),
        )

    def _word(self, path: str) -> str:
        try:
            with (self._root / path).open("rb") as file:
                return file.read(_WORD_MAX).decode("ascii", "replace").strip()
        except OSError:
            return ""


def _suspended_s() -> float:
    """Whole seconds, so that two looks differ only when the machine stood still in between."""
    return float(round(time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)))
