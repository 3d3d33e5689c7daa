"""Error counts of a PCI function (AER), as the kernel keeps them in aer_dev_{correctable,nonfatal,fatal}.

Each file has a line a kind of error and a total. Kinds that come of probing or of a reset are left out:
they say nothing about a link.
"""

from __future__ import annotations

import os
from typing import Final

from outlast.model.observation import AerTotals

_FILE_BYTES_MAX: Final = 4096
_PROBED: Final = ("UnsupReq", "ACSViol")
_RESET: Final = ("SDES",)
_TOTAL: Final = "TOTAL_"


def read_aer(folder: str) -> AerTotals | None:
    """Totals of a function; None where the kernel keeps none or they cannot be read."""
    correctable = _errors(f"{folder}/aer_dev_correctable")
    nonfatal = _errors(f"{folder}/aer_dev_nonfatal", without=_PROBED)
    fatal = _errors(f"{folder}/aer_dev_fatal", without=(*_PROBED, *_RESET))
    if correctable is None or nonfatal is None or fatal is None:
        return None
    return AerTotals(correctable=correctable, nonfatal=nonfatal, fatal=fatal)


def _errors(path: str, without: tuple[str, ...] = ()) -> int | None:
    """Errors of all kinds but some; the kernel's own total where no kinds are listed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _FILE_BYTES_MAX).decode("ascii", "replace")
        finally:
            os.close(descriptor)
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
