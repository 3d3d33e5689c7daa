"""`outlast xid 79`: one code, explained from the catalogue that the agent uses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from outlast.cli import EXIT_OK, EXIT_UNKNOWN, UserError
from outlast.health.catalogue import CATALOGUE_VERSION, CatalogueError, XidEntry, load
from outlast.health.finding import PROOF_TEXT, Role

XID_JSON_VERSION = 1

_ROLES = {
    Role.LEADER: "opens a fault at once",
    Role.FOLLOWER: "often an echo of another code: waits 5 s for it",
    Role.APPLICATION: "made by a program: nothing happens to the node",
    Role.MODIFIER: "says more about a fault that is open",
    Role.INFORMATIONAL: "recorded, not a fault",
    Role.UNEXPECTED: "nobody knows what it means here: the GPU is Unknown until it checks clean",
}


def xid(
    code: int,
    *,
    json: bool = False,
    catalogue: Annotated[Path | None, Parameter(env_var="OUTLAST_XID_CATALOGUE")] = None,
) -> int:
    """Explain an NVIDIA Xid code. Exit code 3 when no catalogue lists it.

    Example: outlast xid 79

    Parameters
    ----------
    code
        The number after the PCI address in a line like `NVRM: Xid (PCI:0000:02:00): 79, ...`.
    json
        Print JSON instead of text.
    catalogue
        A CSV file whose rows override the built-in ones.
    """
    try:
        entry = load(*([catalogue] if catalogue else [])).xid(code)
    except CatalogueError as error:
        raise UserError(f"{error}.") from error
    if json:
        print(_json(code, entry))
    elif entry is None:
        print(
            f"Xid {code} is in no catalogue that outlast knows. It would make the GPU Unknown: no new work "
            "until it checks clean, and no drain."
        )
    else:
        print(_text(entry))
    return EXIT_OK if entry is not None else EXIT_UNKNOWN


def _text(entry: XidEntry) -> str:
    expiry = f", or {entry.expiry_s} s without it" if entry.expiry_s else ""
    rows = (
        ("class", entry.fault_class),
        ("severity", entry.severity),
        ("covers", entry.scope),
        ("cured by", entry.rung),
        ("in a burst", _ROLES[entry.role]),
        ("over when", PROOF_TEXT[entry.proof] + expiry),
        ("condition", f"{entry.subsystem.condition_type}, reason {entry.reason}"),
    )
    lines = [f"Xid {entry.code}  {entry.name}", "", entry.text, ""]
    return "\n".join(lines + [f"  {name:<11} {value}" for name, value in rows])


def _json(code: int, entry: XidEntry | None) -> str:
    import msgspec

    known = {} if entry is None else msgspec.to_builtins(entry)
    document = {"version": XID_JSON_VERSION, "catalogue": CATALOGUE_VERSION, "known": entry is not None}
    return msgspec.json.format(msgspec.json.encode({**document, "code": code, **known}), indent=2).decode()
