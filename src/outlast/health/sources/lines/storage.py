"""Disks and file systems: controllers that time out or are given up, failed reads, file systems that stopped.

Formats of drivers/nvme/host, block/, fs/buffer.c, fs/ext4, fs/xfs, fs/btrfs. What goes read-only on a
network, loop or mapped device says nothing about a disk of this machine, and neither does one on a disk
without partitions: that is how volumes of a cluster come and go.
"""

from __future__ import annotations

import re
from typing import Final

from outlast.health.sources.lines import START, Line, rule

REMOVABLE: Final = "storage/attached-removable"
FIXED: Final = "storage/attached"
"""Only remembered: no line of the catalogue."""
_WHEN_REMOVABLE: Final = {
    "storage/read-only": "storage/read-only-volume",
    "storage/fs-error": "storage/io-error-passing",
    "storage/io-error": "storage/io-error-passing",
}
_NAME: Final = r"[A-Za-z][\w!.-]{0,31}"
_NVME: Final = re.compile(rf"{START}nvme (?P<disk>nvme\d{{1,4}}): (?P<said>.{{1,160}})")
_GIVEN_UP: Final = re.compile(
    r"(?:Disabling device after reset failure|Removing after probe failure(?! status: (?:0|-16)(?!\d)))\b"
)
"""Status 0 and -16 (busy): it was being removed already, as a volume that is detached."""
_DOWN: Final = re.compile(
    r"(?:controller is down; will reset|Device not ready; aborting|frozen state error detected"
    r"|Device shutdown incomplete)"
)
_TIMEOUT: Final = re.compile(r"I/O (?:tag )?\d{1,6} .{0,80}?QID \d{1,5} timeout\b")
_NAMESPACE: Final = re.compile(rf"{START}(?P<disk>nvme\d{{1,4}}n\d{{1,4}}): .{{1,100}}?I/O Error \(sct 0x")
_READ_ONLY: Final = re.compile(
    rf"{START}(?P<fs>[A-Z][A-Za-z0-9]{{1,9}}(?:-fs)?)(?: \((?P<disk>{_NAME})\))?: "
    r"Remounting filesystem read-only"
)
_EXT4_ERROR: Final = re.compile(rf"{START}EXT[234]-fs error \(device (?P<disk>{_NAME})\)")
_XFS: Final = re.compile(rf"{START}XFS \((?P<disk>{_NAME})\): (?P<said>.{{1,200}})")
_XFS_STOPPED: Final = re.compile(
    r"(?:xfs_do_force_shutdown\(0x(?!4\))|.{0,120}?[Ss]hutting down filesystem"
    r"|Filesystem has been shut down(?!.{0,80}\(0x4\))|log I/O error)"
)
_XFS_ERROR: Final = re.compile(
    r"(?:[Mm]etadata I/O [Ee]rror|Metadata (?:corruption|CRC error) detected|Internal error )"
)
_XFS_USER: Final = re.compile(r"User initiated shutdown")
_BTRFS: Final = re.compile(
    rf"{START}BTRFS:? (?:info|warning|error|critical)? ?\(device (?P<disk>{_NAME})(?::? state \w{{1,8}})?\)"
    r"(?P<said>.{1,160})"
)
_BTRFS_ERROR: Final = re.compile(r"(?:.{0,80}? errno=-\d|: bdev .{1,48} errs: |: error (?:writing|while))")
_IO: Final = re.compile(
    rf"{START}(?:Buffer I/O error on dev(?:ice)? (?P<buffered>{_NAME}), "
    r"|(?:blk_update_request: |print_req_error: |end_request: )?"
    rf"(?:I/O error|critical (?:medium|target|nexus) error), dev (?P<disk>{_NAME}), sector \d)"
)
_SUPERBLOCK: Final = re.compile(
    rf"{START}EXT[234]-fs \((?P<disk>{_NAME})\): (?:previous )?I/O error (?:while writing|to) superblock"
)
_RAID: Final = re.compile(
    # Arrays without spare data are printed without a colon between their kind and their name.
    rf"{START}(?:md: )?md/(?:raid\d{{0,2}}|linear):?(?P<array>md[\w-]{{1,16}}): "
    rf"Disk failure on (?P<member>{_NAME})(?: detected)?, (?P<end>failing array)?"
)
_NO_PATH: Final = re.compile(
    rf"{START}(?:block (?P<disk>nvme\w{{1,24}}): no (?:available|usable) path - (?:failing|requeuing) I/O"
    r"|attempt to access beyond end of device)"
)
_WHOLE: Final = re.compile(r"(nvme\d+)(?:c\d+)?n\d+(?:p\d+)?|(?:((?:s|v|xv|h)d[a-z]{1,3})|(md\d+)p?)\d*")
_OWN: Final = re.compile(r"nvme\d+(?:c\d+)?n\d+p\d+|(?:s|v|xv|h)d[a-z]{1,3}\d+|md\d+(?:p\d+)?")
"""What the machine itself was installed on: partitions and arrays."""
_ATTACHED: Final = re.compile(
    rf"{START}sd [\d:]{{7,32}}: \[(?P<disk>sd[a-z]{{1,3}})\] Attached SCSI (?P<removable>removable )?disk\b"
)
_PASSING: Final = re.compile(r"(?:sr|fd|loop|zram|nbd|rbd|ram|drbd|scd)\d")


def whole(name: str) -> str:
    """The disk of a namespace or partition (nvme0 of nvme0n1p1), so that one broken disk is one fault."""
    found = _WHOLE.fullmatch(name)
    return found[1] or found[2] or found[3] if found else name


def _disk(name: str) -> str:
    return f"disk {whole(name)}" if name else ""


def _stopped(fs: str, found: re.Match[str], disk: str) -> Line:
    kind = "storage/read-only" if _OWN.fullmatch(disk) else "storage/read-only-volume"
    return Line(kind=kind, start=found.start(), device=_disk(disk), subject=f"{fs} on {disk}" if disk else fs)


def nvme(text: str) -> Line | None:
    """An NVMe controller, or one of its namespaces."""
    if found := _NAMESPACE.search(text):
        return Line(kind="storage/io-error", start=found.start(), device=_disk(found["disk"]))
    found = _NVME.search(text)
    if found is None:
        return None
    for kind, pattern in (("disabled", _GIVEN_UP), ("down", _DOWN), ("timeout", _TIMEOUT)):
        if pattern.match(found["said"]):
            return Line(kind=f"storage/nvme-{kind}", start=found.start(), device=_disk(found["disk"]))
    return None


def read_only(text: str) -> Line | None:
    """A file system that refuses writes from now on."""
    found = _READ_ONLY.search(text)
    return _stopped(found["fs"], found, found["disk"] or "") if found else None


def ext4(text: str) -> Line | None:
    """ext4 found damage."""
    found = _EXT4_ERROR.search(text)
    if found is None:
        return read_only(text)
    return Line(kind="storage/fs-error", start=found.start(), device=_disk(found["disk"]), subject="ext4")


def xfs(text: str) -> Line | None:
    """XFS shuts down instead of going read-only; a shutdown that a user asked for is none."""
    if "ounting " in text or "clean mount" in text:
        return None  # most of what it prints, at every start of a container
    found = _XFS.search(text)
    if found is None or _XFS_USER.match(found["said"]):
        return None
    if _XFS_STOPPED.match(found["said"]):
        return _stopped("XFS", found, found["disk"])
    if _XFS_ERROR.match(found["said"]):
        return Line(kind="storage/fs-error", start=found.start(), device=_disk(found["disk"]), subject="XFS")
    return None


def btrfs(text: str) -> Line | None:
    """btrfs goes read-only after an aborted transaction."""
    found = _BTRFS.search(text)
    if found is None:
        return None
    if "forced readonly" in found["said"]:
        return _stopped("btrfs", found, found["disk"])
    if _BTRFS_ERROR.match(found["said"]):
        return Line(
            kind="storage/fs-error", start=found.start(), device=_disk(found["disk"]), subject="btrfs"
        )
    return None


def io_error(text: str) -> Line | None:
    """A read or write that failed for good."""
    if found := _SUPERBLOCK.search(text):
        return Line(kind="storage/fs-error", start=found.start(), device=_disk(found["disk"]), subject="ext4")
    found = _IO.search(text)
    if found is None:
        return None
    disk = found["disk"] or found["buffered"]
    kind = "storage/io-error-passing" if _PASSING.match(disk) else "storage/io-error"
    return Line(kind=kind, start=found.start(), device=_disk(disk), subject=disk)


def no_path(text: str) -> Line | None:
    """A volume of a network that is out of reach, or that shrank."""
    found = _NO_PATH.search(text)
    if found is None:
        return None
    disk = found["disk"] or ""
    return Line(kind="storage/io-error-passing", start=found.start(), device=_disk(disk), subject=disk)


def raid(text: str) -> Line | None:
    """A RAID that lost a disk; one without spare data is lost with it."""
    found = _RAID.search(text)
    if found is None:
        return None
    kind = "storage/raid-failed" if found["end"] else "storage/raid-degraded"
    return Line(kind=kind, start=found.start(), device=f"disk {found['array']}", subject=found["member"])


def attached(text: str) -> Line | None:
    """A disk that came, and whether it may be pulled out."""
    found = _ATTACHED.search(text)
    if found is None:
        return None
    kind = REMOVABLE if found["removable"] else FIXED
    return Line(kind=kind, start=found.start(), device=_disk(found["disk"]))


def when_removable(kind: str) -> str:
    """What a kind is worth on a disk that anybody may pull out."""
    return _WHEN_REMOVABLE.get(kind, kind)


RULES: Final = (
    rule("nvme nvme", "nvme", nvme),
    rule("I/O Error (sct", "I/O", nvme),
    rule("-fs error", "error", ext4),
    rule("XFS (", "XFS", xfs),
    rule("BTRFS", "BTRFS BTRFS:", btrfs),
    rule("emounting filesystem", "Remounting", read_only),
    rule("I/O error", "I/O", io_error),
    rule("Disk failure on ", "Disk", raid),
    rule(" error, dev ", "error,", io_error),
    rule("able path - ", "path", no_path),
    rule("beyond end of device", "beyond", no_path),
    rule("] Attached SCSI ", "Attached", attached),
)
