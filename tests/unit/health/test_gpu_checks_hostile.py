"""Whatever NVML answers, the checks say something bounded, and what is unknown drains nobody."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.health.checks import LEVEL_CHECKS
from outlast.health.checks.declaration import Expected, KnownGpu, View
from outlast.health.counters import absorb, rebaselined
from outlast.health.learned import learned
from outlast.model.health import FaultClass
from outlast.model.observation import GpuDetail, GpuReading, GpuSurvey, PciDevice, PciSurvey
from tests.unit.health.builders import Scene

ADDRESSES = ("0000:10:1c.0", "0000:20:1c.0", "0000:30:1c.0")
TEXT_MAX = 400

numbers = st.one_of(
    st.none(),
    st.integers(0, 40),
    st.sampled_from([-(2**63), -(2**31), -1, 255, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1]),
)
flags = st.one_of(st.none(), st.booleans())
counts = st.dictionaries(st.sampled_from(["replay", "fatal", "x"]), st.integers(0, 2**64 - 1), max_size=3)
by_link = st.dictionaries(
    st.sampled_from(["replay", "recovery", "recovery_failed", "y"]),
    st.lists(numbers, max_size=40).map(tuple),
    max_size=3,
)


def struct(kind: type, fixed: dict[str, object] | None = None) -> st.SearchStrategy:
    """Any values in every field of a reading."""
    special = {
        "nvlinks": st.one_of(st.none(), st.lists(st.booleans(), max_size=40).map(tuple)),
        "nvlink_errors": by_link,
        "c2c_errors": counts,
        "pcie_errors": counts,
        "remap_histogram": st.one_of(st.none(), st.tuples(*[st.integers(0, 2**32 - 1)] * 5)),
        "mig_instances": st.one_of(st.none(), st.lists(st.integers(0, 20), max_size=16).map(tuple)),
        "mig_changed": st.booleans(),
        "process_ids": st.one_of(st.none(), st.lists(st.integers(0, 2**32 - 1), max_size=8).map(tuple)),
        "process_instances": st.just({}),
        "error": st.sampled_from(["", "", "", "GPU_IS_LOST", "NOT_FOUND", "NVML_777"]),
        **{name: st.text(max_size=128) for name in ("uuid", "serial", "name", "device_node")},
    }
    annotations = {name: str(text) for name, text in kind.__annotations__.items()}
    chosen = {
        name: special.get(name, flags if "bool" in text else numbers)
        for name, text in annotations.items()
        if name != "detail"
    }
    if kind is GpuReading:
        chosen["detail"] = st.one_of(st.none(), struct(GpuDetail))
    return st.builds(kind, **{**chosen, **{k: st.just(v) for k, v in (fixed or {}).items()}})


surveys = st.tuples(*(struct(GpuReading, {"pci_address": address}) for address in ADDRESSES)).map(
    lambda gpus: GpuSurvey(gpus=gpus, complete=True, detailed=True)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(surveys, min_size=1, max_size=3), st.sampled_from([True, False, None]), st.booleans())
def test_any_answer_gives_bounded_findings_about_known_things(
    looks: list[GpuSurvey], loaded: bool | None, late: bool
) -> None:
    """No check raises; texts are bounded; without a driver no GPU is blamed."""
    devices = tuple(
        PciDevice(address=a, vendor=0x10DE, device=1, class_code=0x0302, driver="nvidia") for a in ADDRESSES
    )
    pci = PciSurvey(gpus=devices, driver_loaded=loaded)
    book = rebaselined()
    known: dict[str, KnownGpu] = {}
    for number, survey in enumerate(looks):
        book = absorb(book, survey.counters(), 100.0 * number)
        known = {gpu.pci_address: learned(gpu, known.get(gpu.pci_address)) for gpu in survey.gpus}
        view = View(
            expected=Expected(gpus=len(ADDRESSES), known_gpus=tuple(known.values())),
            pci=pci,
            gpu=survey,
            initializing=late,
            just_started=late,
            kernel_log_lost="",
            counters=book,
        )
        for check in LEVEL_CHECKS:
            said = check.run(view) if GpuSurvey in check.sources else None
            if said is None:
                continue
            assert len(said.bad) <= len(ADDRESSES) + 1
            for level in said.bad:
                assert level.gpu in (*ADDRESSES, "")
                assert len(level.summary) <= TEXT_MAX + 128
                assert level.polls >= 1
            if loaded is False:
                assert not any(level.gpu for level in said.bad)


@settings(max_examples=25, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "clocks_event_reasons": st.sampled_from([0, 1, 2, 4, 0x10, 0x100, 2**64 - 1, None]),
            "temperature_c": st.one_of(st.none(), st.integers(0, 88)),
            "temperature_margin_c": st.one_of(st.none(), st.integers(1, 90)),
            "performance_state": st.one_of(st.none(), st.integers(0, 15)),
            "pcie_generation": st.integers(1, 5),
            "ecc_corrected_volatile": st.one_of(st.none(), st.integers(0, 2**64 - 1)),
            "ecc_uncorrected_volatile": st.one_of(st.none(), st.integers(0, 2**64 - 1)),
            "sram_uncorrected": st.one_of(st.none(), st.integers(0, 1000)),
            "remapped_corrected": st.integers(0, 512),
            "memory_used_bytes": st.integers(0, 80 * 1024**3),
            "fabric_clique": numbers,
            "minor": st.one_of(st.none(), st.integers(0, 63)),
            "persistence_enabled": flags,
        }
    )
)
def test_a_gpu_that_was_always_like_this_is_no_fault(fields: dict[str, object]) -> None:
    """Old counts, odd clocks, idle links, hidden values: nothing that may be normal opens a fault."""
    scene = Scene(checked=False)
    scene.hardware.change(scene.gpu(3), **fields)
    scene.poll(24)
    assert scene.status.faults == ()


def test_no_check_of_readings_drains_for_speed_or_software() -> None:
    """Heat, power, narrow links, a fabric that forms late and drivers block new work and nothing more."""
    scene = Scene()
    scene.poll(25)
    for index in range(8):
        scene.hardware.change(
            scene.gpu(index),
            clocks_event_reasons=0xE8,
            temperature_margin_c=-9,
            fabric_state=2,
            sram_uncorrected=3,
        )
    scene.hardware.change(scene.gpu(0), pcie_width=1)
    scene.poll(30)
    assert scene.status.faults != ()
    assert {fault.fault_class for fault in scene.status.faults} == {FaultClass.TRANSIENT}
