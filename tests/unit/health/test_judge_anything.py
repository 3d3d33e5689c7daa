"""Whatever machines do: no exception, nothing grows, the same answer again, no fault lost by a restart."""

from __future__ import annotations

from random import Random

import pytest

from outlast.health.catalogue import builtin
from outlast.health.verdict import judge, restore, to_bytes
from outlast.health.verdict.memory import STATE_BYTES_MAX
from outlast.health.verdict.state import (
    CODES_PER_FAULT_MAX,
    FAULTS_KEPT_MAX,
    HELD_MAX,
    REPEATS_MAX,
    TALLIES_MAX,
)
from outlast.model.health import EVIDENCE_MAX, FaultClass
from outlast.model.observation import (
    KernelLogCaughtUp,
    KernelLogGap,
    KernelLogLost,
    ProcessSurvey,
    RdmaSurvey,
    StuckTask,
    SurveyProblem,
    Witness,
)
from tests.unit.health.builders import USER, Scene

LINES = (
    "NVRM: Xid (PCI:{a}{gi}): {code}, pid={pid}, name={name}, {text}",
    "NVRM: Xid (PCI:{a}): {code}",
    "nvidia-nvswitch1: SXid (PCI:{a}.0): {sxid}, {word}, Link {link} something",
    "NVRM: GPU {a}.0: RmInitAdapter failed! (0x62:0x40:2168)",
    "NVRM: The NVIDIA GPU {a}",
    "NVRM: fallen off the bus and is not responding to commands.",
    "INFO: task {name}:{pid} blocked for more than 122 seconds.",
    "watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [{name}:{pid}]",
    "pcieport 0000:00:03.1: AER: Uncorrected (Fatal) error received: 0000:00:03.1",
    "Out of memory: Killed process {pid} ({name}) total-vm:3500000kB",
    "nvme nvme{link}: Disabling device after reset failure: -19",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
    "{text}",
)
TEXTS = (
    "RST: Yes, D-RST: No",
    "RST: No, D-RST: No",
    "GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
    "Ch 1 caused by previous Xid 62",
    "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x0 0x0 0x0 0x0)",
    "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): x",
    "\x00\xff, name=, Xid (PCI:0000:01:00): 79",
)
CODES = (*range(1, 180), 999, 99_999)


class Life:
    """One machine and what happens to it, drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.scene = Scene()

    def step(self) -> None:
        """One thing happens."""
        rng, scene = self.rng, self.scene
        scene.time_s += rng.choice([0.0, 0.001, 0.5, 6.0, 20.0, 200.0, 4000.0])
        scene.wall_step_s = rng.choice([0.0, -1e6, 1e6])
        kind = rng.randrange(12)
        address = scene.gpu(rng.randrange(8))
        if kind < 6:
            scene.line(
                self.line(address[:-2]),
                priority=USER if rng.random() < 0.05 else 4,
                replayed=rng.random() < 0.1,
            )
        elif kind == 6:
            scene.poll(rng.randrange(1, 4))
        elif kind == 7:
            scene.hardware.change(
                address,
                recovery_action=rng.choice([None, 0, 0, 1, 2, 3, 4, 9]),
                remap_pending=rng.choice([None, False, True]),
                serial=rng.choice(["", "s1", address]),
                uuid=rng.choice(["", "u1", f"u{address}"]),
                process_ids=rng.choice([None, (), (1, 2)]),
                error=rng.choice(["", "", "", "GPU_IS_LOST"]),
            )
        elif kind == 8:
            scene.problem = rng.choice([None, None, *SurveyProblem])
            (
                scene.hardware.off_bus if rng.random() < 0.5 else scene.hardware.unplugged
            ).symmetric_difference_update({address})
        elif kind == 9:
            task = StuckTask(pid=1, tid=2, name="n1", asleep_s=rng.random() * 200, witness=Witness.STACK)
            scene.tell(ProcessSurvey(stuck=(task,) * rng.randrange(2), whole_machine=rng.random() < 0.5))
            scene.tell(RdmaSurvey(readable=rng.random() < 0.8))
            scene.owners(a=1, b=2)
        elif kind == 10:
            log = [KernelLogGap(lost=1, reason="x"), KernelLogLost(message="x"), KernelLogCaughtUp()]
            scene.tell(rng.choice(log))
            scene.suspended_s += rng.choice([0.0, 0.0, 100.0])
            scene.tell(scene.facts())
        elif rng.random() < 0.5:
            scene.restart()
        else:
            scene.reboot()

    def line(self, address: str) -> str:
        """Some line."""
        rng = self.rng
        return rng.choice(LINES).format(
            a=rng.choice([address, "ffff:ff:1f", "0000:99:00"]),
            gi=rng.choice(["", " GPU-I:05"]),
            code=rng.choice(CODES),
            pid=rng.choice([1, 2, 3, "'<unknown>'"]),
            name=rng.choice(["n1", "n2", "<unknown>"]),
            text=rng.choice(TEXTS),
            sxid=rng.choice([10003, 12028, 20034, 77777]),
            word=rng.choice(["Fatal", "Non-fatal"]),
            link=rng.randrange(40),
        )


@pytest.mark.parametrize("seed", range(6))
def test_any_life_is_judged_and_nothing_grows(seed: int) -> None:
    """Two hundred things happen in any order; every bound holds after each."""
    life = Life(seed)
    for _ in range(200):
        life.step()
        state = life.scene.state
        assert len(state.faults) <= FAULTS_KEPT_MAX
        assert len({fault.id for fault in state.faults}) == len(state.faults)
        assert all(len(fault.codes) <= CODES_PER_FAULT_MAX for fault in state.faults)
        assert all(len(fault.evidence) <= EVIDENCE_MAX for fault in state.faults)
        assert all(
            [code.rank for code in fault.codes] == sorted(code.rank for code in fault.codes)
            for fault in state.faults
        )
        assert len(state.held) <= HELD_MAX
        assert len(state.repeats) <= REPEATS_MAX
        assert len(state.tallies) <= TALLIES_MAX
        assert all(fault.fault_class is not FaultClass.APPLICATION for fault in state.faults)


@pytest.mark.parametrize("seed", range(100, 102))
def test_the_answer_that_is_kept_is_the_answer_that_would_be_given(seed: int) -> None:
    """Where the judge says that nothing changed, a judge without that memory agrees."""
    life = Life(seed)
    for _ in range(150):
        life.step()
        kept = life.scene.tell()
        fresh = judge(_forgetful(life.scene), [], life.scene.now, builtin())
        assert kept.status == fresh.status
        assert kept.conditions == fresh.conditions


def _forgetful(scene: Scene):  # type: ignore[no-untyped-def]
    return type(scene.state)(
        **{name: getattr(scene.state, name) for name in scene.state.__struct_fields__ if name != "answer"}
    )


@pytest.mark.parametrize("seed", range(200, 203))
def test_a_restart_at_any_moment_loses_no_fault_and_invents_none(seed: int) -> None:
    """What is saved is what stood."""
    life = Life(seed)
    for _ in range(100):
        life.step()
        scene = life.scene
        saved = to_bytes(scene.state)
        assert len(saved) <= STATE_BYTES_MAX
        state, problem = restore(saved, scene.boot, "p5.48xlarge", scene.settings, scene.now)
        assert problem == ""
        assert [(f.id, f.fault_class, f.state) for f in state.faults] == [
            (f.id, f.fault_class, f.state) for f in scene.state.faults
        ]
