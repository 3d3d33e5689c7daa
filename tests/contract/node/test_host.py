"""What every source of the host's state must show; runs on /proc and /sys trees and on the simulated host."""

from pathlib import Path
from typing import Protocol

import pytest

from outlast.adapters.linux.host import LinuxHost
from outlast.model.observation import Filesystem, Fill, HostSurvey
from outlast.ports.node import Surveyor, Wanted
from outlast.sim.node import FakeHost
from tests.procfs import FakeProc
from tests.sysfs import FakeSysfs

in_a_loop = pytest.mark.asyncio
MOUNTS = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 {root},errors=remount-ro
23 22 0:21 / /proc rw,nosuid shared:2 - proc proc rw
24 22 7:3 / /snap/core/1 ro,nodev shared:3 - squashfs /dev/loop3 ro
25 22 259:1 /var/lib/kubelet /var/lib/pods/x/ro ro,relatime shared:1 - ext4 /dev/nvme0n1p1 {root}
26 22 0:50 / /run/k3s/overlay rw - overlay overlay rw,lowerdir=/a
27 22 253:0 / /data\\040sets rw,relatime - ext4 /dev/mapper/vg-data rw
"""


class HostUnderTest(Protocol):
    """A machine with a root file system on nvme0n1p1 and a live controller nvme0."""

    source: Surveyor

    def turn_read_only(self) -> None: ...
    def kill_controller(self) -> None: ...
    def fill_connections(self) -> None: ...


class Tree:
    def __init__(self, root: Path) -> None:
        self._sysfs, self._proc = FakeSysfs(root), FakeProc(root / "proc")
        for numbers, device in (("259:1", "nvme0n1p1"), ("253:0", "dm-0")):
            self._sysfs.set(f"devices/block/{device}/dev", numbers)
            link = root / "sys/dev/block" / numbers
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"../../devices/block/{device}")
            self._sysfs.set(f"fs/ext4/{device}/errors_count", "0\n")
        self._sysfs.set("class/nvme/nvme0/state", "live\n")
        self._sysfs.set("class/nvme/nvme0/transport", "pcie\n")
        self._sysfs.set("class/nvme/nvme7/state", "connecting\n")
        self._sysfs.set("class/nvme/nvme7/transport", "tcp\n")
        self._proc.set("1/mountinfo", MOUNTS.format(root="rw"))
        self._proc.set("sys/net/netfilter/nf_conntrack_max", "262144\n")
        self._proc.set("sys/fs/file-nr", "5000\t0\t1000000\n")
        self._connections(1000)
        self.source = LinuxHost(root, root / "proc")

    def _connections(self, count: int) -> None:
        line = f"{count:08x}  00000000 00000000 00000000\n"
        self._proc.set("1/net/stat/nf_conntrack", f"entries  searched found new\n{line}{line}")

    def turn_read_only(self) -> None:
        self._proc.set("1/mountinfo", MOUNTS.format(root="ro"))
        self._sysfs.set("fs/ext4/nvme0n1p1/errors_count", "1\n")

    def kill_controller(self) -> None:
        self._sysfs.set("class/nvme/nvme0/state", "dead\n")

    def fill_connections(self) -> None:
        self._connections(262_144)


class Simulated:
    def __init__(self) -> None:
        self._fake = FakeHost()
        self._fake.filesystems["dm-0"] = Filesystem(
            device="dm-0", mount_point="/data sets", kind="ext4", errors=0
        )
        self.source = self._fake

    def turn_read_only(self) -> None:
        self._fake.turn_read_only("nvme0n1p1")

    def kill_controller(self) -> None:
        self._fake.controllers["nvme0"] = "dead"

    def fill_connections(self) -> None:
        self._fake.connections = Fill(used=262_144, limit=262_144)


@pytest.fixture(params=["tree", "simulated"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> HostUnderTest:
    return Tree(tmp_path) if request.param == "tree" else Simulated()


async def look(host: HostUnderTest) -> HostSurvey:
    survey = await host.source.survey(Wanted())
    assert isinstance(survey, HostSurvey)
    return survey


@in_a_loop
async def test_only_file_systems_that_can_fail_are_listed_each_once(host: HostUnderTest) -> None:
    """By the name that the kernel log gives their device; images, overlays and bind mounts are left out."""
    survey = await look(host)

    assert survey.filesystems is not None
    assert sorted((f.device, f.mount_point, f.read_only) for f in survey.filesystems) == [
        ("dm-0", "/data sets", False),
        ("nvme0n1p1", "/", False),
    ]


@in_a_loop
async def test_a_file_system_that_turns_read_only_has_a_mount_for_writing(host: HostUnderTest) -> None:
    """What tells a failure from a file system that is read-only on purpose."""
    await look(host)
    host.turn_read_only()

    root = next(f for f in (await look(host)).filesystems or () if f.device == "nvme0n1p1")

    assert (root.read_only, root.wanted_writable, root.errors) == (True, True, 1)


@in_a_loop
async def test_local_controllers_are_shown_with_their_state(host: HostUnderTest) -> None:
    """Those over a network have a driver that reconnects."""
    live = await look(host)
    host.kill_controller()
    dead = await look(host)

    assert [(c.name, c.state) for c in live.controllers] == [("nvme0", "live")]
    assert [(c.name, c.state) for c in dead.controllers] == [("nvme0", "dead")]


@in_a_loop
async def test_tables_tell_how_full_they_are(host: HostUnderTest) -> None:
    """Of the machine's own network, and of all open files."""
    half = await look(host)
    host.fill_connections()
    full = await look(host)

    assert half.connections == Fill(used=1000, limit=262_144)
    assert full.connections is not None
    assert full.connections.share == 1.0
    assert half.open_files == Fill(used=5000, limit=1_000_000)
