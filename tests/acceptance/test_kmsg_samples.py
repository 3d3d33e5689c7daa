"""Every line of the collection of real kernel lines: what it is read as, and what it does to a healthy node.

A line that is benign must never be disruptive: that would end somebody's job for nothing.
"""

from __future__ import annotations

import csv
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest

from outlast.health.sources.facts import (
    DriverLoadedFact,
    Fact,
    GpuIdentityFact,
    GspFact,
    InitFailedFact,
    LineFact,
    ProbeFailedFact,
    SxidFact,
    XidFact,
)
from outlast.health.sources.kernel_record import parse_record
from outlast.health.sources.kernel_text import LITERALS, LineMemory, interesting, read
from outlast.model.health import FaultClass, FaultState, Verdict
from outlast.model.observation import KernelRecord
from tests.unit.health.builders import Scene, record

SAMPLES: Final = Path(__file__).parents[1] / "data" / "kmsg-samples.tsv"
HELD_BACK_S: Final = 6.0
"""A little more than followers and application errors wait for their leader."""
DISRUPTIVE: Final = {FaultClass.RESET_CURES, FaultClass.REBOOT_CURES, FaultClass.HARDWARE_GONE}


class Outcome(StrEnum):
    """What a single line does to a healthy node."""

    DISRUPTIVE = "disruptive"
    """A drain and a repair may follow."""
    BLOCKS = "blocks"
    """No new work for a while; what runs goes on."""
    BENIGN = "benign"
    """At most recorded."""


KINDS: Final = {
    "aer_correctable": {"pcie/corrected", "pcie/corrected-received"},
    "aer_detail": {"pcie/detail"},
    "aer_fatal": {"pcie/fatal"},
    "aer_recovery_failed": {"pcie/recovery-failed"},
    "mce": {"memory/mce-logged"},
    "edac_ce": {"memory/corrected"},
    "kernel_panic": {"kernel/panic"},
    "hung_task": {"task/hung"},
    "soft_lockup": {"task/soft-lockup"},
    "oom_kill": {"memory/oom"},
    "memcg_oom_kill": {"memory/oom-cgroup"},
    "mlx5_power": {"nic/slot-power"},
    "mlx5_cmd_timeout": {"nic/command-timeout"},
    "mlx5_health": {"nic/unhealthy"},
    "netdev_watchdog": {"nic/tx-stalled"},
    "link_down": {"nic/link-down"},
    "efa_cmd_timeout": {"nic/failed"},
    "efa_reset_failed": {"nic/failed"},
    "ena_reset": {"nic/reset"},
    "ena_keepalive": {"nic/keep-alive"},
    "ena_tx_lost": {"nic/tx-lost"},
    "ena_tx_late": {"nic/tx-late"},
    "nvme_disabled": {"storage/nvme-disabled"},
    "io_error": {"storage/io-error"},
    "fs_readonly": {"storage/read-only"},
    "file_max": {"kernel/file-max"},
    "conntrack_full": {"kernel/conntrack-full"},
    "nvlink_noise": {"driver/nvlink-noise"},
}
FACTS: Final[dict[str, type[Fact]]] = {
    "xid": XidFact,
    "sxid": SxidFact,
    "sxid_detail": SxidFact,
    "gsp_rate_limit": GspFact,
    "gsp_heartbeat_lost": GspFact,
    "gpu_identity": GpuIdentityFact,
    "driver_probe_failed": ProbeFailedFact,
    "driver_init_failed": InitFailedFact,
}
NOTICES: Final = (DriverLoadedFact, LineFact)
"""What a negative may be read as; it must still do nothing."""

DISRUPTIVE_CLASSES: Final = {
    "gsp_rate_limit",
    "gsp_heartbeat_lost",
    "driver_probe_failed",
    "driver_init_failed",
    "kernel_panic",
    "efa_cmd_timeout",
    "efa_reset_failed",
    "nvme_disabled",
    "fs_readonly",
}
BLOCKING_CLASSES: Final = {
    "aer_fatal",
    "aer_recovery_failed",
    "hung_task",
    "oom_kill",
    "mlx5_cmd_timeout",
    "mlx5_health",
    "file_max",
    "conntrack_full",
}
DISRUPTIVE_XIDS: Final = {79, 64, 46, 62, 109, 154}
BLOCKING_XIDS: Final = {94, 63}
REPEATS_MATTER: Final = {"soft_lockup"}
"""Benign alone; the same processor stuck again and again is not."""


def rows() -> list[tuple[int, list[str]]]:
    """The rows with their numbers."""
    read_ = csv.reader(SAMPLES.read_text("utf-8").splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return list(enumerate(read_))[1:]


def identifier(row: tuple[int, list[str]]) -> str:
    """Stable over other rows' texts."""
    number, (name, code, *_) = row
    return f"row-{number:02d}-{name}-{code}"


def expected(name: str, code: str, line: str) -> Outcome:
    """What the row's class means when it comes alone."""
    if name == "xid":
        fatal_link = int(code) in range(144, 151) and " Fatal " in line
        if int(code) in DISRUPTIVE_XIDS or fatal_link:
            return Outcome.DISRUPTIVE
        return Outcome.BLOCKS if int(code) in BLOCKING_XIDS else Outcome.BENIGN
    if name in DISRUPTIVE_CLASSES:
        return Outcome.DISRUPTIVE
    return Outcome.BLOCKS if name in BLOCKING_CLASSES else Outcome.BENIGN


def as_record(line: str) -> KernelRecord:
    """Rows hold lines of dmesg and syslog, and one record as /dev/kmsg gives it."""
    return parse_record(line.encode()) or record(line)


def outcome(scene: Scene) -> Outcome:
    """What has become of the node."""
    faults = scene.status.faults
    if any(fault.fault_class in DISRUPTIVE and fault.state is FaultState.OPEN for fault in faults):
        return Outcome.DISRUPTIVE
    well = all(verdict.verdict is Verdict.HEALTHY for verdict in scene.status.verdicts)
    return Outcome.BENIGN if well and not faults else Outcome.BLOCKS


@pytest.mark.parametrize("row", rows(), ids=identifier)
def test_each_real_line_is_understood_and_does_what_its_class_means(row: tuple[int, list[str]]) -> None:
    """The line is read as its class, and one such line on a healthy node has that class's outcome."""
    _, (name, code, _, line) = row
    printed = as_record(line)
    fact, memory = read(printed, LineMemory()) if interesting(printed) else (None, LineMemory())
    if name in KINDS:
        assert isinstance(fact, LineFact)
        assert fact.kind in KINDS[name]
    elif name in FACTS:
        assert isinstance(fact, FACTS[name])
        assert code == "-" or getattr(fact, "code", None) == int(code)
    elif name == "gpu_off_bus_part1":
        assert fact is None
        assert memory.address == "0000:b3:00.0"
    else:
        assert name == "negative"
        assert fact is None or isinstance(fact, NOTICES)
    if fact is not None or memory != LineMemory():
        assert any(literal in line.encode() for literal in LITERALS)

    scene = Scene()
    scene.line(printed.text)
    scene.wait(HELD_BACK_S)

    assert outcome(scene) is expected(name, code, line)


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in rows()
        if expected(row[1][0], row[1][1], row[1][3]) is Outcome.BENIGN and row[1][0] not in REPEATS_MATTER
    ],
    ids=identifier,
)
def test_a_benign_line_is_never_disruptive_however_often_it_comes(row: tuple[int, list[str]]) -> None:
    """Forty of the same benign line in a minute, and polls in between, drain nobody."""
    _, (_, _, _, line) = row
    printed = as_record(line)
    scene = Scene()
    for _ in range(4):
        for _ in range(10):
            scene.line(printed.text)
        scene.poll()
        assert outcome(scene) is not Outcome.DISRUPTIVE


def test_all_benign_lines_together_are_not_disruptive() -> None:
    """A node that prints every benign line of the collection, one after the other, is not drained."""
    scene = Scene()
    for _, (name, code, _, line) in rows():
        if expected(name, code, line) is Outcome.BENIGN:
            scene.line(as_record(line).text)
    scene.wait(HELD_BACK_S)
    scene.poll(3)

    assert outcome(scene) is Outcome.BENIGN
