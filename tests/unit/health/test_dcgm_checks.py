"""What DCGM may do to a verdict: be evidence, be a doubt, be a sentence; never a fault of its own."""

import msgspec
import pytest

from outlast.health.catalogue import builtin
from outlast.health.checks.dcgm_claims import CODE_LAST, DOUBT_POLLS, SERIOUS_XIDS
from outlast.health.checks.dcgm_exporter import FROZEN_S
from outlast.health.sources.dcgm_health import recognised
from outlast.model.health import FaultState, Subsystem
from outlast.model.observation import KernelLogCaughtUp, KernelLogLost, SurveyProblem
from outlast.model.observation.dcgm import (
    DcgmExporterSurvey,
    DcgmGpu,
    DcgmIncident,
    DcgmProblem,
    DcgmSurvey,
)
from tests.unit.health.builders import Scene


def incident(text: str, *, gpu: int = 3, health: str = "Failure", polls: int = DOUBT_POLLS, **fields: object):
    code, xid = recognised(text)
    base = DcgmIncident(
        entity_group="GPU",
        entity_id=gpu,
        system="Memory system",
        health=health,
        text=text,
        code=code,
        xid=xid,
        polls=polls,
    )
    return msgspec.structs.replace(base, **fields)


def failure(*incidents: DcgmIncident) -> DcgmSurvey:
    return DcgmSurvey(overall="Failure", incidents=incidents, version="4.6.0", engines=1)


def healthy() -> DcgmSurvey:
    return DcgmSurvey(overall="Healthy", version="4.6.0", engines=1)


def monitor_message(scene: Scene) -> str:
    return scene.verdict(Subsystem.MONITOR).message


# --- evidence


def test_dcgm_is_evidence_of_the_fault_that_nvml_finds() -> None:
    """One fault with both sources, of the class that NVML's own check gives it."""
    scene = Scene()
    scene.hardware.change(scene.gpu(3), remap_failed=True)
    scene.poll()

    scene.tell(failure(incident("GPU 3 had uncorrectable memory errors and row remapping failed.")))

    assert scene.fault.code == "remap/failed"
    assert scene.fault.fault_class == "HardwareGone"
    assert "dcgm/80" in scene.fault.summary
    assert [e.source for e in scene.fault.evidence] == ["NVML", "DCGM"]


def test_a_pending_remap_asks_for_a_reset_and_no_more() -> None:
    """The diagnostic's page retirement and row remap result is no reason to evict."""
    scene = Scene()
    scene.hardware.change(scene.gpu(3), remap_pending=True)
    scene.poll()

    scene.tell(failure(incident("GPU 3 had memory errors and row remappings are pending")))

    assert (scene.fault.code, scene.fault.fault_class) == ("remap/pending", "ResetCures")


def test_the_exporter_s_remap_failure_is_evidence_too() -> None:
    """Fields 393 and 395 of DCGM say what NVML says."""
    scene = Scene()
    scene.hardware.change(scene.gpu(2), remap_failed=True)
    scene.poll()

    gpu = DcgmGpu(index=2, pci_address=scene.gpu(2), remap_failed=True)
    scene.tell(DcgmExporterSurvey(gpus=(gpu,)))

    assert [e.source for e in scene.fault.evidence] == ["NVML", "DCGM exporter"]


def test_dcgm_s_silence_never_keeps_a_fault_open() -> None:
    """The engine dies after it agreed; NVML's proof is enough, and DCGM is not asked again."""
    scene = Scene()
    scene.hardware.change(scene.gpu(3), remap_pending=True)
    scene.poll()
    scene.tell(failure(incident("GPU 3 had memory errors and row remappings are pending")))
    scene.tell(DcgmSurvey(problem=DcgmProblem.ENGINE_DOWN, message="down"))

    scene.hardware.change(scene.gpu(3), remap_pending=False)
    scene.poll(8)

    assert scene.status.faults == ()
    assert scene.says()[0] == "Healthy"


# --- never a fault alone


ALONE = [
    "Detected XID 31 for GPU 3",
    "Detected XID 79 for GPU 3",
    "GPU 3 has fallen off the bus",
    "GPU 3 had uncorrectable memory errors and row remapping failed.",
    "GPU 3's NvLink link 2 is currently down",
    "GPU 3 requires a reset to recover from a fault. Recovery action: 1 (GPU_RESET).",
    "Detected clocks event due to power violation in GPU 3.",
    "A sentence of a later version",
    "Found 12 faulty memory elements on GPU 3",
]


@pytest.mark.parametrize("text", ALONE)
def test_dcgm_alone_opens_no_fault(text: str) -> None:
    """However long it says so."""
    scene = Scene()

    for _ in range(10):
        scene.tell(failure(incident(text)))
        scene.poll()

    assert scene.status.faults == ()
    assert scene.says()[0] != "Faulty"


@pytest.mark.parametrize("text", ALONE[:-2])
def test_what_nvml_or_the_log_can_judge_leaves_the_gpu_healthy(text: str) -> None:
    """Their word counts: DCGM keeps a last Xid for ever and calls links down that were never there."""
    scene = Scene()

    scene.tell(failure(incident(text)))

    assert scene.says() == ("Healthy", "GpusHealthy")
    assert scene.says(Subsystem.FABRIC)[0] == "Healthy"


@pytest.mark.parametrize("text", ALONE[-2:])
def test_a_failure_that_nothing_else_can_judge_is_a_doubt_after_three_reports(text: str) -> None:
    """A code that no table has, or memory that a watch found faulty: no new work, no drain, ask a human."""
    scene = Scene()

    scene.tell(failure(incident(text, polls=DOUBT_POLLS - 1)))
    assert scene.says()[0] == "Healthy"
    scene.tell(failure(incident(text, polls=DOUBT_POLLS)))

    assert scene.says() == ("Unknown", "DcgmDisagrees")
    assert scene.gpu(3) in scene.verdict().message
    scene.tell(healthy())
    assert scene.says()[0] == "Healthy"


def test_a_code_beyond_the_table_is_a_doubt() -> None:
    """UP-049: a later DCGM has codes that no edition lists; neither ignored nor fatal."""
    scene = Scene()

    scene.tell(failure(incident("some words", code=140)))

    assert scene.says() == ("Unknown", "DcgmDisagrees")
    assert scene.status.faults == ()


def test_the_last_code_that_is_known_is_that_of_the_catalogue() -> None:
    """A newer edition moves both."""
    assert builtin().dcgm(CODE_LAST) is not None
    assert builtin().dcgm(CODE_LAST + 1) is None


def test_a_failure_that_lists_nothing_is_a_doubt_about_the_machine() -> None:
    """A shape that is not understood is not read as health."""
    scene = Scene()

    for _ in range(DOUBT_POLLS):
        scene.tell(failure(incident("no incident is listed", gpu=0, entity_group="", entity_id=None)))

    assert scene.says() == ("Unknown", "DcgmDisagrees")
    assert "this machine" in scene.verdict().message


def test_a_warning_is_never_a_doubt() -> None:
    """Only what DCGM itself calls a failure."""
    scene = Scene()

    scene.tell(failure(incident("Found 12 faulty memory elements on GPU 3", health="Warning")))

    assert scene.says()[0] == "Healthy"


def test_an_application_error_in_dcgm_is_a_notice() -> None:
    """UP-012: the memory watch is fatal because of Xid 31, whose action is none. No dead end."""
    scene = Scene()

    scene.tell(failure(incident("Detected XID 31 for GPU 3")))

    assert scene.says()[0] == "Healthy"
    assert "Xid 31" in scene.verdict().message
    scene.tell(healthy())
    assert "Xid 31" not in scene.verdict().message


def test_without_the_kernel_log_a_serious_xid_of_dcgm_is_a_doubt() -> None:
    """It is the only witness then; with the log back its word counts for nothing."""
    scene = Scene()
    scene.tell(KernelLogLost(message="no /dev/kmsg"))

    scene.tell(failure(incident("Detected XID 79 for GPU 3")))
    assert scene.says() == ("Unknown", "DcgmDisagrees")
    scene.tell(KernelLogCaughtUp())
    scene.poll()

    assert scene.says()[0] == "Healthy"


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 94])
def test_without_the_kernel_log_other_xids_of_dcgm_are_none(xid: int) -> None:
    """Programs make those."""
    scene = Scene()
    scene.tell(KernelLogLost(message="no /dev/kmsg"))

    scene.tell(failure(incident(f"Detected XID {xid} for GPU 3")))
    scene.tell(DcgmExporterSurvey(gpus=(DcgmGpu(index=0, xid_last=xid),)))

    assert xid not in SERIOUS_XIDS
    assert scene.says()[0] == "Healthy"


def test_the_exporter_s_last_xid_is_no_event() -> None:
    """The gauge keeps its value after recovery, so with a readable log it says nothing at all."""
    scene = Scene()

    scene.tell(DcgmExporterSurvey(gpus=(DcgmGpu(index=0, xid_last=79),)))

    assert scene.says()[0] == "Healthy"
    assert "79" not in scene.verdict().message


def test_a_healthy_report_heals_nothing() -> None:
    """Issue 263: DCGM called a GPU healthy that the driver wanted reset."""
    scene = Scene()
    scene.hardware.change(scene.gpu(1), recovery_action=1)
    scene.poll()

    for _ in range(10):
        scene.tell(healthy())
        scene.poll()

    assert scene.fault.state is FaultState.OPEN


def test_a_gpu_that_nobody_can_map_is_named_as_dcgm_counts() -> None:
    """After a GPU is lost NVML's numbers move and DCGM's do not, so no address is guessed."""
    scene = Scene()
    scene.hardware.unplugged.add(scene.gpu(0))
    scene.poll(2)

    scene.tell(failure(incident("Found 12 faulty memory elements on GPU 3")))

    notes = [note.text for notes in scene.state.notes.values() for note in notes]
    assert any("GPU 3 (as DCGM counts)" in text for text in notes)
    assert [fault.code for fault in scene.status.faults] == ["gpu/missing"]


def test_the_exporter_maps_what_nvml_cannot() -> None:
    """Its labels give UUID or address for DCGM's own numbers."""
    scene = Scene()
    address = scene.gpu(5)
    scene.tell(DcgmExporterSurvey(gpus=(DcgmGpu(index=0, uuid="GPU-n-5"),)))

    scene.tell(failure(incident("Found 12 faulty memory elements on GPU 0", gpu=0)))

    assert address in scene.verdict().message


def test_a_switch_is_a_matter_of_the_fabric() -> None:
    """A fatal switch error is in doubt there, not at a GPU of the same number."""
    scene = Scene()
    text = "Detected fatal errors on NvSwitch 0 link 12 Run a field diagnostic on the GPU."

    scene.tell(failure(incident(text, gpu=0, entity_group="Switch")))

    assert scene.says(Subsystem.FABRIC) == ("Unknown", "DcgmDisagrees")
    assert scene.says()[0] == "Healthy"


def test_a_cpu_is_no_gpu() -> None:
    """DCGM 4 watches CPUs and adapters too: a sentence, never a doubt about GPUs."""
    scene = Scene()

    scene.tell(failure(incident("something", gpu=0, entity_group="CPU")))

    assert scene.says()[0] == "Healthy"
    assert scene.says(Subsystem.HOST)[0] == "Healthy"


# --- DCGM's own troubles


TROUBLES = [
    (DcgmProblem.ENGINE_DOWN, "DcgmUnusable"),
    (DcgmProblem.WATCHES_OFF, "dcgmi health -s a"),
    (DcgmProblem.HUNG, "hangs"),
    (DcgmProblem.VERSION_MISMATCH, "DcgmUnusable"),
    (DcgmProblem.DRIVER_TIMEOUT, "DcgmBlind"),
    (DcgmProblem.GARBAGE, "DcgmUnusable"),
]


@pytest.mark.parametrize(("problem", "words"), TROUBLES)
def test_trouble_of_dcgm_is_a_sentence_while_nvml_vouches(problem: DcgmProblem, words: str) -> None:
    """UP-039: a remote engine that hangs is a matter of monitoring. Nothing is blocked."""
    scene = Scene()

    for _ in range(5):
        scene.tell(DcgmSurvey(problem=problem, message="what it said", engines=1))
        scene.poll()

    assert scene.status.faults == ()
    assert scene.says(Subsystem.MONITOR) == ("Healthy", "MonitorHealthy")
    assert scene.says()[0] == "Healthy"
    assert words in monitor_message(scene)


def test_trouble_of_dcgm_ends_by_itself() -> None:
    """UP-036, UP-037: an engine that was restarted is believed with its next report."""
    scene = Scene()
    scene.tell(DcgmSurvey(problem=DcgmProblem.ENGINE_DOWN, message="down", engines=0))
    assert "DcgmUnusable" in monitor_message(scene)

    scene.tell(healthy())

    assert "Dcgm" not in monitor_message(scene)
    assert scene.says(Subsystem.MONITOR)[0] == "Healthy"


def test_a_hung_dcgm_adds_nothing_to_a_hung_nvml() -> None:
    """NVML's own silence fails closed; DCGM's is no second witness against the driver."""
    scene = Scene()
    scene.problem = SurveyProblem.HUNG
    scene.poll()

    scene.tell(DcgmSurvey(problem=DcgmProblem.HUNG, message="no answer", engines=1))

    assert scene.says(Subsystem.MONITOR) == ("Faulty", "DiagnosticsHung")
    assert not scene.fault.second_witness


def test_a_second_host_engine_is_a_matter_of_configuration() -> None:
    """UP-016: both compete for the profiling counters; no GPU is in doubt."""
    scene = Scene()

    scene.tell(msgspec.structs.replace(healthy(), engines=2))

    assert "keep one" in monitor_message(scene)
    assert scene.says()[0] == "Healthy"
    assert scene.status.faults == ()


def test_an_exporter_that_repeats_itself_is_blind() -> None:
    """After Xid 119 DCGM stops asking the driver: what it goes on saying is old, and claims nothing."""
    scene = Scene()
    gpu = DcgmGpu(index=0, pci_address=scene.gpu(0), remap_failed=True)

    scene.tell(DcgmExporterSurvey(gpus=(gpu,), frozen_s=FROZEN_S))

    assert "DcgmBlind" in monitor_message(scene)
    assert scene.says() == ("Healthy", "GpusHealthy")


def test_an_exporter_with_blank_values_is_blind() -> None:
    """A series that is missing is not a good one, nor a bad one."""
    scene = Scene()

    scene.tell(DcgmExporterSurvey(gpus=(DcgmGpu(index=0, blank=True), DcgmGpu(index=1, blank=True))))

    assert "DcgmBlind" in monitor_message(scene)
    assert scene.says()[0] == "Healthy"


def test_a_gpu_that_the_exporter_no_longer_shows_is_named() -> None:
    """UP-041: its series simply end, which no dashboard notices; NVML still reads it."""
    scene = Scene()
    shown = tuple(DcgmGpu(index=i, pci_address=scene.gpu(i)) for i in range(7))

    scene.tell(DcgmExporterSurvey(gpus=shown))

    assert f"shows nothing of GPU {scene.gpu(7)}, which" in monitor_message(scene)
    assert scene.says()[0] == "Healthy"
    last = DcgmGpu(index=7, pci_address=scene.gpu(7))
    scene.tell(DcgmExporterSurvey(gpus=(*shown, last)))
    assert "Dcgm" not in monitor_message(scene)


def test_a_failed_watch_of_the_exporter_is_a_sentence() -> None:
    """It does not say which watch: on GPUs without NVLink one fails for links that were never there."""
    scene = Scene()

    scene.tell(DcgmExporterSurvey(gpus=(DcgmGpu(index=3, pci_address=scene.gpu(3), health_status=20),)))

    assert scene.says() == ("Healthy", "GpusHealthy")
    assert f"a failed health watch against GPU {scene.gpu(3)}" in scene.verdict().message


def test_an_exporter_that_is_away_is_a_sentence() -> None:
    """UP-041: absence is said, and nothing follows from it."""
    scene = Scene()

    scene.tell(DcgmExporterSurvey(problem=DcgmProblem.ENGINE_DOWN, message="connection refused"))

    assert "connection refused" in monitor_message(scene)
    assert scene.says(Subsystem.MONITOR)[0] == "Healthy"


def test_what_is_said_does_not_move_with_each_report() -> None:
    """Counts in DCGM's words would make each report a write to the cluster."""
    scene = Scene()
    scene.tell(failure(incident("Found 12 faulty memory elements on GPU 3")))
    before = scene.answer.conditions

    scene.tell(failure(incident("Found 9000 faulty memory elements on GPU 3", polls=50)))

    assert scene.answer.conditions == before


def test_codes_alternate_without_a_flip() -> None:
    """UP-111: the codes are in the message, so the transition time stands still."""
    scene = Scene()
    scene.tell(failure(incident("Found 12 faulty memory elements on GPU 3")))
    since = scene.verdict().since

    scene.time_s += 60
    scene.tell(failure(incident("Detected 2 volatile double-bit ECC error(s) in GPU 4.", gpu=4)))

    assert scene.verdict().since == since
    assert scene.says() == ("Unknown", "DcgmDisagrees")
