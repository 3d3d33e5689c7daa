"""Kernel records from bytes to facts on one core, in a mix as a busy Kubernetes node prints it.

Each round parses the bytes of /dev/kmsg, asks whether the record says anything, and reads it where it
does. One line in two hundred is of a kind we know; the other figures show what each half costs.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from statistics import median

from benchmarks.report import Row, Section
from outlast.health.sources.kernel_record import parse_record
from outlast.health.sources.kernel_text import LineMemory, interesting, read
from outlast.model.observation import KernelRecord

LINES = 200_000
ROUNDS = 5
GOAL = 200_000
OURS_EVERY = 200
SEED = 20261130

FOREIGN = (
    "6|cni0: port {n}(veth{x}) entered blocking state",
    "6|cni0: port {n}(veth{x}) entered disabled state",
    "6|device veth{x} entered promiscuous mode",
    "6|cni0: port {n}(veth{x}) entered forwarding state",
    "6|IPv6: ADDRCONF(NETDEV_CHANGE): veth{x}: link becomes ready",
    "6|eth0: renamed from veth{x}",
    '5|audit: type=1400 audit(1785000000.{n}:{n}): apparmor="STATUS" operation="profile_load" '
    'profile="unconfined" name="cri-containerd.apparmor.d" pid={n} comm="apparmor_parser"',
    "5|audit: type=1325 audit(1785000000.{n}:{n}): table=nat:{n} family=2 entries=0 op=nft_register_rule "
    'pid={n} subj=unconfined comm="iptables-restor"',
    "30|systemd[1]: Started libcontainer container {x}{x}{x}{x}{x}{x}.",
    "30|systemd[1]: cri-containerd-{x}{x}{x}{x}.scope: Deactivated successfully.",
    "30|systemd[1]: cri-containerd-{x}{x}{x}{x}.scope: Consumed {n}.{n}s CPU time.",
    "30|systemd[1]: var-lib-kubelet-pods-{x}\\x2d{x}-volumes-kubernetes.io\\x7eprojected.mount: Succeeded.",
    '30|kubelet[{n}]: I0730 12:00:00.{n} {n} kubelet.go:2453] "SyncLoop (PLEG): event" pod="ns/p-{x}"',
    "6|EXT4-fs (nvme1n1): mounted filesystem {x}-{x} r/w with ordered data mode. Quota mode: none.",
    "6|EXT4-fs (nvme1n1): unmounting filesystem {x}-{x}.",
    "6|XFS (dm-{n}): Mounting V5 Filesystem {x}-{x}",
    "6|XFS (dm-{n}): Ending clean mount",
    "4|TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:{n}. Sending cookies.",
    "6|overlayfs: fs on '/var/lib/containerd/{x}' does not support file handles, falling back to xino=off.",
    "4|python3[{n}]: segfault at 0 ip 00007f{x} sp 00007f{x} error 4 in libc.so.6[7f{x}+195000]",
    "6|nvidia-uvm: Loaded the UVM driver, major device number {n}.",
    "3|perf: interrupt took too long ({n} > {n}), lowering kernel.perf_event_max_sample_rate to {n}",
)
"""Priority and text of what is none of our business, most common first."""

OURS = (
    "4|NVRM: Xid (PCI:0000:{b}:00): 31, pid={n}, name=python3, Ch 0000000a, intr 00000000. MMU Fault: ENGINE",
    "4|NVRM: Xid (PCI:0000:{b}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "6|mlx5_core 0000:{b}:00.0 ens{n}np0: Link down",
    "3|mlx5_core 0000:{b}:00.0: mlx5_cmd_out_err:838:(pid {n}): ACCESS_REG(0x805) op_mod(0x1) failed, status",
    "4|pcieport 0000:{b}:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "6|EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#2_DIMM#0 (channel:2 slot:0 page:0x{n})",
    "3|INFO: task containerd-shim:{n} blocked for more than 122 seconds.",
    "3|Memory cgroup out of memory: Killed process {n} (python3) total-vm:3500000kB, anon-rss:520000kB",
)


def mix(lines: int = LINES, seed: int = SEED) -> list[bytes]:
    """Records as /dev/kmsg gives them; the same for the same seed."""
    chance = random.Random(seed)
    made = []
    ours = itertools.cycle(OURS)
    # The first patterns stand for most of a real log.
    weights = [1 / (1 + position / 6) for position in range(len(FOREIGN))]
    foreign = chance.choices(FOREIGN, weights, k=lines)
    for number, pattern in enumerate(foreign):
        chosen = next(ours) if number % OURS_EVERY == 0 else pattern
        priority, _, text = chosen.partition("|")
        filled = text.format(
            n=chance.randrange(1, 5000), x=f"{chance.getrandbits(32):08x}", b=f"{number % 200:02x}"
        )
        made.append(f"{priority},{number},{number * 100},-;{filled}\n".encode())
    return made


def _per_second(work: Callable[[], int], lines: int) -> float:
    """Median of the rounds, in processor time, so that other work on the machine counts little."""
    speeds = []
    for _ in range(ROUNDS):
        begun_s = time.process_time()
        work()
        speeds.append(lines / (time.process_time() - begun_s))
    return median(speeds)


def _records(data: list[bytes]) -> list[KernelRecord]:
    return [record for line in data if (record := parse_record(line)) is not None]


def _facts(data: list[bytes]) -> int:
    memory, facts = LineMemory(), 0
    for line in data:
        record = parse_record(line)
        if record is not None and interesting(record):
            fact, memory = read(record, memory)
            facts += fact is not None
    return facts


def _interesting(records: list[KernelRecord]) -> int:
    return sum(interesting(record) for record in records)


def _read(records: list[KernelRecord]) -> int:
    memory, facts = LineMemory(), 0
    for record in records:
        fact, memory = read(record, memory)
        facts += fact is not None
    return facts


def run() -> Section:
    """Measure each half and the whole."""
    data = mix()
    records = _records(data)
    ours = [record for record in records if interesting(record)]
    found = _facts(data)
    expected = -(-LINES // OURS_EVERY)
    if len(records) != LINES or found != expected:
        raise RuntimeError(
            f"{len(records)} records and {found} facts of {LINES} lines; expected {expected} facts"
        )
    whole = _per_second(lambda: _facts(data), LINES)
    parsed = _per_second(lambda: len(_records(data)), LINES)
    asked = _per_second(lambda: _interesting(records), LINES)
    read_ = _per_second(lambda: _read(ours * 10), len(ours) * 10)
    megabytes = sum(map(len, data)) / LINES * whole / 1e6
    rows = (
        Row(
            "bytes to facts",
            f"{whole:,.0f} lines/s",
            f"> {GOAL:,} lines/s",
            whole > GOAL,
            f"{megabytes:.0f} MB/s",
        ),
        Row("bytes to records alone", f"{parsed:,.0f} lines/s"),
        Row(
            "is a record interesting",
            f"{asked:,.0f} lines/s",
            note=f"{len(ours) / LINES:.1%} of the lines are",
        ),
        Row("reading those that are", f"{read_:,.0f} lines/s", note=f"{found:,} facts in {LINES:,} lines"),
    )
    return Section(
        name="parser",
        title="Kernel log: bytes to facts",
        method=(
            f"{LINES:,} records in /dev/kmsg format, as a busy Kubernetes node prints them (bridges, audit, "
            f"systemd, kubelet, mounts); one in {OURS_EVERY} is of a kind we know. One core, processor time, "
            f"median of {ROUNDS} rounds."
        ),
        rows=rows,
    )
