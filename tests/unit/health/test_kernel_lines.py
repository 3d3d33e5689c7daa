"""Kernel lines of every kind: the drivers' own wordings, their nearest neighbours, and hostile input."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.health.catalogue import builtin
from outlast.health.checks import kernel_lines
from outlast.health.finding import Event, Role
from outlast.health.sources.facts import (
    FACT_TEXT_MAX,
    DriverUnloadedFact,
    Fact,
    GpuIdentityFact,
    GspFact,
    HungTaskFact,
    LineFact,
)
from outlast.health.sources.kernel_text import LITERALS, RULES, LineMemory, interesting, read
from outlast.health.sources.lines import SUBJECT_MAX, WINDOW_MAX, window
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.observation import KERNEL_LINE_BYTES_MAX
from tests.unit.health.builders import Scene, record

LINES = Path(__file__).parents[2] / "data" / "kernel-lines.tsv"
DEVICE_MAX = 128
MADE_BY_MEMORY = {
    "pcie/recovery-failed-fatal",
    "task/hung-in-driver",
    "driver/unsupported",
    "driver/starts-counted",
}
"""Kinds that take more than one line."""


def rows() -> list[tuple[int, str, str]]:
    found = csv.reader(LINES.read_text("utf-8").splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(number, kind, line) for number, (kind, line) in enumerate(found)][1:]


KNOWN = [row for row in rows() if row[1] != "-"]


def name(row: tuple[int, str, str]) -> str:
    return f"line-{row[0]:03d}-{row[1]}"


def fact_of(text: str) -> Fact | None:
    printed = record(text)
    return read(printed, LineMemory())[0] if interesting(printed) else None


def line_of(text: str) -> LineFact:
    fact = fact_of(text)
    assert isinstance(fact, LineFact)
    return fact


def event_of(text: str) -> Event:
    event = kernel_lines.run(line_of(text), builtin())
    assert event is not None
    return event


def facts_of(*texts: str, apart_us: int = 1000) -> list[Fact]:
    memory, facts = LineMemory(), []
    for number, text in enumerate(texts):
        fact, memory = read(record(text, number, number * apart_us), memory)
        facts += [fact] if fact is not None else []
    return facts


@pytest.mark.parametrize("row", rows(), ids=name)
def test_each_wording_is_its_kind_and_each_neighbour_is_nothing(row: tuple[int, str, str]) -> None:
    """Lines as the drivers print them have their kind; lines that only look like them have none."""
    _, kind, line = row
    fact = fact_of(line)
    assert (fact.kind if isinstance(fact, LineFact) else "-") == kind
    assert kind == "-" or any(literal in line.encode() for literal in LITERALS)


@pytest.mark.parametrize(
    "head",
    [
        "[ 1843.308145] ",
        "[Sun Jan  5 18:37:06 2025] ",
        "<3>[83028.888615] ",
        "[83028.888615][ T1234] ",
        "[  +0.000041] ",
        "Aug 19 11:38:39 node1 kernel: ",
        "Aug 19 11:38:39 node1 kernel: [83028.888615] ",
        "2026-08-19T11:38:39.123456+00:00 node1 kernel: ",
        "kernel: ",
    ],
)
def test_what_a_log_file_puts_in_front_changes_nothing(head: str) -> None:
    """Timestamps, host names and the kernel's tag are no part of the message."""
    for _, kind, line in KNOWN:
        assert line_of(head + line).kind == kind


@pytest.mark.parametrize(
    "head",
    [
        "python3[4711]: ",
        "myapp: ",
        'audit: type=1300 audit(1.2:3): comm="',
        "systemd[1]: app.service: ",
        "Aug 19 11:38:39 node1 logger: ",
        "[12.3] kubelet[9]: E0730 ",
        "log='",
        "x" * 300 + " ",
    ],
)
def test_words_of_somebody_else_are_never_the_kernels(head: str) -> None:
    """A line behind another program's tag, or in quotes, only tells what that program says."""
    for _, _, line in KNOWN:
        assert fact_of(head + line) is None
    assert fact_of(f"{head}NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.") is None


def test_the_catalogue_and_the_readers_know_the_same_kinds() -> None:
    """Each kind that a line can be has its row, and no row is for a kind that nothing reads."""
    assert {kind for _, kind, _ in KNOWN} | MADE_BY_MEMORY == set(builtin().kernel_lines)


@pytest.mark.parametrize(
    ("line", "device"),
    [
        (
            "mlx5_core 0000:4B:00.0: Detected insufficient power on the PCIe slot (27W).",
            "mlx5_core 0000:4b:00.0",
        ),
        ("infiniband rdmap0s6: Admin queue is closed", "efa 0000:00:06.0"),
        ("infiniband rdmap160s27: Admin queue is closed", "efa 0000:a0:1b.0"),
        ("efa 0000:a0:1b.0 rdmap160s27: Admin queue is closed", "efa 0000:a0:1b.0"),
        ("ena 0000:00:05.0 (unnamed net_device) (uninitialized): Trigger reset is on", "ena 0000:00:05.0"),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out", "mlx5_core eth0"),
        ("pcieport 10000:e0:06.0: AER: Corrected error received: 10000:e1:00.0", "pcieport 10000:e0:06.0"),
        ("EXT4-fs (nvme0n1p1): Remounting filesystem read-only", "disk nvme0"),
        ("Buffer I/O error on dev sdb1, logical block 7", "disk sdb"),
        ("I/O error, dev md127p1, sector 7 op 0x0", "disk md127"),
        ("nvme nvme0: Disabling device after reset failure: -19", "disk nvme0"),
        ("EDAC MC0: 1 CE memory read error on DIMM_A1 (channel:0)", "memory MC0 DIMM_A1"),
        ("INFO: task containerd-shim:931150 blocked for more than 122 seconds.", ""),
    ],
)
def test_devices_have_one_name(line: str, device: str) -> None:
    """Driver and PCI address, whole disk or memory module, however the line writes it; tasks have none."""
    assert line_of(line).device == device


def test_a_pcie_line_of_a_gpu_is_about_that_gpu() -> None:
    """The driver's name tells a GPU from other devices, so its verdict is the GPU's."""
    event = event_of(
        "nvidia 0000:63:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
    )
    assert (event.gpu, event.device, event.subsystem, event.scope) == (
        "0000:63:00.0",
        "",
        Subsystem.GPU,
        Scope.GPU,
    )


def test_a_network_device_without_rdma_is_the_hosts() -> None:
    """An ENA device carries the node's own network only."""
    subsystems = [
        event_of(f"{device}: Device isn't ready, can't reset device").subsystem
        for device in ("efa 0000:00:06.0", "ena 0000:00:05.0 ens5")
    ]
    assert subsystems == [Subsystem.RDMA, Subsystem.HOST]


def test_the_number_in_front_counts() -> None:
    """EDAC and the rate limit say how many a line stands for, and GSP's printing of one in many too."""
    assert event_of("EDAC MC0: 17 CE memory read error on A (channel:0)").occurrences == 17
    assert event_of("net_ratelimit: 41 callbacks suppressed").occurrences == 41
    gsp = fact_of(
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30)."
    )
    assert isinstance(gsp, GspFact)
    assert (gsp.address, gsp.printed_every) == ("0000:9b:00.0", 30)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 1 heartbeat 0",
        "NVRM: GPU0 _kgspRpcRecvPoll: GSP RM heartbeat timed out",
        "NVRM: kgspBootstrap: LibOS heartbeat timed out",
    ],
)
def test_silent_firmware_has_several_wordings(text: str) -> None:
    """Each driver generation words it in its own way."""
    assert isinstance(fact_of(text), GspFact)


def test_a_heartbeat_that_came_is_no_silence() -> None:
    """The debug line of the same function says the opposite."""
    assert fact_of("NVRM: _kgspIsHeartbeatTimedOut: Heartbeat not timed out, currentTimeMs 1") is None


def test_the_driver_introduces_gpus_and_says_goodbye() -> None:
    """Serial and UUID are kept for when NVML is dead, and an unload is not a loss."""
    uuid = fact_of("NVRM: GPU at PCI:0000:09:00: GPU-26fba6b2-9e52-006e-68db-4ce18382a5ea")
    serial = fact_of("NVRM: GPU 0000:09:00.0: GPU serial number is 1560000000001.")
    board = fact_of("NVRM: GPU Board Serial Number: 1560000000001")
    assert isinstance(uuid, GpuIdentityFact)
    assert isinstance(serial, GpuIdentityFact)
    assert isinstance(board, GpuIdentityFact)
    assert (uuid.address, uuid.uuid) == ("0000:09:00.0", "GPU-26fba6b2-9e52-006e-68db-4ce18382a5ea")
    assert (serial.address, serial.serial, board.address) == ("0000:09:00.0", "1560000000001", "")
    gone = fact_of("nvidia-nvlink: Unregistered Nvlink Core, major device number 239")
    assert isinstance(gone, DriverUnloadedFact)


FATAL = "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:00:03.0"
FAILED = "pcieport 0000:00:03.0: AER: device recovery failed"
RECOVERED = "pcieport 0000:00:03.0: AER: device recovery successful"
NO_HANDLER = "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)"


def test_a_failed_recovery_ends_a_device_only_after_a_fatal_error() -> None:
    """Recovery also fails, harmlessly, where a driver took no part in it."""
    kinds = [fact.kind for fact in facts_of(FATAL, NO_HANDLER, FAILED) if isinstance(fact, LineFact)]
    assert kinds[-1] == "pcie/recovery-failed-fatal"
    assert builtin().kernel_lines[kinds[-1]].fault_class is FaultClass.REBOOT_CURES
    for before in ((), (FATAL, RECOVERED)):
        last = facts_of(*before, FAILED)[-1]
        assert isinstance(last, LineFact)
        assert last.kind == "pcie/recovery-failed"
    late = facts_of(FATAL, FAILED, apart_us=61_000_000)[-1]
    assert isinstance(late, LineFact)
    assert late.kind == "pcie/recovery-failed"


HUNG = "INFO: task python3:4711 blocked for more than 122 seconds."
FRAME = " os_acquire_rwlock_write+0x35/0x40 [nvidia]"


def test_a_stuck_task_is_the_drivers_when_its_stack_says_so() -> None:
    """The frames that follow tell; foreign lines in between do not matter, and later ones no more."""
    stack = ("task:python3 state:D stack:0 pid:4711", "Call Trace:", " <TASK>", " schedule+0x5e/0xd0")
    stuck = facts_of(HUNG, *stack, "eth0: renamed from veth1", FRAME, FRAME)
    assert [type(fact) for fact in stuck] == [LineFact, HungTaskFact]
    assert isinstance(stuck[1], HungTaskFact)
    assert stuck[1].process == "python3"
    assert [type(fact) for fact in facts_of(FRAME)] == []
    assert [type(fact) for fact in facts_of(HUNG, " nfs_wait+0x1/0x2 [nfs]")] == [LineFact]
    assert [type(fact) for fact in facts_of(HUNG, FRAME, apart_us=6_000_000)] == [LineFact]


def test_a_processor_that_stays_stuck_is_a_fault_and_a_pause_of_all_is_not() -> None:
    """After a live migration each processor complains once; one that goes on complaining is stuck."""
    stuck = "watchdog: BUG: soft lockup - CPU#{} stuck for {}s! [python3:1]"
    scene = Scene()
    for cpu in range(96):
        scene.line(stuck.format(cpu, 22))
    assert scene.says(Subsystem.HOST)[0] == "Healthy"
    for number in range(5):
        scene.wait(25)
        scene.line(stuck.format(3, 22 + 25 * number))
    assert scene.says(Subsystem.HOST) == ("Faulty", "KernelStalled")
    assert scene.fault.fault_class is FaultClass.REBOOT_CURES


def test_corrected_errors_are_a_note_until_there_are_very_many() -> None:
    """What one line counts, counts; many block new work and end nobody's job."""
    scene = Scene()
    for _ in range(9):
        scene.line("EDAC MC0: 100 CE memory read error on A1 (channel:0 slot:0)")
    assert scene.says(Subsystem.HOST)[0] == "Healthy"
    scene.line("EDAC MC0: 100 CE memory read error on A1 (channel:0 slot:0)")
    assert scene.says(Subsystem.HOST) == ("Faulty", "HostMemoryError")
    assert scene.fault.fault_class is FaultClass.TRANSIENT


@pytest.mark.parametrize(("age_s", "verdict"), [(60, "Unknown"), (3600, "Healthy")])
def test_what_the_log_tells_of_long_ago_and_ended_by_itself_is_no_news(age_s: int, verdict: str) -> None:
    """An agent that starts for the first time does not block a node for a shortage of memory an hour ago."""
    killed = "Out of memory: Killed process 22222 (x) total-vm:1kB, anon-rss:1kB, file-rss:0kB"
    scene = Scene()
    scene.wait(10_000)
    scene.poll()
    printed = record(killed, 1, int((scene.uptime_s - age_s) * 1e6))
    scene.tell(msgspec.structs.replace(printed, replayed=True))
    assert scene.says(Subsystem.HOST)[0] == verdict


def test_a_port_speaks_for_the_device_below_it() -> None:
    """What the kernel prints under a port's name is about the device at the other end of its link."""
    scene = Scene()
    survey = scene.pci()
    gpus, efa = list(survey.gpus), list(survey.efa)
    gpus[3] = msgspec.structs.replace(gpus[3], port="0000:00:03.0")
    efa[0] = msgspec.structs.replace(efa[0], port="0000:00:04.0")
    scene.tell(msgspec.structs.replace(survey, gpus=tuple(gpus), efa=tuple(efa)))
    for line in (FATAL, FAILED, FATAL.replace("03.0", "04.0"), FATAL.replace("03.0", "05.0")):
        scene.line(line)
    found = {f.gpu.pci_address if f.gpu else f.device: (f.subsystem, f.code) for f in scene.status.faults}
    assert found == {
        gpus[3].address: (Subsystem.GPU, "pcie/recovery-failed-fatal"),
        f"efa {efa[0].address}": (Subsystem.RDMA, "pcie/fatal"),
        "pcieport 0000:00:05.0": (Subsystem.HOST, "pcie/fatal"),
    }


def test_one_broken_disk_is_one_fault() -> None:
    """Timeouts, the disk that was given up and its file system are one story with one root."""
    scene = Scene()
    scene.line("nvme nvme1: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10")
    scene.line("nvme nvme1: Disabling device after reset failure: -19")
    scene.line("XFS (nvme1n1): log I/O error -5")
    assert (scene.fault.code, scene.fault.device) == ("storage/nvme-disabled", "disk nvme1")
    assert scene.fault.fault_class is FaultClass.HARDWARE_GONE


@pytest.mark.parametrize("entry", builtin().kernel_lines.values(), ids=lambda entry: entry.kind)
def test_only_what_needs_it_may_disrupt(entry: object) -> None:
    """A kind that is only recorded cannot open a fault, and each fault can end."""
    row = builtin().kernel_lines[entry.kind]  # type: ignore[attr-defined]
    if row.role in (Role.INFORMATIONAL, Role.APPLICATION):
        assert row.fault_class in (FaultClass.TRANSIENT, FaultClass.APPLICATION)
    if row.fault_class is FaultClass.TRANSIENT:
        assert row.expiry_s > 0


_mangled = st.builds(
    lambda line, begin, end, more, again: line[begin:end] + more + line[end : end + again],
    st.sampled_from([line for _, _, line in rows()]),
    st.integers(0, 40),
    st.integers(0, 200),
    st.text(max_size=40),
    st.integers(0, 200),
)


@settings(deadline=None, max_examples=300)  # the machine may be busy
@given(st.lists(_mangled | st.text(max_size=300), max_size=8))
def test_no_log_is_too_strange(texts: list[str]) -> None:
    """Any lines in any order are read without an exception, and all that comes out is bounded."""
    memory = LineMemory()
    for number, text in enumerate(texts):
        printed = record(text, number, number)
        fact, memory = read(printed, memory)
        if fact is None:
            continue
        assert interesting(printed)
        assert any(literal.decode() in text for literal in LITERALS)
        assert len(fact.text) <= FACT_TEXT_MAX + len("NVRM: ")
        if isinstance(fact, LineFact):
            assert len(fact.device) <= DEVICE_MAX
            assert len(fact.subject) <= SUBJECT_MAX + DEVICE_MAX
            assert fact.occurrences >= 1
            assert kernel_lines.run(fact, builtin()) is not None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.literal.strip())
def test_a_hostile_line_costs_no_more_than_a_window_of_it(rule: object) -> None:
    """Each reader is fed 64 KiB of what it looks for, repeated and interleaved; it sees a bounded part."""
    literal = rule.literal  # type: ignore[attr-defined]
    words = rule.words or {literal}  # type: ignore[attr-defined]
    lines = [line for _, _, line in rows() if literal in line] or [literal]
    fillers = ("", " ", "a", ": ", "0000:00:00.0 ", "(", "0x0", ",", ".", "x" * 31 + " ")
    for word in words:
        for line in lines[:3]:
            for cut in (len(line) // 3, len(line) - 2, len(line)):
                for filler in fillers:
                    piece = f"{line[:cut]}{filler}"
                    text = f"{word} {piece * (KERNEL_LINE_BYTES_MAX // len(piece))}"
                    read(record(text), LineMemory())
                    assert len(window(text, literal)[0]) <= WINDOW_MAX if literal in text else True
