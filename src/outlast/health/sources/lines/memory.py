"""Host memory and processors: machine checks, EDAC, firmware error records, pages that were lost.

Records of an earlier boot (BERT) carry no `{n}` and say nothing about this one. Formats of
arch/x86/kernel/cpu/mce, drivers/edac, drivers/firmware/efi/cper.c and mm/memory-failure.c.
"""

from __future__ import annotations

import re
from typing import Final

from outlast.health.sources.lines import START, SUBJECT_MAX, Line, count, rule

UNCORRECTED_BIT: Final = 1 << 61
"""MCi_STATUS.UC of the x86 machine check architecture."""

_LOGGED: Final = re.compile(rf"{START}(?:mce: )?(?:\[Hardware Error\]: )?Machine check events logged")
_BANK: Final = re.compile(
    rf"{START}(?:mce: )?\[Hardware Error\]: CPU (?P<cpu>\d{{1,5}}): Machine Check(?: Exception)?: "
    r"{1,4}[0-9a-fA-F]{1,16} Bank (?P<bank>\d{1,3}): (?P<status>[0-9a-fA-F]{16})"
)
_AMD: Final = re.compile(
    rf"{START}(?:mce: )?\[Hardware Error\]: "
    r"(?P<how>Corrected error|Deferred error|Uncorrected|System Fatal error)"
)
_USER_ACCESS: Final = re.compile(rf"{START}mce: Uncorrected hardware memory error in user-access")
_FIRMWARE: Final = re.compile(
    rf"{START}\{{\d{{1,10}}\}}\[Hardware Error\]: event severity: (?P<how>info|corrected|recoverable|fatal)"
)
_EDAC: Final = re.compile(
    rf"{START}EDAC (?P<controller>MC\d{{1,3}}): (?:(?P<count>\d{{1,9}}) )?(?P<how>CE|UE)\b"
    r"(?:.{0,120}? on (?P<module>[^\s(]{1,64}))?"
)
_PAGE: Final = re.compile(
    rf"{START}Memory failure: 0x[0-9a-fA-F]{{1,16}}: (?:"
    r"recovery action for (?P<page>.{1,64}?): (?P<result>Recovered|Ignored|Failed|Delayed)"
    r"|(?:Sending SIGBUS to|Killing) (?P<task>.{1,32}?):\d{1,10}\b)"
)

_KERNELS: Final = re.compile(r"\b(?:kernel|slab|unknown)\b")


def hardware_error(text: str) -> Line | None:
    """Machine checks and firmware records."""
    if found := _LOGGED.search(text):
        return Line(kind="memory/mce-logged", start=found.start())
    if found := _BANK.search(text):
        bad = int(found["status"], 16) & UNCORRECTED_BIT
        kind = "memory/mce-uncorrected" if bad else "memory/mce-logged"
        return Line(kind=kind, start=found.start(), subject=f"CPU {found['cpu']} bank {found['bank']}")
    if found := _FIRMWARE.search(text):
        bad = found["how"] in ("recoverable", "fatal")
        return Line(kind=f"memory/firmware-{'un' if bad else ''}corrected", start=found.start())
    if found := _AMD.search(text):
        bad = found["how"] != "Corrected error"
        return Line(kind=f"memory/mce-{'uncorrected' if bad else 'logged'}", start=found.start())
    if found := _USER_ACCESS.search(text):
        return Line(kind="memory/page-lost", start=found.start())
    return None


def edac(text: str) -> Line | None:
    """Errors that a memory controller counted; the number stands in front."""
    found = _EDAC.search(text)
    if found is None:
        return None
    return Line(
        kind="memory/corrected" if found["how"] == "CE" else "memory/uncorrected",
        start=found.start(),
        device=" ".join(part for part in ("memory", found["controller"], found["module"]) if part),
        occurrences=count(found["count"]),
    )


def page(text: str) -> Line | None:
    """A page whose content is gone, and whether the kernel could do without it."""
    found = _PAGE.search(text)
    if found is None:
        return None
    # Users of any other page were killed, and one hit again was done without when it was hit first.
    needed = found["result"] == "Failed" and _KERNELS.search(found["page"])
    kind = "memory/page-not-recovered" if needed else "memory/page-lost"
    return Line(kind=kind, start=found.start(), subject=(found["task"] or found["page"] or "")[:SUBJECT_MAX])


RULES: Final = (
    rule("[Hardware Error]", "Error]: Error]", hardware_error),
    rule("mce: Unc", "mce:", hardware_error),
    rule("EDAC MC", "EDAC", edac),
    rule("Memory failure: ", "failure:", page),
)
