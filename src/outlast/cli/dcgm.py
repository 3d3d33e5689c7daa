"""`outlast dcgm 95`: an error code, a health watch or a health value of DCGM, explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from outlast.cli import codes
from outlast.health.catalogue import DCGM_PREFIX, Catalogue, DcgmEntry, DcgmWatch, WatchKind, tables
from outlast.model.health import FaultClass
from outlast.model.policy import Rung

NAMES_SHOWN_MAX: Final = 8

_DOES: Final = (
    "DCGM alone never makes a fault of a GPU: the kernel log, NVML and the PCI bus decide, and what DCGM "
    "says is evidence beside them"
)


def dcgm(code: str, /, *, json: bool = False, catalogue: list[Path] | None = None) -> int:
    """Explain an error code of DCGM (DCGM_FR_...), a health watch, or a value of one. Exit code 3: unknown.

    Example: outlast dcgm 95

    Example: outlast dcgm DCGM_FR_EUD_TEST_FAILED

    Example: outlast dcgm 'Memory system'

    Parameters
    ----------
    code
        The number (`error_id` in the JSON of `dcgmi diag`), the name with or without DCGM_FR_, or what
        `dcgmi health` prints.
    json
        Print JSON instead of text.
    catalogue
        CSV file whose rows override a built-in catalogue, told by its columns; may be given several times.
        Default: the files in OUTLAST_CATALOGUE, separated by colons.
    """
    return codes.answer(explain(code, codes.catalogue_of(catalogue)), json=json)


def plain(arguments: Sequence[str]) -> int | None:
    """The usual form without the command line parser; None for any other."""
    return codes.without_parser(arguments, dcgm)


def explain(code: str, known: Catalogue) -> codes.Explanation:
    """A number, a name, or the words of a report."""
    value = codes.number(code, "dcgm")
    entry = known.dcgm(value if value is not None else code)
    if entry is not None:
        return _error(entry)
    watch = known.dcgm_watch(code) if value is None else None
    if watch is not None:
        return _watch(watch)
    return codes.Explanation(
        title=f"DCGM {code[:80]}",
        text="No catalogue that outlast knows lists this. A report with it is Unknown, never Healthy and "
        "never a reason to drain." + _near(code, known),
        known=False,
        advice=codes.UNLISTED_ADVICE,
        facts={"code": code[:80]},
    )


def _error(entry: DcgmEntry) -> codes.Explanation:
    return codes.Explanation(
        title=f"DCGM {entry.code}  {DCGM_PREFIX}{entry.name}  ({entry.severity}, {entry.category})",
        text=entry.text,
        known=True,
        does=(
            ("class", str(entry.fault_class)),
            ("first rung", f"{entry.rung}, {entry.urgency}, once another source confirms it"),
            ("covers", str(entry.scope)),
            ("about", entry.subsystem.condition_type),
            ("alone", _DOES),
        ),
        advice=_advice(entry),
        sources=tables.DCGM.sources,
        facts=dict(codes.as_builtins(entry)),
    )


_WATCH_ADVICE: Final = (
    "Read the text that DCGM prints beside it, and give that to `outlast dcgm` where it names an error; "
    "`outlast check` on the machine says what the driver and the bus think of it."
)


def _advice(entry: DcgmEntry) -> str:
    if entry.rung is Rung.WATCH:
        return "What the text above says; the node may keep its work."
    if entry.fault_class is FaultClass.HARDWARE_GONE:
        return "Keep work away from the GPU, run `dcgmi diag -r 3` or the field diagnostics, and open a case."
    return "Look for an Xid in the kernel log at the same time; `outlast explain NODE` shows what stands."


def _watch(watch: DcgmWatch) -> codes.Explanation:
    kind = "watch" if watch.kind is WatchKind.SYSTEM else "value of a watch"
    number = f"0x{watch.value:x}" if watch.kind is WatchKind.SYSTEM else str(watch.value)
    return codes.Explanation(
        title=f"DCGM health {kind}  {watch.name}  ({number})",
        text=watch.text,
        known=True,
        does=(
            ("printed as", watch.words.replace("/", ", ")),
            ("first rung", f"{Rung.WATCH}: nothing is done to the node for a watch"),
            ("about", watch.subsystem.condition_type),
            ("alone", _DOES),
        ),
        advice=_WATCH_ADVICE,
        sources=tables.DCGM_HEALTH.sources,
        facts=dict(codes.as_builtins(watch)),
    )


def _near(code: str, known: Catalogue) -> str:
    """Names that hold what was asked for."""
    wanted = code.strip().upper().removeprefix(DCGM_PREFIX)
    names = [e.name for e in known.dcgm_codes.values() if len(wanted) >= 3 and wanted in e.name]
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f" Did you mean {', '.join(names[:NAMES_SHOWN_MAX])}{more}?" if names else ""
