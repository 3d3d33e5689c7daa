"""Reading catalogue files: CSV with a header, checked row by row, named by their columns.

An override is recognised by its columns, so that one option takes a file of any table. A wrong file is
refused whole, with its line, and the built-in facts stay in force.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from outlast.health.catalogue.rows import (
    DcgmEntry,
    DcgmWatch,
    HardwareEntry,
    KernelLineEntry,
    NvlinkEntry,
    SxidEntry,
    Urgency,
    XidEntry,
)
from outlast.model.policy import Rung

OVERRIDE_BYTES_MAX: Final = 1024 * 1024
OVERRIDE_ROWS_MAX: Final = 4096
URGENCY: Final = "urgency"
"""The one column that a file may leave out where its rows have no say in it."""
HERE: Final = Path(__file__).parent


class CatalogueError(Exception):
    """An override file cannot be used; `str()` names the file, the line and what is wrong."""


class Table(NamedTuple):
    """One kind of facts: the file in this folder, the shape of its rows, where the facts are from."""

    file: str
    shape: Any
    """The Struct; typed loosely because its rows differ from table to table."""
    sources: str

    @property
    def columns(self) -> frozenset[str]:
        """All columns the file may have."""
        return frozenset(field.encode_name for field in msgspec.structs.fields(self.shape))

    @property
    def needed(self) -> frozenset[str]:
        """The columns it must have."""
        return frozenset(f.encode_name for f in msgspec.structs.fields(self.shape) if f.required)


_DRIVER: Final = "open GPU kernel modules 595.45.04"
XID: Final = Table("xid.csv", XidEntry, f"NVIDIA Xid catalogue 2025-10-29; {_DRIVER}")
SXID: Final = Table("sxid.csv", SxidEntry, "NVIDIA Fabric Manager guide 1.3")
NVLINK5: Final = Table("nvlink5.csv", NvlinkEntry, "NVIDIA Xid catalogue 2025-10-29, NVLink 5 sheet")
DCGM: Final = Table("dcgm.csv", DcgmEntry, "DCGM 4.6.0")
DCGM_HEALTH: Final = Table("dcgm-health.csv", DcgmWatch, "DCGM 4.6.0")
HARDWARE: Final = Table("hardware.csv", HardwareEntry, "EC2 instance types, 2026-11")
KERNEL_LINES: Final = Table("kernel-lines.csv", KernelLineEntry, "Linux 4.14 to 6.18, efa 3.1.0")
TABLES: Final = (XID, SXID, NVLINK5, DCGM, DCGM_HEALTH, HARDWARE, KERNEL_LINES)

Rows = Mapping[tuple[object, ...], Any]


def text_of(table: Table) -> str:
    """The built-in file."""
    # Not importlib.resources: that loads zipfile and tempfile into every agent, for 1 MB and 10 ms.
    return (HERE / table.file).read_text("utf-8")


def parse(table: Table, text: str, where: str) -> Rows:
    """The rows of one file by their key. Raises CatalogueError."""
    # msgspec converts a row as a whole; equal sentences are kept once.
    shared: dict[str, str] = {}
    reader = csv.DictReader(text.splitlines(), restkey="more", restval=None, strict=True)
    rows: dict[tuple[object, ...], Any] = {}
    try:
        urgency_left_out = URGENCY in table.columns and URGENCY not in (reader.fieldnames or ())
        for row in reader:
            if len(rows) >= OVERRIDE_ROWS_MAX:
                raise CatalogueError(f"{where}: has more than {OVERRIDE_ROWS_MAX} rows")
            place = f"{where}, line {reader.line_num}"
            if "more" in row or None in row.values():
                raise CatalogueError(
                    f"{place}: has {'more' if 'more' in row else 'fewer'} values than columns"
                )
            if urgency_left_out:
                row[URGENCY] = Urgency.NEVER if row.get("rung") == Rung.WATCH else Urgency.NOW
            entry = _entry(table, {name: shared.setdefault(v, v) for name, v in row.items()}, place)
            if entry.key in rows:
                named = ", ".join(str(value) for value in entry.key)
                raise CatalogueError(f"{place}: {named} is there already")
            rows[entry.key] = entry
    except csv.Error as error:
        raise CatalogueError(f"{where}, line {reader.reader.line_num}: {error}") from error
    return rows


def recognise(text: str, where: str) -> Table:
    """Which table a file overrides, by its columns. Raises CatalogueError."""
    lines = text.splitlines()
    header = next(csv.reader(lines[:1]), [])
    found = frozenset(name.strip() for name in header)
    for table in TABLES:
        if len(header) == len(found) and table.needed <= found <= table.columns:
            return table
    near = max(TABLES, key=lambda table: len(found & table.needed) - len(found - table.columns))
    if not found & near.needed:
        raise CatalogueError(
            f"{where}, line 1: the columns are those of no table; they must be, for Xid codes, "
            f"{', '.join(_in_order(XID))}"
        )
    wrong = sorted(found - near.columns)
    missing = sorted(near.needed - found)
    parts = [f"without {', '.join(missing)}"] if missing else []
    parts += [f"unknown: {', '.join(name[:40] for name in wrong[:8])}"] if wrong else []
    parts += ["one is there twice"] if len(header) != len(found) else []
    raise CatalogueError(
        f"{where}, line 1: the columns are nearly those of {near.file}, but {'; '.join(parts)}"
    )


def read_override(path: Path) -> tuple[Table, Rows]:
    """One file of the user's: which table it changes, and its rows. Raises CatalogueError."""
    try:
        if path.stat().st_size > OVERRIDE_BYTES_MAX:
            raise CatalogueError(f"{path} is larger than {OVERRIDE_BYTES_MAX} bytes")
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise CatalogueError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CatalogueError(f"cannot read {path}: {error}") from error
    table = recognise(text, str(path))
    return table, parse(table, text, str(path))


def _entry(table: Table, row: dict[str, str], place: str) -> Any:
    try:
        return msgspec.convert(row, table.shape, strict=False)
    except msgspec.ValidationError as error:
        raise CatalogueError(f"{place}: {error}") from error


def _in_order(table: Table) -> list[str]:
    return [f.encode_name for f in msgspec.structs.fields(table.shape) if f.required]
