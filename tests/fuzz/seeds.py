"""Where a fuzz run begins: what real machines printed, and small valid inputs of each format."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from outlast.adapters.nvml.worker import HEADER, MAGIC
from outlast.health.catalogue import builtin
from outlast.health.sources.kernel_record import parse_record
from outlast.health.verdict import Moment, Settings, judge, restore, to_bytes
from outlast.model.observation import GpuReading

DATA = Path(__file__).parents[1] / "data"
BOOT = "0d1cfb9c-4d0e-4a36-9d38-7d0a4c1f7a01"


def _samples() -> list[bytes]:
    rows = (DATA / "kmsg-samples.tsv").read_bytes().splitlines()[1:]
    return [row.split(b"\t", 3)[3] for row in rows]


def records() -> list[bytes]:
    """As /dev/kmsg gives them."""
    return [
        line if line[:1].isdigit() and b";" in line else b"4,%d,%d,c;" % (n, n) + line
        for n, line in enumerate(_samples())
    ] + [b"6,1,2,-,caller=T1,more;text \\x0a\\xe2\n SUBSYSTEM=pci\n DEVICE=+pci:0000:10:1c.0"]


def kernel_lines() -> list[bytes]:
    """One line each, and all of some kinds together."""
    known = [row.split(b"\t", 1)[1] for row in (DATA / "kernel-lines.tsv").read_bytes().splitlines()[1:]]
    lines = [*_samples(), *known]
    return [*lines, *(b"\n".join(lines[start : start + 12]) for start in range(0, len(lines), 12))]


def logs() -> list[bytes]:
    """The formats that logs have."""
    xid = "NVRM: Xid (PCI:0000:10:1c): 79, GPU has fallen off the bus."
    entry = {"MESSAGE": xid, "_TRANSPORT": "kernel", "__MONOTONIC_TIMESTAMP": "1234", "PRIORITY": "4"}
    lines = [
        f"[ 1234.567890] {xid}",
        f"[ 1234.567890][  T12] {xid}",
        f"<4>[ 1234.567890] {xid}",
        f"[Mon Nov 30 12:00:00 2026] {xid}",
        f"[  +0.000001] {xid}",
        f"2026-11-30T12:00:00,123456+00:00 {xid}",
        f"Nov 30 12:00:00 node-1 kernel: [ 1234.567890] {xid}",
        f"2026-11-30T12:00:00.123456+00:00 node-1 kernel: {xid}",
        f"4,1227,1234567,c;{xid}",
        "-- Boot 0123456789abcdef0123456789abcdef --",
        json.dumps(entry),
        json.dumps({**entry, "MESSAGE": list(xid.encode())}),
        json.dumps({**entry, "MESSAGE": None}),
    ]
    whole = "\n".join(lines).encode()
    return [*(line.encode() for line in lines), whole, gzip.compress(whole), whole.decode().encode("utf-16")]


def dcgm() -> list[bytes]:
    """Recorded answers of dcgmi."""
    return [
        path.read_bytes() for path in sorted((DATA / "dcgm").iterdir()) if path.suffix in (".json", ".txt")
    ]


def exporter() -> list[bytes]:
    """Recorded pages."""
    return [path.read_bytes() for path in sorted((DATA / "dcgm").glob("*.prom"))]


def frames() -> list[bytes]:
    """Answers of a worker, framed and bare."""
    payloads = [
        b'{"driver_version":"580.95.05"}',
        b'{"done":true}',
        b'{"error":9,"name":"DRIVER_NOT_LOADED"}',
    ]
    payloads.append(b'{"gpu":' + msgspec.json.encode(GpuReading(pci_address="0000:10:1c.0")) + b"}")
    framed = [HEADER.pack(MAGIC, len(payload), n) + payload for n, payload in enumerate(payloads)]
    return [*payloads, *framed, b"".join(framed)]


def files_of_proc() -> list[bytes]:
    """Small files of /proc and /sys; 0xff stands between several."""
    stat = b"4711 (nvidia-smi) D 1 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 12345 1 1 0 0 0 0 0"
    mounts = b"22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw,errors=remount-ro\n"
    return [
        stat,
        b"Name:\tx\nState:\tD (disk sleep)\nSigPnd:\t0000000000000100\nShdPnd:\t0\n",
        b"0::/kubepods.slice/kubepods-pod0d1cfb9c_4d0e_4a36_9d38_7d0a4c1f7a01.slice/cri-containerd-"
        + b"a" * 64,
        mounts + b"\xff" + b"entries searched\n00000010 00000001\n" + b"\xff" + b"262144\n",
        b"4: ACTIVE",
        b"400 Gb/sec (4X NDR)",
        b"0x030200\xff0x2330\xff16\xff16\xff32.0 GT/s PCIe\xff" + bytes(64),
        b"RxErr 0\nBadTLP 3\nTOTAL_ERR_COR 3\n",
        b'{"texts":{"ports/1/state":"4: ACTIVE"},"errors":{"x":22}}',
        b"9" * 5000,
        "²".encode(),
    ]


def states() -> list[bytes]:
    """What an agent saves."""
    now = Moment(datetime(2026, 1, 1, tzinfo=UTC), 10_000.0)
    state, _ = restore(None, BOOT, "", Settings(), now)
    lines = [parse_record(b"4,%d,%d,c;" % (n, n * 1000) + line) for n, line in enumerate(_samples(), 1)]
    found = [record for record in lines if record is not None]
    several = [judge(state, found[start : start + 10], now, builtin()).state for start in range(0, 60, 10)]
    position = b'{"boot_id":"0d1cfb9c","sequence":12}\n'
    return [to_bytes(state), *(to_bytes(one) for one in several), position, b'{"version":99,"faults":[{}]}']
