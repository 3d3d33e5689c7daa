"""One harness for each parser: a function of bytes that must return, whatever the bytes are.

Each also holds what its parser promises: bounds of what comes out, nothing unprintable in names.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from outlast.adapters.linux import processes, rdma
from outlast.adapters.linux.by_time import record_of, time_of
from outlast.adapters.linux.cgroup import owner_of
from outlast.adapters.linux.guarded_files import FolderText
from outlast.adapters.linux.host import LinuxHost
from outlast.adapters.linux.leaks import _sleeps_killed
from outlast.adapters.linux.machine import LinuxMachine
from outlast.adapters.linux.pci import SysfsPciBus
from outlast.adapters.linux.position import decode_position
from outlast.adapters.linux.recorded_log import RecordedLog, RecordedLogError
from outlast.adapters.linux.syslog_ring import _Picture
from outlast.adapters.linux.worker_process import WorkerEnded, WorkerGarbage, WorkerProcess
from outlast.adapters.nvml.reader import _decode
from outlast.health.catalogue import builtin
from outlast.health.dcgm_diagnosis import diagnose
from outlast.health.replay.line import read_line
from outlast.health.replay.replay import Replay
from outlast.health.sources import kernel_text
from outlast.health.sources.dcgm_diag import diag_report
from outlast.health.sources.dcgm_exporter import ExporterPageReader
from outlast.health.sources.dcgm_health import health_report
from outlast.health.sources.dcgm_output import versions
from outlast.health.sources.kernel_record import LineSplitter, parse_record
from outlast.health.sources.kernel_text import LineMemory
from outlast.health.sources.xid import nvlink
from outlast.health.verdict import Moment, Settings, judge, restore, to_bytes
from outlast.health.verdict.memory import STATE_BYTES_MAX
from outlast.model.observation import KERNEL_LINE_BYTES_MAX, KernelLogCaughtUp, KernelRecord
from outlast.model.plain_text import plain
from outlast.ports.node import Wanted
from tests.fuzz.seeds import dcgm, exporter, files_of_proc, frames, kernel_lines, logs, records, states

NOW = Moment(datetime(2026, 1, 1, tzinfo=UTC), 10_000.0)
BOOT = "0d1cfb9c-4d0e-4a36-9d38-7d0a4c1f7a01"
LINES_MAX = 200
"""Of one input: a longer one only takes longer."""


class Target(NamedTuple):
    """What to call, and where to begin."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


def kernel_record(data: bytes) -> None:
    """A record of /dev/kmsg, as one read and out of a stream cut anywhere."""
    record = parse_record(data)
    if record is not None:
        assert len(record.text) <= KERNEL_LINE_BYTES_MAX
        assert 0 <= record.sequence < 2**63
    splitter = LineSplitter(64)
    for start in range(0, min(len(data), 4096), 17):
        for line in splitter.feed(data[start : start + 17]):
            assert len(line) <= 64


def kernel_fact(data: bytes) -> None:
    """The lines of the kernel, one after the other with the memory between them."""
    memory = LineMemory()
    for number, line in enumerate(data.split(b"\n")[:LINES_MAX]):
        text = line.decode("utf-8", "replace")
        record = KernelRecord(sequence=number, timestamp_us=number, priority=4, text=text)
        kernel_text.interesting(record)
        fact, memory = kernel_text.read(record, memory)
        if fact is not None:
            msgspec.json.encode(fact.text)


def kernel_verdict(data: bytes) -> None:
    """The same lines judged, saved and restored: bounded, and the same after it."""
    state, _ = restore(None, BOOT, "", Settings(), NOW)
    found = [
        record
        for number, line in enumerate(data.split(b"\n")[:LINES_MAX], 1)
        if (record := parse_record(b"4,%d,%d,c;" % (number, number * 1000) + line)) is not None
    ]
    answer = judge(state, [KernelLogCaughtUp(), *found], NOW, builtin())
    content = to_bytes(answer.state)
    assert len(content) <= STATE_BYTES_MAX
    again, problem = restore(content, BOOT, "", Settings(), NOW)
    assert problem == ""
    assert [f.id for f in again.faults] == [f.id for f in answer.state.faults]


def nvlink_words(data: bytes) -> None:
    """What stands behind an Xid 144-150."""
    report = nvlink(data.decode("utf-8", "replace"))
    assert len(report.words) <= 8


def log_line(data: bytes) -> None:
    """A line of any log format, strictly and not."""
    for line in data.split(b"\n")[:LINES_MAX]:
        for strict in (False, True):
            found = read_line(line, strict=strict)
            record_of(found, max(0, time_of(found, 0)), replayed=False)


def recorded_log(data: bytes) -> None:
    """A file of a recorded log, packed or not, through the whole of `outlast replay`."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder) / "log"
        path.write_bytes(data)
        replay = Replay(builtin())
        try:
            log = RecordedLog(path)
        except RecordedLogError:
            return
        replay.begin_file("log")
        for number, piece in enumerate(log.pieces()):
            if number > 4:
                break
            replay.feed(piece[: 64 * 1024])
        replay.end_file(log.note)
        replay.report()
        log.close()


def syslog_ring(data: bytes) -> None:
    """Two pictures of the ring."""
    picture = _Picture(None)
    first, _, second = data.partition(b"\xff")
    for content in (first, second, first + second):
        for line in picture.new_lines(content)[0]:
            read_line(line)


def dcgm_health(data: bytes) -> None:
    """`dcgmi health`, whatever it exits with, and its version."""
    for code in (0, 1, None):
        survey = health_report(data, code)
        assert survey.problem is not None or survey.overall
    versions(data)


def dcgm_diag(data: bytes) -> None:
    """`dcgmi diag` and what is made of it."""
    for code in (0, 226, None):
        diagnose(diag_report(data, code), builtin())


def dcgm_exporter(data: bytes) -> None:
    """The exporter's page, cut anywhere."""
    reader = ExporterPageReader()
    for start in range(0, len(data), 97):
        reader.feed(data[start : start + 97])
    page = reader.page()
    assert len(page.gpus) <= 4096


def nvml_frames(data: bytes) -> None:
    """What a worker may send: frames, and the answers in them."""
    asyncio.run(_frames(data))
    try:
        _decode(data)
    except WorkerGarbage:
        return


async def _frames(data: bytes) -> None:
    import os

    worker = WorkerProcess.__new__(WorkerProcess)
    worker._buffer = b""
    worker._output, write = os.pipe()
    try:
        os.write(write, data[:4096])
        os.close(write)
        for _ in range(LINES_MAX):
            request_id, payload = await worker.frame()
            assert 0 <= request_id < 2**32
            _decode(payload)
    except (WorkerEnded, WorkerGarbage):
        return
    finally:
        os.close(worker._output)


def proc_files(data: bytes) -> None:
    """stat, status and cgroup of a process."""
    text = data.decode("utf-8", "replace")
    processes._parsed(text)
    assert plain(text).isprintable()
    _sleeps_killed(text)
    owner = owner_of(1, text)
    assert len(owner.pod_uid) in (0, 32, 36)


def host_files(data: bytes) -> None:
    """Mounts, counts and controllers of a machine, and who it is."""
    mounts, _, rest = data.partition(b"\xff")
    first, _, second = rest.partition(b"\xff")
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        root = Path(folder)
        _fill(
            root,
            {
                "proc/1/mountinfo": mounts,
                "proc/1/net/stat/nf_conntrack": first,
                "proc/sys/net/netfilter/nf_conntrack_max": second,
                "proc/sys/fs/file-nr": first,
                "proc/sys/kernel/random/boot_id": second,
                "sys/class/nvme/nvme0/state": second,
                "sys/devices/virtual/dmi/id/sys_vendor": b"Amazon EC2",
                "sys/devices/virtual/dmi/id/product_name": first,
            },
        )
        asyncio.run(LinuxHost(root, root / "proc").survey(Wanted()))
        LinuxMachine(root).facts()


def sysfs_pci(data: bytes) -> None:
    """The files of a PCI device."""
    parts = data.split(b"\xff")
    names = ("class", "device", "current_link_width", "max_link_width", "current_link_speed", "config")
    names += ("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal", "sriov_numvfs")
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        root = Path(folder)
        device = "sys/bus/pci/devices/0000:10:1c.0"
        files = {f"{device}/{name}": parts[number % len(parts)] for number, name in enumerate(names)}
        _fill(root, {**files, f"{device}/vendor": b"0x10de\n", "sys/module/nvidia/version": parts[0]})
        SysfsPciBus(root).survey()


def sysfs_rdma(data: bytes) -> None:
    """The files of an RDMA port and of a network interface."""
    text = data.decode("utf-8", "replace")
    names = ("state", "phys_state", "rate", "link_layer", "counters/symbol_error", "hw_counters/rx_drops")
    port = rdma._port(1, FolderText(texts={f"ports/1/{name}": text for name in names}))
    assert all(0 <= value < 2**64 for value in port.counters.values())
    rdma._interface("eth0", FolderText(texts={f"device/net/eth0/{name}": text for name in ("flags", "mtu")}))
    try:
        msgspec.json.decode(data, type=FolderText)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return


def saved_state(data: bytes) -> None:
    """A state file: what can be read of it is used, judged with and saved again."""
    state, _ = restore(data, BOOT, "", Settings(), NOW)
    answer = judge(state, [KernelLogCaughtUp()], NOW, builtin())
    assert len(to_bytes(answer.state)) <= 64 * 1024
    decode_position(data)


def _fill(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


TARGETS: dict[str, Target] = {
    "kernel_record": Target(kernel_record, records),
    "kernel_fact": Target(kernel_fact, kernel_lines),
    "kernel_verdict": Target(kernel_verdict, kernel_lines),
    "nvlink_words": Target(nvlink_words, kernel_lines),
    "log_line": Target(log_line, logs),
    "recorded_log": Target(recorded_log, logs),
    "syslog_ring": Target(syslog_ring, logs),
    "dcgm_health": Target(dcgm_health, dcgm),
    "dcgm_diag": Target(dcgm_diag, dcgm),
    "dcgm_exporter": Target(dcgm_exporter, exporter),
    "nvml_frames": Target(nvml_frames, frames),
    "proc_files": Target(proc_files, files_of_proc),
    "host_files": Target(host_files, files_of_proc),
    "sysfs_pci": Target(sysfs_pci, files_of_proc),
    "sysfs_rdma": Target(sysfs_rdma, files_of_proc),
    "saved_state": Target(saved_state, states),
}
