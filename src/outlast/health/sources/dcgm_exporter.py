"""dcgm-exporter's page: of thousands of lines only the few series that say something about health.

Fed piece by piece, so that a page of any size costs the memory of its GPUs. A series that is missing
or blank is None, and a page on which nothing moves any more gives itself away by its fingerprint.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Final
from zlib import crc32

import msgspec

from outlast.health.sources.dcgm_output import printable
from outlast.health.sources.facts import ADDRESS, pci_address
from outlast.model.observation.dcgm import DcgmGpu

LINE_BYTES_MAX: Final = 16 * 1024
"""A longer line is dropped and counted."""
GPUS_MAX: Final = 256
"""GPUs and MIG instances of one page."""

_BLANK_FROM: Final = 0x7FFFFFF0
"""DCGM's blank values of all kinds are at or above this; none of the series below comes near."""

_SERIES: Final = {
    "DCGM_FI_DEV_XID_ERRORS": "xid_last",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failed",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "remap_pending",
    "DCGM_EXP_GPU_HEALTH_STATUS": "health_status",
}
_SEEN: Final = frozenset(
    {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"}
)
"""What every exporter has: only whether DCGM still has a value of them says something here."""
_MOVING: Final = frozenset({"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"})
"""No living GPU repeats these to the last digit for minutes."""
_FLAGS: Final = frozenset({"remap_failed", "remap_pending"})

_SAMPLE = re.compile(rb"^[A-Za-z_:][A-Za-z0-9_:]*(?:\{(.*)\})?[ \t]+(\S+)")
_LABEL = re.compile(r'(?:^|,)[ \t]*([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


class ExporterPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a page said."""

    gpus: tuple[DcgmGpu, ...] = ()
    lines_dropped: int = 0
    series: int = 0
    """Samples of DCGM of any kind: none at all is the page of something else."""
    fingerprint: int | None = None
    """Of the series that move on a living GPU; None where the page has none of them."""


class ExporterPageReader:
    """Reads one page, piece by piece."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False
        self._values: dict[tuple[str, str, int | None], dict[str, float]] = {}
        self._labels: dict[tuple[str, str, int | None], dict[str, str]] = {}
        self._dropped = 0
        self._series = 0
        self._fingerprint: int | None = None

    def feed(self, piece: bytes) -> None:
        """Any bytes, cut anywhere."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif len(line) > LINE_BYTES_MAX:
                self._dropped += 1
            else:
                self._line(line)
        if len(self._rest) > LINE_BYTES_MAX:
            self._dropped += not self._skipping
            self._rest, self._skipping = b"", True

    def page(self) -> ExporterPage:
        """What has been read; a last line without its end may have been cut and is not believed."""
        gpus = tuple(
            _gpu(self._labels[key], self._values[key], key[2]) for key in sorted(self._values, key=str)
        )
        return ExporterPage(
            gpus=gpus,
            lines_dropped=self._dropped,
            series=self._series,
            fingerprint=self._fingerprint,
        )

    def _line(self, line: bytes) -> None:
        if not line.startswith(b"DCGM_"):
            return
        self._series += 1
        name = line.partition(b"{")[0].partition(b" ")[0].decode("ascii", "replace")
        if name in _MOVING:
            self._fingerprint = crc32(line, self._fingerprint or 0)
        field = _SERIES.get(name, name if name in _SEEN else None)
        if field is None:
            return
        found = _SAMPLE.match(line)
        if found is None:
            self._dropped += 1
            return
        labels = _labels(found.group(1) or b"")
        key = (labels.get("UUID", ""), labels.get("gpu", ""), _whole(labels.get("GPU_I_ID", "")))
        if key not in self._values and len(self._values) >= GPUS_MAX:
            self._dropped += 1
            return
        self._labels.setdefault(key, labels)
        values = self._values.setdefault(key, {})
        value = _value(found.group(2))
        if value is not None:
            # One GPU has a series for each container that uses it, and for each watch: the worst counts.
            values[field] = max(value, values.get(field, value))


def _address(text: str) -> str:
    found = re.fullmatch(ADDRESS, text.strip())
    return pci_address(*found.groups()) if found else ""


def _gpu(labels: dict[str, str], values: dict[str, float], instance: int | None) -> DcgmGpu:
    fields = {
        name: bool(value) if name in _FLAGS else int(value)
        for name, value in values.items()
        if name not in _SEEN
    }
    return DcgmGpu(
        index=_whole(labels.get("gpu", "")),
        uuid=printable(labels.get("UUID", ""), 64),
        pci_address=_address(labels.get("pci_bus_id", "")),
        instance=instance,
        blank=not values,
        **fields,  # type: ignore[arg-type]
    )


def _labels(text: bytes) -> dict[str, str]:
    found = _LABEL.finditer(text.decode("utf-8", "replace"))
    return {m.group(1): m.group(2) for m in found}


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _value(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and abs(value) < _BLANK_FROM else None
