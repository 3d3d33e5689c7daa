"""DCGM's health watches: corroborates what NVML finds, says why DCGM has no opinion, blames no GPU alone.

Judged with each look at NVML too, so that DCGM's silence never keeps a fault open that NVML has cleared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from outlast.health.checks.dcgm_claims import Claim, addresses_by_uuid, weigh
from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.finding import Assessment, Note
from outlast.health.reasons import Reason
from outlast.model.health import Subsystem
from outlast.model.observation import GpuSurvey
from outlast.model.observation.dcgm import DcgmExporterSurvey, DcgmIncident, DcgmProblem, DcgmSurvey

NAME: Final = "dcgm_health"

_ENABLE: Final = "`dcgmi health -s a` turns them on for everybody who uses that host engine"
_OTHERS: Final = {"CPU": Subsystem.HOST, "CPU_CORE": Subsystem.HOST, "ConnectX": Subsystem.RDMA}


def run(view: View) -> Assessment | None:
    """Evidence and notes; never a fault that NVML does not find."""
    survey = view.newest(DcgmSurvey)
    if survey is None:
        return Assessment(check=NAME)
    levels, notes = weigh(view, _claims(view, survey))
    return Assessment(check=NAME, bad=levels, notes=(*_trouble(survey), *notes))


CHECK: Final = LevelCheck(NAME, "health watches of DCGM", frozenset({DcgmSurvey, GpuSurvey}), run)


def _trouble(survey: DcgmSurvey) -> Iterator[Note]:
    """What is wrong with DCGM itself. NVML vouches for the GPUs, so none of it blocks."""
    if survey.engines is not None and survey.engines > 1:
        text = "several DCGM host engines run here and compete for the same counters: keep one"
        yield _note(f"{text} (configuration, no GPU is in doubt)")
    match survey.problem:
        case None | DcgmProblem.NOT_INSTALLED:
            return
        case DcgmProblem.WATCHES_OFF:
            yield _note(f"{Reason.DCGM_UNUSABLE}: health watches are off; {_ENABLE}")
        case DcgmProblem.DRIVER_TIMEOUT:
            yield _note(
                f"{Reason.DCGM_BLIND}: the host engine gave up on the driver; restart the host engine"
            )
        case DcgmProblem.HUNG:
            yield _note(f"{Reason.DCGM_UNUSABLE}: {survey.message}; the host engine or its connection hangs")
        case _:
            yield _note(f"{Reason.DCGM_UNUSABLE}: {survey.message or survey.problem}")


def _claims(view: View, survey: DcgmSurvey) -> Iterator[Claim]:
    addresses = gpu_addresses(view)
    for incident in survey.incidents:
        is_gpu = incident.entity_group == "GPU"
        address = addresses.get(incident.entity_id, "") if is_gpu and incident.entity_id is not None else ""
        yield Claim(
            source=survey.source,
            gpu=address,
            where=f"GPU {address}" if address else _entity(incident),
            subsystem=_OTHERS.get(incident.entity_group),
            health=incident.health,
            code=incident.code,
            xid=incident.xid,
            text=f"{incident.system}: {incident.health}: {incident.text}",
            polls=incident.polls,
        )


def _entity(incident: DcgmIncident) -> str:
    if not incident.entity_group:
        return "this machine"
    number = "" if incident.entity_id is None else f" {incident.entity_id}"
    return f"{incident.entity_group}{number} (as DCGM counts)"


def gpu_addresses(view: View) -> dict[int, str]:
    """PCI address of each DCGM GPU id: as the exporter says, else by NVML's index while no GPU is missing.

    The host engine numbers GPUs when it starts, as NVML does. A GPU that is lost later moves NVML's
    numbers and not DCGM's, so then nobody knows.
    """
    listed: dict[int, str] = {}
    page = view.newest(DcgmExporterSurvey)
    gpus = view.gpu.gpus if view.gpu is not None else ()
    by_uuid = addresses_by_uuid(view)
    for gpu in page.gpus if page is not None else ():
        address = gpu.pci_address or by_uuid.get(gpu.uuid, "")
        if gpu.index is not None and address:
            listed[gpu.index] = address
    if listed or not gpus or len(gpus) < view.expected.gpus:
        return listed
    if any(gpu.error or gpu.index is None for gpu in gpus):
        return {}
    return {gpu.index: gpu.pci_address for gpu in gpus if gpu.index is not None}


def _note(text: str) -> Note:
    return Note(subsystem=Subsystem.MONITOR, text=text)
