"""dcgm-exporter's page: row remap flags beside NVML's, and whether DCGM still sees anything at all.

After it gave up on the driver DCGM answers for ever with what it saw last, or with blanks. That is
DCGM's own blindness: it is said, and never counted as health or as a fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from outlast.health.checks.dcgm_claims import (
    DOUBT_POLLS,
    FAILURE,
    SERIOUS_XIDS,
    WARNING,
    Claim,
    addresses_by_uuid,
    weigh,
)
from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import Assessment, Note
from outlast.health.reasons import Reason
from outlast.model.health import Subsystem
from outlast.model.observation import GpuSurvey
from outlast.model.observation.dcgm import DcgmExporterSurvey, DcgmGpu

NAME: Final = "dcgm_exporter"
FROZEN_S: Final = 300.0
"""Ten collections of the exporter in which power and energy of no GPU moved by a digit."""

REMAP_FAILED: Final = 80
REMAP_PENDING: Final = 85
XID: Final = 101
WATCH_FAILED: Final = 20


def run(view: View) -> Assessment | None:
    """Evidence and notes; never a fault that NVML does not find. A page that stands still claims nothing."""
    page = view.newest(DcgmExporterSurvey)
    if page is None:
        return Assessment(check=NAME)
    if page.problem is not None:
        return Assessment(
            check=NAME, notes=(_note(f"{Reason.DCGM_UNUSABLE}: dcgm-exporter: {page.message}"),)
        )
    if page.frozen_s >= FROZEN_S:
        text = "dcgm-exporter repeats the same values; restart the host engine"
        return Assessment(check=NAME, notes=(_note(f"{Reason.DCGM_BLIND}: {text}"),))
    levels, notes = weigh(view, _claims(view, page))
    return Assessment(check=NAME, bad=levels, notes=(*_blindness(view, page), *notes))


CHECK: Final = LevelCheck(NAME, "dcgm-exporter's page", frozenset({DcgmExporterSurvey, GpuSurvey}), run)


def _blindness(view: View, page: DcgmExporterSurvey) -> Iterator[Note]:
    if page.gpus and all(gpu.blank for gpu in page.gpus):
        yield _note(f"{Reason.DCGM_BLIND}: dcgm-exporter has no value of any GPU")
        return
    by_uuid = addresses_by_uuid(view)
    shown = {gpu.pci_address or by_uuid.get(gpu.uuid, "") for gpu in page.gpus}
    there = {gpu.pci_address for gpu in (view.gpu.gpus if view.gpu is not None else ()) if not gpu.error}
    unseen = sorted(there - shown)
    if unseen and "" not in shown:
        more = f" and {len(unseen) - 1} more" if len(unseen) > 1 else ""
        yield _note(
            f"{Reason.DCGM_BLIND}: dcgm-exporter shows nothing of GPU {unseen[0]}{more}, which NVML reads"
        )


def _claims(view: View, page: DcgmExporterSurvey) -> Iterator[Claim]:
    by_uuid = addresses_by_uuid(view)
    for gpu in page.gpus:
        address = gpu.pci_address or by_uuid.get(gpu.uuid, "")
        where = f"GPU {address}" if address else f"GPU {gpu.index} (as DCGM counts)"
        for held in _held(view, gpu):
            # A gauge is a level of its own and needs no second look.
            yield msgspec.structs.replace(
                held, source=page.source, gpu=address, where=where, polls=DOUBT_POLLS
            )


def _held(view: View, gpu: DcgmGpu) -> Iterator[Claim]:
    if gpu.remap_failed:
        yield _claim("DCGM_FI_DEV_ROW_REMAP_FAILURE is 1", code=REMAP_FAILED)
    if gpu.remap_pending:
        yield _claim("DCGM_FI_DEV_ROW_REMAP_PENDING is 1", code=REMAP_PENDING)
    # The gauge keeps the last Xid for ever: of use only while the log itself cannot be read.
    if gpu.xid_last in SERIOUS_XIDS and view.kernel_log_lost:
        yield _claim(f"DCGM_FI_DEV_XID_ERRORS is {gpu.xid_last}", code=XID, xid=gpu.xid_last)
    if gpu.health_status is not None and gpu.health_status >= WATCH_FAILED:
        # It does not say which watch, and a link that was never connected fails one.
        yield _claim("DCGM_EXP_GPU_HEALTH_STATUS is 20", health=WARNING, said="a failed health watch")


def _claim(
    text: str, *, code: int | None = None, xid: int | None = None, health: str = FAILURE, said: str = ""
) -> Claim:
    return Claim(source="", where="", health=health, code=code, xid=xid, text=text, said=said)


def _note(text: str) -> Note:
    return Note(subsystem=Subsystem.MONITOR, text=text)
