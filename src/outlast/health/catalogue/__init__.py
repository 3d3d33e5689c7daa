"""Facts about hardware as versioned data files: Xid codes, and what a machine type should have.

Files are read at first use and can be overridden, row by row, by a file of the user's with the same
columns. A wrong file is refused whole, with its line, and the built-in facts stay in force.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from outlast.health.finding import Proof, Role
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.policy import Rung

CATALOGUE_VERSION: Final = "2026.11"
OVERRIDE_BYTES_MAX: Final = 1024 * 1024
XID_CODE_MAX: Final = 99_999


class CatalogueError(Exception):
    """An override file cannot be used; `str()` names the file, the line and what is wrong."""


class XidEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What one Xid code means; one row of `xid.csv`."""

    code: int
    name: str
    fault_class: FaultClass = msgspec.field(name="class")
    scope: Scope
    severity: str
    """info, warning, error or fatal: for people; decisions use class and role."""
    rung: Rung
    """The step that cures it, where the policy's ladder has it."""
    role: Role
    rank: int
    """Position in the order of causes: within one burst the smallest is the root."""
    subsystem: Subsystem
    reason: Reason
    proof: Proof
    expiry_s: int
    """Without a probe that can confirm it, the fault is over after this long; 0 means never."""
    text: str


class HardwareEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine type should have; one row of `hardware.csv`."""

    instance_type: str
    gpus: int = 0
    efa: int = 0


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All facts in force."""

    xids: Mapping[int, XidEntry]
    hardware: Mapping[str, HardwareEntry]

    def xid(self, code: int) -> XidEntry | None:
        """What is known of a code; None for one that no edition lists."""
        return self.xids.get(code)


@cache
def builtin() -> Catalogue:
    """The catalogue that ships with this version."""
    # Not importlib.resources: that loads zipfile and tempfile into every agent, for 1 MB and 10 ms.
    here = Path(__file__).parent
    return Catalogue(
        xids={e.code: e for e in _rows((here / "xid.csv").read_text("utf-8"), XidEntry, "xid.csv")},
        hardware={
            e.instance_type: e
            for e in _rows((here / "hardware.csv").read_text("utf-8"), HardwareEntry, "hardware.csv")
        },
    )


def load(xid_override: Path | None = None) -> Catalogue:
    """The built-in catalogue with the rows of an override file on top. Raises CatalogueError."""
    base = builtin()
    if xid_override is None:
        return base
    try:
        if xid_override.stat().st_size > OVERRIDE_BYTES_MAX:
            raise CatalogueError(f"{xid_override} is larger than {OVERRIDE_BYTES_MAX} bytes")
        text = xid_override.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogueError(f"cannot read {xid_override}: {error}") from error
    rows = {entry.code: entry for entry in _rows(text, XidEntry, str(xid_override))}
    return Catalogue(xids={**base.xids, **rows}, hardware=base.hardware)


def _rows(text: str, shape: type[msgspec.Struct], where: str) -> Iterable:  # type: ignore[type-arg]
    reader = csv.DictReader(text.splitlines())
    wanted = {field.encode_name for field in msgspec.structs.fields(shape)}
    if set(reader.fieldnames or ()) != wanted:
        raise CatalogueError(f"{where}: the columns must be {', '.join(sorted(wanted))}")
    entries = []
    for row in reader:
        try:
            entries.append(msgspec.convert(row, shape, strict=False))
        except msgspec.ValidationError as error:
            raise CatalogueError(f"{where}, line {reader.line_num}: {error}") from error
    return entries
