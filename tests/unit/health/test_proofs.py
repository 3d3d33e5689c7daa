"""Each proof by itself: after a reboot all is good, and one fact that is not good takes the proof away."""

from typing import Any

import msgspec
import pytest

from outlast.health.finding import Proof
from outlast.health.verdict.proofs import Case, proves
from outlast.model.observation import SurveyProblem
from tests.unit.health.builders import Scene

GPU = 1


def case(proof: Proof, scene: Scene) -> Case:
    """A fault of a GPU from before the last boot, asked about by this proof; it has long been quiet."""
    address = scene.gpu(GPU)
    scene.xid(GPU, 48)
    [fault] = scene.state.faults
    fault = msgspec.structs.replace(
        fault, boot_id="an earlier boot", evidence_monotonic=-1e6, quiet_since=-1e6, clean_since=None
    )
    assert fault.gpu is not None and fault.gpu.pci_address == address
    code = msgspec.structs.replace(fault.root, proof=proof, expiry_s=60.0)
    return Case(scene.state, fault, code, scene.catalogue, scene.now)


def spoiled(good: Case, **fields: Any) -> Case:
    """The same, with another reading of the GPU."""
    survey = good.state.gpu
    assert survey is not None
    address = good.fault.gpu.pci_address if good.fault.gpu else ""
    gpus = tuple(
        msgspec.structs.replace(gpu, **fields) if gpu.pci_address == address else gpu for gpu in survey.gpus
    )
    state = msgspec.structs.replace(good.state, gpu=msgspec.structs.replace(survey, gpus=gpus))
    return msgspec.structs.replace(good, state=state)


OF_THE_GPU = (
    Proof.READABLE,
    Proof.NEW_BOOT_AND_PRESENT,
    Proof.RECOVERY_NONE,
    Proof.MEMORY_CLEAN,
    Proof.SRAM_CLEAN,
    Proof.REPAIR_DONE,
    Proof.FABRIC_GOOD,
    Proof.FABRIC_RECOVERED,
    Proof.QUIET,
)


@pytest.mark.parametrize("proof", OF_THE_GPU)
def test_a_good_gpu_after_a_reboot_proves(proof: Proof) -> None:
    """Otherwise the tests below could not fail."""
    assert proves(case(proof, Scene()))


@pytest.mark.parametrize("proof", OF_THE_GPU)
@pytest.mark.parametrize(
    "fields", [{"error": "GPU_IS_LOST"}, {"recovery_action": 1}, {"recovery_action": 2}], ids=str
)
def test_a_gpu_that_does_not_answer_or_asks_for_something_proves_nothing(
    proof: Proof, fields: dict[str, Any]
) -> None:
    """Whatever the reboot did."""
    assert not proves(spoiled(case(proof, Scene()), **fields))


@pytest.mark.parametrize("proof", OF_THE_GPU)
def test_a_tool_that_hangs_proves_nothing(proof: Proof) -> None:
    """Time alone ends no fault of a GPU that nobody can ask."""
    good = case(proof, Scene())
    assert good.state.gpu is not None
    hung = msgspec.structs.replace(good.state.gpu, problem=SurveyProblem.HUNG)
    assert not proves(msgspec.structs.replace(good, state=msgspec.structs.replace(good.state, gpu=hung)))


@pytest.mark.parametrize("proof", OF_THE_GPU)
def test_a_gpu_that_reads_as_all_ones_on_the_bus_proves_nothing(proof: Proof) -> None:
    """NVML may answer from memory."""
    good = case(proof, Scene())
    assert good.state.pci is not None and good.fault.gpu is not None
    silent = tuple(
        msgspec.structs.replace(gpu, responds=gpu.address != good.fault.gpu.pci_address)
        for gpu in good.state.pci.gpus
    )
    pci = msgspec.structs.replace(good.state.pci, gpus=silent)
    assert not proves(msgspec.structs.replace(good, state=msgspec.structs.replace(good.state, pci=pci)))


@pytest.mark.parametrize(
    ("proof", "fields"),
    [
        (Proof.MEMORY_CLEAN, {"remap_pending": True}),
        (Proof.MEMORY_CLEAN, {"remap_failed": True}),
        (Proof.SRAM_CLEAN, {"sram_threshold_exceeded": True}),
        (Proof.FABRIC_GOOD, {"fabric_state": 2}),
        (Proof.FABRIC_GOOD, {"fabric_summary": 2}),
        (Proof.FABRIC_RECOVERED, {"fabric_state": 2}),
        (Proof.FABRIC_RECOVERED, {"fabric_summary": 2}),
    ],
)
def test_what_a_proof_is_about_has_to_be_good(proof: Proof, fields: dict[str, Any]) -> None:
    """A reboot does not excuse a row that waits, a limit that is exceeded, or a fabric that is not whole."""
    assert not proves(spoiled(case(proof, Scene()), **fields))


@pytest.mark.parametrize(
    ("proof", "fields"),
    [
        (Proof.REPAIR_DONE, {"channel_repair_pending": True}),
        (Proof.REPAIR_DONE, {"tpc_repair_pending": True}),
        (Proof.REPAIR_DONE, {"bank_remap_pending": True}),
        (Proof.FABRIC_GOOD, {"nvlinks": (True,) * 17 + (False,)}),
    ],
)
def test_what_the_details_say_counts_too(proof: Proof, fields: dict[str, Any]) -> None:
    """A repair that waits, or a link that this board once had."""
    good = case(proof, Scene())
    assert good.state.gpu is not None and good.fault.gpu is not None
    [gpu] = [g for g in good.state.gpu.gpus if g.pci_address == good.fault.gpu.pci_address]
    assert gpu.detail is not None
    assert not proves(spoiled(good, detail=msgspec.structs.replace(gpu.detail, **fields)))


@pytest.mark.parametrize("proof", [Proof.NEW_BOOT_AND_PRESENT, Proof.RECOVERY_NONE, Proof.SRAM_CLEAN])
def test_the_same_boot_proves_nothing_of_what_only_a_repair_cures(proof: Proof) -> None:
    """However good all of it reads."""
    good = case(proof, Scene())
    fault = msgspec.structs.replace(good.fault, boot_id=good.state.boot_id, watched_since=None)
    assert not proves(msgspec.structs.replace(good, fault=fault))


def test_a_board_whose_cells_are_used_up_is_never_proven_good() -> None:
    """Only its leaving ends that."""
    assert not proves(case(Proof.HARDWARE_LEFT, Scene()))
