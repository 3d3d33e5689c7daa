"""Error counts of a PCI function (AER), as the kernel keeps them in aer_dev_{correctable,nonfatal,fatal}.

Each file has a line a kind of error and a total. Kinds that come of probing or of a reset are left out:
they say nothing about a link.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from outlast.model.observation import AerTotals

_FILE_BYTES_MAX: Final = 4096
_PROBED: Final = ("UnsupReq", "ACSViol")
_RESET: Final = ("SDES",)
_TOTAL: Final = "TOTAL_"


def read_aer(folder: Path) -> AerTotals | None:
    """Totals of a function; None where the kernel keeps none or they cannot be read."""
    correctable = _errors(folder / "aer_dev_correctable")
    nonfatal = _errors(folder / "aer_dev_nonfatal", without=_PROBED)
    fatal = _errors(folder / "aer_dev_fatal", without=(*_PROBED, *_RESET))
    if correctable is None or nonfatal is None or fatal is None:
        return None
    return AerTotals(correctable=correctable, nonfatal=nonfatal, fatal=fatal)


def _errors(path: Path, without: tuple[str, ...] = ()) -> int | None:
    """Errors of all kinds but some; the kernel's own total where no kinds are listed."""
    try:
        with path.open("rb", buffering=0) as file:
            text = (file.read(_FILE_BYTES_MAX) or b"").decode("ascii", "replace")
    except OSError:
        return None
    kinds, total = 0, None
    listed = False
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        if not number.isascii() or not number.isdigit() or len(number) > 20:
            continue
        if name.startswith(_TOTAL):
            total = int(number)
        elif name:
            listed = True
            kinds += 0 if name.strip() in without else int(number)
    return kinds if listed else total
