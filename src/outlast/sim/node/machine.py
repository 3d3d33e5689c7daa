"""Identity of a simulated machine, and its memory between agent starts."""

from __future__ import annotations

import uuid
from typing import Protocol

from outlast.model.observation import MachineFacts


class Rebootable(Protocol):
    """What forgets at a reboot."""

    def reboot(self, boot_id: str) -> None:
        """The machine has started again under this boot id."""
        ...


class FakeMachine:
    """Implements `outlast.ports.node.Machine`; boot ids follow from the name and the number of the boot."""

    def __init__(
        self, name: str, *, instance_type: str = "p5.48xlarge", kernel_release: str = "6.8.0"
    ) -> None:
        self.name = name
        self.boots = 1
        self._instance_type = instance_type
        self._kernel_release = kernel_release
        self._forgetful: list[Rebootable] = []

    @property
    def boot_id(self) -> str:
        """Of the present boot."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.name}/{self.boots}"))

    def facts(self) -> MachineFacts:
        """Boot id of the present boot, instance type, kernel."""
        return MachineFacts(
            boot_id=self.boot_id, instance_type=self._instance_type, kernel_release=self._kernel_release
        )

    def attach(self, *parts: Rebootable) -> None:
        """Have these forget at each reboot, in this order."""
        self._forgetful += parts

    def reboot(self) -> str:
        """Start again: new boot id, empty kernel log. Returns the boot id."""
        self.boots += 1
        for part in self._forgetful:
            part.reboot(self.boot_id)
        return self.boot_id


class MemoryStateFile:
    """Implements `outlast.ports.node.StateFile` in memory; survives reboots, as a disk does."""

    def __init__(self, content: bytes | None = None) -> None:
        self.content = content
        self.full = False
        """Set to refuse saves, as a full disk does."""
        self.problem = ""

    def load(self) -> bytes | None:
        """The last saved content."""
        return self.content

    def save(self, content: bytes) -> bool:
        """Replace the content; False while `full`."""
        self.problem = "No space left on device" if self.full else ""
        if self.full:
            return False
        self.content = content
        return True
