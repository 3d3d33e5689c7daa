"""No text of a file, however strange, raises in a reader: it is a value or it is none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.adapters.linux import processes, rdma
from outlast.adapters.linux.cgroup import owner_of
from outlast.adapters.linux.guarded_files import FolderText
from outlast.adapters.linux.host import LinuxHost
from outlast.adapters.linux.pci_errors import read_aer
from outlast.model.observation import HostSurvey
from outlast.model.plain_text import plain
from outlast.ports.node import Wanted

CONTENT = st.binary(max_size=600) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))
WORDS = st.text(max_size=300) | st.sampled_from(["4: ACTIVE", "400 Gb/sec (4X NDR)", "9" * 300, "inf Gb/sec"])
MOUNT = st.lists(
    st.sampled_from(["22", "1", "259:1", "/", "rw", "ro", "-", "ext4", "/dev/x", "\\040", "", " ", "\n"])
    | st.text(max_size=8),
    max_size=30,
).map(" ".join)


@settings(deadline=None)
@given(WORDS)
def test_a_port_of_any_text(text: str) -> None:
    """State, rate, layer and counters."""
    names = ("state", "phys_state", "rate", "link_layer", "counters/symbol_error", "hw_counters/rx_drops")
    port = rdma._port(1, FolderText(texts={f"ports/1/{name}": text for name in names}))
    assert all(0 <= value < 2**64 for value in port.counters.values())
    assert port.rate_gbps is None or 0 < port.rate_gbps < 100_000
    rdma._interface("eth0", FolderText(texts={"device/net/eth0/flags": text}))


@settings(deadline=None)
@given(st.text(max_size=400))
def test_a_process_of_any_text(text: str) -> None:
    """Its line of `stat`, its name, its cgroup."""
    processes._parsed(text)
    processes._parsed(f"12 ({text}) D {text}")
    assert plain(text).isprintable()
    owner = owner_of(1, text)
    assert len(owner.pod_uid) in (0, 32, 36)
    assert len(owner.container_id) in (0, 64)


@settings(max_examples=60, deadline=None)
@given(CONTENT, CONTENT, MOUNT)
def test_a_machine_of_any_bytes(first: bytes, second: bytes, mounts: str) -> None:
    """Error counts, mounts, tables and controllers."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for path, content in (
            ("proc/1/mountinfo", mounts.encode("utf-8", "replace")),
            ("proc/1/net/stat/nf_conntrack", first),
            ("proc/sys/net/netfilter/nf_conntrack_max", second),
            ("proc/sys/fs/file-nr", first),
            ("sys/class/nvme/nvme0/state", second),
            ("aer_dev_correctable", first),
            ("aer_dev_nonfatal", second),
            ("aer_dev_fatal", first),
        ):
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        survey = asyncio.run(LinuxHost(root, root / "proc").survey(Wanted()))
        totals = read_aer(str(root))
    assert isinstance(survey, HostSurvey)
    assert survey.filesystems is not None
    assert totals is None or min(totals.correctable, totals.nonfatal, totals.fatal) >= 0
