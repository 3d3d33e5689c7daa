"""What this machine has and should have: identities of boards, and the most that was ever seen of them.

A board is known by its serial, else by its UUID; its address is only where it is plugged in today.
"""

from __future__ import annotations

import msgspec

from outlast.health.catalogue import Catalogue
from outlast.health.checks.declaration import Expected, KnownGpu
from outlast.health.checks.efa_presence import working
from outlast.health.checks.gpu_presence import VM_DRIVER, counted
from outlast.health.learned import learned
from outlast.health.verdict.state import JudgeState, Moment, OpenFault
from outlast.model.health import GPUS_MAX
from outlast.model.observation import GpuSurvey, PciSurvey

EFA_MAX = 64
EFA_CHOSEN_BELOW = 0.75
"""Share of the EFA devices that a machine type can have, below which the rest was never attached. A machine
is launched with half, a quarter or one of them; one that lacks 1 of 4 or 1 of 16 has lost it."""


def vouches(survey: GpuSurvey | None) -> bool:
    """Whether a survey says something about every GPU."""
    return survey is not None and survey.complete and survey.problem is None


def expected(state: JudgeState, catalogue: Catalogue) -> Expected:
    """What this machine should have: the operator's word, else the most of table and experience."""
    listed = catalogue.hardware.get(state.instance_type)
    gpus, efa = state.settings.expected_gpus, state.settings.expected_efa
    if gpus is None:
        gpus = max(listed.gpus if listed else 0, state.learned_gpus)
    if efa is None:
        most = listed.efa if listed else 0
        # The table gives the most a type can have. Far fewer, and never more, is a choice made at launch.
        chosen = state.learned_efa < most * EFA_CHOSEN_BELOW
        efa = state.learned_efa if chosen else max(most, state.learned_efa)
    return Expected(
        gpus=gpus,
        efa=efa,
        efa_max=listed.efa if listed and state.settings.expected_efa is None else state.settings.expected_efa,
        known_gpus=state.known_gpus,
        known_efa=state.known_efa,
        known_ports=state.known_ports,
    )


def initializing(state: JudgeState, now: Moment) -> bool:
    """Whether something that is missing may just be late."""
    return now.monotonic < state.quiet_from


def learn_from_bus(state: JudgeState, survey: PciSurvey, catalogue: Catalogue) -> JudgeState:
    """Remember how many devices the bus has shown at most."""
    gpus = len(counted(survey)) + _given_away(survey)
    efa = tuple(device.address for device in working(survey))
    state = msgspec.structs.replace(
        state,
        learned_gpus=max(state.learned_gpus, min(gpus, GPUS_MAX)),
        learned_efa=max(state.learned_efa, min(len(efa), EFA_MAX)),
    )
    wanted = expected(state, catalogue)
    if len(efa) >= wanted.efa:
        state = msgspec.structs.replace(state, efa_complete=True, known_efa=efa[:EFA_MAX])
    return state


def learn_identities(state: JudgeState, survey: GpuSurvey, catalogue: Catalogue) -> JudgeState:
    """Remember who the GPUs are; faults follow boards that moved to another slot."""
    known = {gpu.pci_address: gpu for gpu in state.known_gpus}
    read = tuple(
        learned(gpu, known.get(gpu.pci_address))
        for gpu in survey.gpus
        if not gpu.error and (gpu.uuid or gpu.serial)
    )[:GPUS_MAX]
    if read and _another_machine(state.known_gpus, read):
        # No board of it is known: what was learned, and what stood, is about another machine.
        state = msgspec.structs.replace(forgotten(state, len(read)), known_gpus=())
    if read and len(read) >= wanted_gpus(state, catalogue):
        # Everything is there: what is remembered of other addresses has left the machine.
        if read == state.known_gpus and state.gpus_complete:
            return state
        return _followed(msgspec.structs.replace(state, known_gpus=read, gpus_complete=True))
    seen = {gpu.pci_address for gpu in read}
    others = tuple(gpu for gpu in state.known_gpus if gpu.pci_address not in seen)
    merged = tuple(sorted((*read, *others), key=lambda gpu: gpu.pci_address))
    return msgspec.structs.replace(state, known_gpus=merged[:GPUS_MAX])


def forgotten(state: JudgeState, gpus: int = 0) -> JudgeState:
    """Without what was learned of how many devices there are: it is another machine, or of another size."""
    pci = state.pci
    return msgspec.structs.replace(
        state,
        learned_gpus=max(gpus, len(counted(pci)) + _given_away(pci) if pci else 0),
        learned_efa=len(working(pci)) if pci else 0,
        known_efa=(),
        known_ports=(),
    )


def resized(state: JudgeState, instance_type: str) -> JudgeState:
    """The state on this instance type: a virtual machine may have been stopped and given another."""
    before = state.instance_type
    if before == instance_type:
        return state
    state = msgspec.structs.replace(state, instance_type=instance_type)
    return forgotten(state) if before and instance_type else state


def wanted_gpus(state: JudgeState, catalogue: Catalogue) -> int:
    """How many GPUs should answer us: those that were given to virtual machines cannot."""
    return expected(state, catalogue).gpus - _given_away(state.pci)


def _given_away(pci: PciSurvey | None) -> int:
    return 0 if pci is None else sum(1 for gpu in pci.gpus if gpu.driver == VM_DRIVER)


def _board(gpu: KnownGpu) -> str:
    return gpu.serial or gpu.uuid


def _another_machine(before: tuple[KnownGpu, ...], after: tuple[KnownGpu, ...]) -> bool:
    """Not one board of several is the same, by serial number or by UUID."""
    return len(before) > 1 and _names(before).isdisjoint(_names(after)) and bool(_names(before))


def _names(gpus: tuple[KnownGpu, ...]) -> set[str]:
    return {name for gpu in gpus for name in (gpu.serial, gpu.uuid)} - {""}


def _followed(state: JudgeState) -> JudgeState:
    """Faults of boards that are in another slot now are about that slot."""
    where = {_board(gpu): gpu for gpu in state.known_gpus if _board(gpu)}
    faults = tuple(_moved(fault, where) for fault in state.faults)
    if all(one is other for one, other in zip(faults, state.faults, strict=True)):
        return state
    return msgspec.structs.replace(state, faults=faults)


def _moved(fault: OpenFault, where: dict[str, KnownGpu]) -> OpenFault:
    gpu = fault.gpu
    now = where.get(gpu.serial or gpu.uuid) if gpu is not None else None
    if gpu is None or now is None or now.pci_address == gpu.pci_address:
        return fault
    return msgspec.structs.replace(
        fault,
        key=fault.key.replace(gpu.pci_address, now.pci_address),
        gpu=msgspec.structs.replace(gpu, pci_address=now.pci_address, index=now.index),
    )
