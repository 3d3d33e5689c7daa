"""EFA, InfiniBand and RoCE devices from /sys/class/infiniband.

What the kernel knows by itself (names, links between folders) is read here. State, rate and counters may
be commands to the device's firmware: a process that can be lost reads those, each device by its own
deadline, so a device that never answers costs the others nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from outlast.adapters.linux.guarded_files import FolderText, GuardedFiles, ReadFailed, ReadHung
from outlast.model.observation import (
    LinkLayer,
    NetworkInterface,
    RdmaDevice,
    RdmaPort,
    RdmaProblem,
    RdmaSurvey,
)
from outlast.model.observation.rdma import (
    CARRIER_CHANGES,
    EFA_DEVICE_COUNTERS,
    EFA_PORT_COUNTERS,
    LINK_COUNTERS,
    TRANSPORT_COUNTERS,
)
from outlast.ports.clock import Clock
from outlast.ports.node import Wanted

SURVEY_DEADLINE_S: Final = 15.0
"""A survey takes at most this and one device's deadline more."""
DEVICES_MAX: Final = 128
PORTS_MAX: Final = 8
INTERFACES_MAX: Final = 8
EFA_SPACING_S: Final = 25.0
"""Five commands to the device make one reading of its counters: asked sooner, the last one is given again."""
RETRY_FIRST_S: Final = 60.0
RETRY_MAX_S: Final = 600.0
"""How long a device that hung is left alone; doubles with each time."""

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_COUNTER_MAX: Final = 2**64
_REFUSALS: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES)
"""A counter that answers so will not answer better; asking on makes some firmwares fill the kernel log."""
_IFF_UP: Final = 1


class _Suspect(msgspec.Struct):
    retry_at_s: float
    pause_s: float
    message: str


class SysfsRdma:
    """Implements `outlast.ports.node.Surveyor`; `root` is where the machine's /sys is."""

    def __init__(self, root: Path = Path("/"), *, clock: Clock, files: GuardedFiles | None = None) -> None:
        self._class = root / "sys/class/infiniband"
        self._netns_mode = root / "sys/module/ib_core/parameters/netns_mode"
        self._clock = clock
        self._files = files if files is not None else GuardedFiles()
        self._suspects: dict[str, _Suspect] = {}
        self._refused: dict[str, set[str]] = {}
        self._last: dict[str, tuple[float, RdmaDevice]] = {}
        self._failures = 0

    async def survey(self, wanted: Wanted) -> RdmaSurvey:
        """Look at every device once; at most `SURVEY_DEADLINE_S` and one device's deadline."""
        try:
            names = sorted(os.listdir(self._class))  # noqa: PTH208 - fast
        except FileNotFoundError:
            names = []  # No RDMA driver is loaded.
        except OSError as error:
            message = f"{self._class} cannot be listed: {error.strerror}"
            self._failures += 1
            return RdmaSurvey(readable=False, message=message, failures=self._failures)
        self._forget_all_but(names)
        if not names:
            self._files.close()
        problems: dict[str, tuple[RdmaProblem, str]] = {}
        devices = []
        until_s = asyncio.get_running_loop().time() + SURVEY_DEADLINE_S
        for name in names[:DEVICES_MAX]:
            identity = self._identity(name)
            if identity is None:
                continue
            try:
                if asyncio.get_running_loop().time() >= until_s:
                    raise ReadFailed(f"no time was left in {SURVEY_DEADLINE_S:g} s to ask {name}")
                device = await self._asked(identity)
            except ReadHung as error:
                problems[name] = (RdmaProblem.HUNG, str(error))
                device = msgspec.structs.replace(identity, answered=False)
            except ReadFailed as error:
                problems[name] = (RdmaProblem.FAILED, str(error))
                device = msgspec.structs.replace(identity, answered=False)
            if (self._class / name).exists():  # Else it went while we looked.
                devices.append(device)
            else:
                problems.pop(name, None)
        return self._answer(devices, problems, len(names))

    async def aclose(self) -> None:
        """End the reading process, without waiting for it."""
        self._files.close()

    def _answer(
        self, devices: list[RdmaDevice], problems: Mapping[str, tuple[RdmaProblem, str]], listed: int
    ) -> RdmaSurvey:
        if listed > DEVICES_MAX:
            many = f"{listed} RDMA devices are more than the limit of {DEVICES_MAX}; looked at the first"
            problems = {**problems, "": (RdmaProblem.FAILED, many)}
        self._failures = self._failures + 1 if problems else 0
        worst = sorted(problems.items(), key=lambda item: (item[1][0] is not RdmaProblem.HUNG, item[0]))
        name, (problem, message) = worst[0] if worst else ("", (None, ""))
        return RdmaSurvey(
            devices=tuple(devices),
            problem=problem,
            problem_device=name,
            message=message,
            failures=self._failures,
            exclusive=self._exclusive(),
        )

    def _exclusive(self) -> bool:
        """Whether devices belong to one network namespace each; the kernel's own default is to share them."""
        try:
            return self._netns_mode.read_text().strip() == "N"
        except (OSError, UnicodeDecodeError):
            return False

    def _identity(self, name: str) -> RdmaDevice | None:
        """What the kernel knows without asking the device; None for a virtual function of ours."""
        device = self._class / name / "device"
        try:
            folder = device.resolve(strict=True)
        except OSError:
            # Software devices (rxe, siw) hang on no hardware.
            return RdmaDevice(name=name) if (self._class / name).exists() else None
        address = folder.name.lower()
        if (folder / "physfn").exists():
            return None
        return RdmaDevice(
            name=name,
            pci_address=address if _ADDRESS.fullmatch(address) else "",
            driver=_target(folder / "driver"),
            vendor=_hex(folder / "vendor"),
            device=_hex(folder / "device"),
        )

    async def _asked(self, device: RdmaDevice) -> RdmaDevice:
        """With its ports, interfaces and counters. Raises ReadHung, ReadFailed."""
        now_s = self._clock.monotonic()
        if device.is_efa and device.name in self._last:
            asked_s, last = self._last[device.name]
            if now_s - asked_s < EFA_SPACING_S and last.pci_address == device.pci_address:
                return last
        suspect = self._suspects.get(device.name)
        if suspect is not None and now_s < suspect.retry_at_s:
            raise ReadHung(suspect.message)
        folder = self._class / device.name
        ports = [int(port) for port in _listed(folder / "ports") if port.isdigit()][:PORTS_MAX]
        interfaces = [] if device.is_efa else _listed(folder / "device/net")[:INTERFACES_MAX]
        refused = self._refused.setdefault(device.name, set())
        wanted = [n for n in _files(folder, ports, interfaces, efa=device.is_efa) if n not in refused]
        try:
            found = await self._files.read(folder, wanted)
        except ReadHung as error:
            pause_s = min(2 * suspect.pause_s, RETRY_MAX_S) if suspect else RETRY_FIRST_S
            self._suspects[device.name] = _Suspect(now_s + pause_s, pause_s, str(error))
            raise
        self._suspects.pop(device.name, None)
        refused |= {
            name for name, number in found.errors.items() if number in _REFUSALS and "counter" in name
        }
        if not device.is_efa and ports and not any(f"ports/{port}/state" in found.texts for port in ports):
            numbers = sorted(set(found.errors.values()))
            raise ReadFailed(f"{folder}: {', '.join(map(os.strerror, numbers)) or 'nothing to read'}")
        answer = msgspec.structs.replace(
            device,
            ports=tuple(_port(port, found) for port in ports),
            interfaces=tuple(_interface(name, found) for name in interfaces),
            counters=_counters("hw_counters", EFA_DEVICE_COUNTERS, found) if device.is_efa else {},
        )
        self._last[device.name] = (now_s, answer)
        return answer

    def _forget_all_but(self, names: Iterable[str]) -> None:
        """A device that left and returns is a new one."""
        kept = set(names)
        memories: tuple[dict[str, Any], ...] = (self._suspects, self._refused, self._last)
        for memory in memories:
            for name in memory.keys() - kept:
                del memory[name]


def _files(folder: Path, ports: list[int], interfaces: list[str], *, efa: bool) -> list[str]:
    """Files worth asking for, of those that this device has."""
    wanted: list[str] = []
    for port in ports:
        here = f"ports/{port}"
        if efa:
            wanted += _present(folder, f"{here}/hw_counters", EFA_PORT_COUNTERS)
            continue
        wanted += [f"{here}/{name}" for name in ("state", "phys_state", "rate", "link_layer")]
        wanted += _present(folder, f"{here}/counters", LINK_COUNTERS)
        wanted += _present(folder, f"{here}/hw_counters", TRANSPORT_COUNTERS)
    if efa:
        wanted += _present(folder, "hw_counters", EFA_DEVICE_COUNTERS)
    for interface in interfaces:
        wanted += [f"device/net/{interface}/flags", f"device/net/{interface}/{CARRIER_CHANGES}"]
    return wanted


def _present(folder: Path, group: str, names: Iterable[str]) -> list[str]:
    there = set(_listed(folder / group))
    return [f"{group}/{name}" for name in names if name in there]


def _port(number: int, found: FolderText) -> RdmaPort:
    here = f"ports/{number}"
    return RdmaPort(
        number=number,
        state=_word(found.texts.get(f"{here}/state", "")),
        physical_state=_word(found.texts.get(f"{here}/phys_state", "")),
        rate_gbps=_rate(found.texts.get(f"{here}/rate", "")),
        link_layer=_layer(found.texts.get(f"{here}/link_layer", "")),
        counters={
            **_counters(f"{here}/counters", LINK_COUNTERS, found),
            **_counters(f"{here}/hw_counters", (*EFA_PORT_COUNTERS, *TRANSPORT_COUNTERS), found),
        },
    )


def _interface(name: str, found: FolderText) -> NetworkInterface:
    here = f"device/net/{name}"
    flags = _number(found.texts.get(f"{here}/flags", ""), base=16)
    return NetworkInterface(
        name=name,
        up=None if flags is None else bool(flags & _IFF_UP),
        carrier_changes=_number(found.texts.get(f"{here}/{CARRIER_CHANGES}", "")),
    )


def _counters(group: str, names: Iterable[str], found: FolderText) -> dict[str, int]:
    values = ((name, _number(found.texts.get(f"{group}/{name}", ""))) for name in names)
    return {name: value for name, value in values if value is not None}


def _number(text: str, base: int = 10) -> int | None:
    """A counter; None for a file that was empty, missing or garbage."""
    try:
        value = int(text[:32], base)
    except ValueError:
        return None
    return value if 0 <= value < _COUNTER_MAX else None


def _word(text: str) -> str:
    """`4: ACTIVE` is ACTIVE; empty for what is no such line."""
    number, colon, word = text[:64].partition(":")
    return word.strip() if colon and number.strip().isdigit() else ""


def _rate(text: str) -> float | None:
    """`400 Gb/sec (4X NDR)` is 400."""
    number, _, unit = text[:64].partition(" ")
    try:
        rate = float(number)
    except ValueError:
        return None
    return rate if unit.startswith("Gb/sec") and 0 < rate < 100_000 else None


def _layer(text: str) -> LinkLayer:
    try:
        return LinkLayer(text)
    except ValueError:
        return LinkLayer.OTHER


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - fast
    except OSError:
        return []


def _target(link: Path) -> str:
    try:
        return link.readlink().name
    except OSError:
        return ""


def _hex(path: Path) -> int:
    try:
        with path.open("rb", buffering=0) as file:
            return int((file.read(32) or b"").strip(), 16)
    except (OSError, ValueError):
        return 0
