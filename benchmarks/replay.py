"""`outlast replay` on a gigabyte of a node's syslog, on kernel lines only, and on a flood of one Xid."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Row, Section

GIGABYTE = 1_000_000_000
KERNEL_BYTES = 200_000_000
FLOOD_LINES = 1_000_000
SECONDS_MAX = 20.0
FLOOD_PER_S_MIN = 50_000
BLOCK_LINES = 20_000
KERNEL_EVERY = 50
FAULT_EVERY_BLOCKS = 40

_LAUNCHER = """
import json, os, sys, time
begun = time.monotonic()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], dict(os.environ), file_actions=quiet)
_, status, usage = os.wait4(pid, 0)
took_s = time.monotonic() - begun
used = [usage.ru_utime + usage.ru_stime, took_s, usage.ru_maxrss * 1024]
print(json.dumps([*used, os.waitstatus_to_exitcode(status)]))
"""
"""A small process in between: the peak memory of a child begins with that of its parent."""

_APPS = (
    "systemd[1]: Started Session {} of user root.",
    "kubelet[2211]: I1130 12:00:00.000000 2211 kubelet_pods.go:{}] volume mounted for nvme-backed claim",
    'containerd[1800]: time="2026-11-30T12:00:00Z" level=info msg="StopContainer for {} with timeout 30 s"',
    "sshd[991]: Accepted publickey for ops from 10.0.0.{} port 51122 ssh2",
    "CRON[7{}]: (root) CMD (/usr/lib/sa/sa1 1 1)",
)
_KERNEL = (
    'kernel: [{:5d}.{:06d}] audit: type=1400 apparmor="STATUS" operation="profile_load"',
    "kernel: [{:5d}.{:06d}] cni0: port 3(veth2f) entered blocking state",
    "kernel: [{:5d}.{:06d}] usb 1-1: new high-speed USB device number 4",
)


def _syslog() -> Iterator[bytes]:
    size, block, second = 0, 0, 100
    while size < GIGABYTE:
        lines = []
        for index in range(BLOCK_LINES):
            second += index % 100 == 0
            text = _APPS[index % len(_APPS)].format(index)
            if index % KERNEL_EVERY == 0:
                text = _KERNEL[index // KERNEL_EVERY % len(_KERNEL)].format(second, index)
            lines.append(f"Nov 30 12:{second // 60 % 60:02d}:{second % 60:02d} gpu-17 {text}\n")
        if block % FAULT_EVERY_BLOCKS == 0:
            gpu = block // FAULT_EVERY_BLOCKS % 8
            lines.append(
                f"Nov 30 12:00:00 gpu-17 kernel: [{second:5d}.000000] NVRM: Xid (PCI:0000:{gpu:02x}:00): "
                "48, pid=77, name=python3, DBE (double bit error) ECC Error\n"
            )
        data = "".join(lines).encode()
        yield data
        size, block = size + len(data), block + 1


def _kernel_only() -> Iterator[bytes]:
    size, second = 0, 100
    while size < KERNEL_BYTES:
        lines = []
        for index in range(BLOCK_LINES):
            second += index % 100 == 0
            lines.append(
                f"[{second:5d}.{index:06d}]" + _KERNEL[index % 3][len("kernel: [{:5d}.{:06d}]") :] + "\n"
            )
        data = "".join(lines).encode()
        yield data
        size += len(data)


def _flood() -> Iterator[bytes]:
    text = "NVRM: Xid (PCI:0000:02:00): 13, pid={}, name=python3, Graphics Exception: ESR 0x57c730=0xc04000b"
    for start in range(0, FLOOD_LINES, BLOCK_LINES):
        lines = (
            f"[{100 + i // 10_000:5d}.{i % 10_000 * 100:06d}] {text.format(4000 + i % 9)}\n"
            for i in range(start, start + BLOCK_LINES)
        )
        yield "".join(lines).encode()


def _measured(pieces: Iterator[bytes], folder: Path) -> tuple[int, float, float, int, int]:
    """Size, processor seconds, seconds, peak memory in bytes and exit code of one run of the command."""
    path = folder / "log"
    with path.open("wb") as file:
        size = sum(file.write(piece) for piece in pieces)
    run = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            _LAUNCHER,
            sys.executable,
            "-m",
            "outlast",
            "replay",
            "--json",
            str(path),
        ],
        stdout=subprocess.PIPE,
        check=True,
    )
    path.unlink()
    cpu_s, took_s, memory_bytes, code = json.loads(run.stdout)
    return size, cpu_s, took_s, memory_bytes, code


def run() -> Section:
    """Measure; each log is written to a temporary folder first and deleted after."""
    with tempfile.TemporaryDirectory(prefix="outlast-bench-") as name:
        folder = Path(name)
        size, cpu_s, took_s, memory, code = _measured(_syslog(), folder)
        if code != 1:
            raise RuntimeError(f"outlast replay ended with {code} where it should have found faults")
        kernel_size, kernel_s, _, kernel_memory, _ = _measured(_kernel_only(), folder)
        _, flood_s, _, flood_memory, _ = _measured(_flood(), folder)
    per_s = FLOOD_LINES / flood_s
    return Section(
        name="replay",
        title="Replay of recorded logs",
        method=(
            "`outlast replay --json` as a process of its own, start included, on files in the page cache. "
            f"The syslog has one kernel line in {KERNEL_EVERY}; the flood is one Xid of one GPU, 10,000 "
            "lines in each second of the log. Processor time, because others may share the machine."
        ),
        rows=(
            Row(
                "1 GB of syslog, one core",
                f"{cpu_s:.1f} s ({size / 1e6 / cpu_s:.0f} MB/s; {took_s:.1f} s by the clock)",
                f"< {SECONDS_MAX:.0f} s",
                cpu_s < SECONDS_MAX,
            ),
            Row("peak memory on it", f"{memory / 2**20:.0f} MiB", note="the same for any size"),
            Row(
                f"{kernel_size / 1e6:.0f} MB of kernel lines only",
                f"{kernel_size / 1e6 / kernel_s:.0f} MB/s, {kernel_memory / 2**20:.0f} MiB",
            ),
            Row(
                "flood of one Xid",
                f"{per_s:,.0f} lines/s, {flood_memory / 2**20:.0f} MiB",
                f"> {FLOOD_PER_S_MIN:,} lines/s",
                per_s > FLOOD_PER_S_MIN,
            ),
        ),
    )
