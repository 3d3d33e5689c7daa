"""Facts about hardware as versioned data files: what codes mean, and what a machine type should have.

Tables are parsed when something first asks for them, from text that was read at the start: a sick disk
must not keep an agent from understanding the line that says so. Any row can be overridden by a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from outlast.health.catalogue import tables
from outlast.health.catalogue.rows import (
    TEXT_CHARS_MAX,
    XID_CODE_MAX,
    DcgmEntry,
    DcgmWatch,
    HardwareEntry,
    KernelLineEntry,
    NvlinkEntry,
    NvlinkSeverity,
    SwitchSeverity,
    SxidEntry,
    Urgency,
    WatchKind,
    XidEntry,
)
from outlast.health.catalogue.tables import OVERRIDE_BYTES_MAX, CatalogueError, Rows, Table

CATALOGUE_VERSION: Final = "2026.12"

DCGM_PREFIX: Final = "DCGM_FR_"

_AGENT_TABLES: Final = (tables.XID, tables.SXID, tables.NVLINK5, tables.HARDWARE, tables.KERNEL_LINES)
"""Those whose text is read at the start; DCGM's are read when something asks."""


class Catalogue:
    """All facts in force. Immutable to its users; tables are parsed at first use."""

    __slots__ = ("_codes", "_overrides", "_rows", "_texts")

    def __init__(self, overrides: Mapping[Table, Rows] | None = None) -> None:
        """The built-in files, with these rows on top."""
        self._overrides = dict(overrides or {})
        self._texts = {table: tables.text_of(table) for table in _AGENT_TABLES}
        self._rows: dict[Table, Rows] = {}
        self._codes: dict[Table, Mapping[Any, Any]] = {}

    @property
    def xids(self) -> Mapping[int, XidEntry]:
        """Xid codes."""
        return self._by_code(tables.XID)

    @property
    def sxids(self) -> Mapping[int, SxidEntry]:
        """SXid codes of NVSwitches."""
        return self._by_code(tables.SXID)

    @property
    def nvlink5(self) -> tuple[NvlinkEntry, ...]:
        """Events of NVLink 5 units, which Xid 144-150 report."""
        return tuple(self._table(tables.NVLINK5).values())

    @property
    def dcgm_codes(self) -> Mapping[int, DcgmEntry]:
        """Error codes of DCGM's health watches and diagnostics."""
        return self._by_code(tables.DCGM)

    @property
    def dcgm_health(self) -> tuple[DcgmWatch, ...]:
        """DCGM's health watches and the values they can have."""
        return tuple(self._table(tables.DCGM_HEALTH).values())

    @property
    def hardware(self) -> Mapping[str, HardwareEntry]:
        """Machine types."""
        return self._by_code(tables.HARDWARE)

    @property
    def kernel_lines(self) -> Mapping[str, KernelLineEntry]:
        """Kinds of kernel lines that are no codes of NVIDIA's."""
        return self._by_code(tables.KERNEL_LINES)

    def xid(self, code: int) -> XidEntry | None:
        """What is known of a code; None for one that no edition lists."""
        return self.xids.get(code)

    def sxid(self, code: int) -> SxidEntry | None:
        """The same of an NVSwitch's code."""
        return self.sxids.get(code)

    def dcgm(self, code: int | str) -> DcgmEntry | None:
        """The same of a DCGM error, by number or by name, with or without DCGM_FR_, in any case."""
        if isinstance(code, int):
            return self.dcgm_codes.get(code)
        name = code.strip().upper().removeprefix(DCGM_PREFIX)
        return next((entry for entry in self.dcgm_codes.values() if entry.name == name), None)

    def dcgm_watch(self, name: str) -> DcgmWatch | None:
        """A health watch or a status, by its name or by the words that `dcgmi` prints."""
        wanted = name.strip().casefold().removeprefix("dcgm_health_watch_")
        for watch in self.dcgm_health:
            if wanted in (watch.name.casefold(), *watch.words.casefold().split("/")):
                return watch
        return None

    def _table(self, table: Table) -> Rows:
        rows = self._rows.get(table)
        if rows is None:
            text = self._texts.pop(table, None)
            builtin_rows = tables.parse(table, tables.text_of(table) if text is None else text, table.file)
            rows = self._rows[table] = {**builtin_rows, **self._overrides.get(table, {})}
        return rows

    def _by_code(self, table: Table) -> Mapping[Any, Any]:
        found = self._codes.get(table)
        if found is None:
            found = self._codes[table] = {key[0]: entry for key, entry in self._table(table).items()}
        return found


@cache
def builtin() -> Catalogue:
    """The catalogue that ships with this version."""
    return Catalogue()


def load(*overrides: Path | None) -> Catalogue:
    """The built-in catalogue with the rows of these files on top, the last one winning.

    Each file is recognised by its columns; None is no file. Raises CatalogueError.
    """
    given = [path for path in overrides if path is not None]
    if not given:
        return builtin()
    found: dict[Table, dict[tuple[object, ...], Any]] = {}
    for path in given:
        table, rows = tables.read_override(path)
        found.setdefault(table, {}).update(rows)
    return Catalogue(found)


__all__ = [
    "CATALOGUE_VERSION",
    "DCGM_PREFIX",
    "OVERRIDE_BYTES_MAX",
    "TEXT_CHARS_MAX",
    "XID_CODE_MAX",
    "Catalogue",
    "CatalogueError",
    "DcgmEntry",
    "DcgmWatch",
    "HardwareEntry",
    "KernelLineEntry",
    "NvlinkEntry",
    "NvlinkSeverity",
    "SwitchSeverity",
    "SxidEntry",
    "Urgency",
    "WatchKind",
    "XidEntry",
    "builtin",
    "load",
]
