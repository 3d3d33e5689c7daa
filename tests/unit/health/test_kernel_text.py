"""Kernel text to facts: the grammar of real lines, and nothing else, whatever arrives."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.health.catalogue import builtin
from outlast.health.checks import EVENT_CHECKS
from outlast.health.finding import Event, Role
from outlast.health.sources.facts import (
    FACT_TEXT_MAX,
    DriverLoadedFact,
    Fact,
    GspFact,
    HungTaskFact,
    InitFailedFact,
    LineFact,
    OffBusFact,
    ProbeFailedFact,
    SxidFact,
    XidFact,
    normalise,
)
from outlast.health.sources.kernel_text import LineMemory, interesting, read, trusted
from outlast.model.health import FaultClass
from outlast.model.observation import KernelRecord
from tests.unit.health.builders import USER, record

SAMPLES = Path(__file__).parents[2] / "data" / "kmsg-samples.tsv"

FAULT_KINDS = {
    "gsp_rate_limit": GspFact,
    "gsp_heartbeat_lost": GspFact,
    "driver_probe_failed": ProbeFailedFact,
    "driver_init_failed": InitFailedFact,
    "sxid": SxidFact,
    "sxid_detail": SxidFact,
}


def samples() -> list[list[str]]:
    rows = list(csv.reader(SAMPLES.read_text("utf-8").splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
    return rows[1:]


def fact_of(text: str) -> Fact | None:
    printed = record(text)
    return read(printed, LineMemory())[0] if interesting(printed) else None


def event_of(text: str) -> Event | None:
    fact = fact_of(text)
    return EVENT_CHECKS[0].run(fact, builtin()) if fact else None


def xid_of(text: str) -> XidFact:
    fact = fact_of(text)
    assert isinstance(fact, XidFact)
    return fact


@pytest.mark.parametrize("row", [r for r in samples() if r[0] == "xid"], ids=lambda r: f"{r[1]} {r[2][:20]}")
def test_every_real_xid_line_has_its_code_and_address(row: list[str]) -> None:
    """Each real Xid line of the collection is read with the code it is filed under."""
    fact = xid_of(row[3])
    assert fact.code == int(row[1])
    assert fact.address in row[3].lower() or fact.address[:-2] in row[3].lower()


@pytest.mark.parametrize(
    "row", [r for r in samples() if r[0] not in {"xid", *FAULT_KINDS}], ids=lambda r: f"{r[0]} {r[2][:20]}"
)
def test_real_lines_of_other_kinds_open_no_fault(row: list[str]) -> None:
    """Lines that no check of this version judges, the negatives among them, make no event."""
    assert event_of(row[3]) is None


@pytest.mark.parametrize("row", [r for r in samples() if r[0] in FAULT_KINDS], ids=lambda r: f"{r[0]} {r[1]}")
def test_real_driver_lines_without_xid_are_understood(row: list[str]) -> None:
    """GSP, probe, init and NVSwitch lines become facts of their kind."""
    assert isinstance(fact_of(row[3]), FAULT_KINDS[row[0]])


CLASSES = {
    79: FaultClass.REBOOT_CURES,
    14: FaultClass.APPLICATION,
    43: FaultClass.APPLICATION,
    64: FaultClass.HARDWARE_GONE,
    63: FaultClass.RESET_CURES,
    45: FaultClass.APPLICATION,
    69: FaultClass.APPLICATION,
    31: FaultClass.APPLICATION,
    46: FaultClass.RESET_CURES,
    62: FaultClass.RESET_CURES,
    13: FaultClass.APPLICATION,
    109: FaultClass.RESET_CURES,
    137: FaultClass.APPLICATION,
    94: FaultClass.TRANSIENT,
}


@pytest.mark.parametrize(
    "row", [r for r in samples() if r[0] == "xid" and int(r[1]) in CLASSES], ids=lambda r: r[1]
)
def test_every_real_xid_line_has_its_class(row: list[str]) -> None:
    """The class of a real line is the one that its cure needs."""
    event = event_of(row[3])
    assert event is not None
    assert event.fault_class is CLASSES[int(row[1])]


def test_the_three_forms_of_the_off_bus_text_are_one_fact() -> None:
    """One record with newlines, three records, and the short form all name the GPU that is gone."""
    text = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    whole = fact_of(text)
    memory, pieces = LineMemory(), []
    for line in text.split("\n"):
        fact, memory = read(record(line), memory)
        pieces.append(fact)
    short = fact_of("NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.")
    for fact in (whole, pieces[2], short):
        assert isinstance(fact, OffBusFact)
        assert fact.address == "0000:b3:00.0"
    assert pieces[:2] == [None, None]


@pytest.mark.parametrize(
    "printed",
    [
        "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at 0000:b3:00.0 has fallen off the bus.",
        "NVRM: GPU at PCI:0000:b3:00: GPU has fallen off the bus.",
    ],
)
def test_drivers_of_every_age_say_that_a_gpu_is_off_the_bus(printed: str) -> None:
    """Old ones put the address and the words in one sentence."""
    fact = fact_of(printed)
    assert isinstance(fact, OffBusFact)
    assert fact.address == "0000:b3:00.0"


def facts_of(*texts: str) -> list[Fact]:
    """The facts in lines that follow each other."""
    memory, found = LineMemory(), []
    for number, text in enumerate(texts):
        fact, memory = read(record(text, number, number * 1000), memory)
        found += [fact] if fact is not None else []
    return found


UNSUPPORTED = (
    "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1d01)",
    "NVRM: installed in this system is not supported by open",
    "NVRM: nvidia.ko because it does not include the required GPU",
)
FAILED = "NVRM: The NVIDIA probe routine failed for 1 device(s)."
FAILED_TWICE = "NVRM: The NVIDIA probe routine failed for 2 device(s)."
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build"


def test_a_card_that_the_driver_does_not_support_has_not_failed() -> None:
    """A display card beside the GPUs fails each start of the driver and breaks nothing."""
    assert [type(fact) for fact in facts_of(*UNSUPPORTED, FAILED)] == [LineFact, LineFact]
    assert [type(fact) for fact in facts_of("\n".join(UNSUPPORTED), FAILED)] == [LineFact, LineFact]
    [_, failed] = facts_of(*UNSUPPORTED, FAILED_TWICE)
    assert isinstance(failed, ProbeFailedFact)
    assert failed.devices == 1


def test_what_a_driver_does_not_support_is_asked_again_of_the_next() -> None:
    """Another driver is loaded: a start that fails now has another cause."""
    told = facts_of(*UNSUPPORTED, FAILED, LOADED, FAILED)
    assert [type(fact) for fact in told] == [LineFact, LineFact, DriverLoadedFact, ProbeFailedFact]
    start = "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)"
    assert [type(fact) for fact in facts_of(*UNSUPPORTED, start)] == [LineFact, LineFact]
    assert [type(fact) for fact in facts_of(*UNSUPPORTED, LOADED, start)][-1] is InitFailedFact
    other = start.replace("0000:01", "0000:41")
    assert [type(fact) for fact in facts_of(*UNSUPPORTED, other)][-1] is InitFailedFact


@pytest.mark.parametrize(
    "probe",
    [
        "nvidia: probe of 0000:5d:00.0 failed with error -1",
        "nvidia 0000:5d:00.0: probe with driver nvidia failed with error -1",
    ],
)
def test_a_failed_probe_is_about_the_gpu_that_the_kernel_names(probe: str) -> None:
    """The driver only counts; what the kernel named beside it is not counted again as somewhere."""
    [named, counted] = facts_of(probe, FAILED)
    assert isinstance(named, InitFailedFact)
    assert named.address == "0000:5d:00.0"
    assert isinstance(counted, LineFact)
    [_, left] = facts_of(probe, FAILED_TWICE)
    assert isinstance(left, ProbeFailedFact)
    assert left.devices == 1
    [_, _, counted] = facts_of(*UNSUPPORTED, probe, FAILED_TWICE)
    assert isinstance(counted, LineFact)


def test_a_gpu_lost_at_load_is_one_fault() -> None:
    """The words for it, the kernel's failed probe and the driver's count are about one GPU."""
    lost = (
        "NVRM: The NVIDIA GPU 0000:5d:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "nvidia: probe of 0000:5d:00.0 failed with error -1",
    )
    assert [type(fact) for fact in facts_of(*lost, FAILED)] == [OffBusFact, LineFact]
    assert [type(fact) for fact in facts_of(*lost, FAILED, LOADED, FAILED)][-1] is ProbeFailedFact


def test_a_disk_that_may_be_pulled_out_condemns_no_machine() -> None:
    """Its errors count as those of any passing device, until its name is given to a fixed disk."""
    stick = "sd 6:0:0:0: [sdc] Attached SCSI removable disk"
    fixed = "sd 6:0:0:0: [sdc] Attached SCSI disk"
    broken = (
        "EXT4-fs (sdc1): Remounting filesystem read-only",
        "I/O error, dev sdc, sector 2048 op 0x1:(WRITE)",
    )
    volume = ["storage/read-only-volume", "storage/io-error-passing"]
    own = ["storage/read-only", "storage/io-error"]
    kinds = [fact.kind for fact in facts_of(stick, *broken) if isinstance(fact, LineFact)]
    assert kinds == volume
    kinds = [fact.kind for fact in facts_of(stick, fixed, *broken) if isinstance(fact, LineFact)]
    assert kinds == own
    kinds = [fact.kind for fact in facts_of(*broken) if isinstance(fact, LineFact)]
    assert kinds == own


def test_an_off_bus_text_without_its_end_is_forgotten() -> None:
    """The first of three lines alone means nothing, and does not wait for ever."""
    fact, memory = read(record("NVRM: The NVIDIA GPU 0000:b3:00.0"), LineMemory())
    assert fact is None
    for _ in range(5):
        _, memory = read(record("NVRM: something else"), memory)
    assert read(record("NVRM: fallen off the bus and is not responding to commands."), memory)[0] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:00000000:10:1c.0): 79", {"address": "0000:10:1c.0", "code": 79}),
        ("NVRM: Xid (PCI:00010000:10:1C): 79", {"address": "10000:10:1c.0"}),
        ("NVRM: GPU0 NVRM: Xid (PCI:0000:01:00): 48, DBE", {"code": 48}),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 13, x", {"gpu_instance": 5, "compute_instance": 1}),
        (
            "NVRM: Xid (PCI:0000:01:00): 31, pid='<unknown>', name=<unknown>, text",
            {"pid": "'<unknown>'", "process": "<unknown>", "detail": "text"},
        ),
        ("NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=a, b, c", {"process": "a", "detail": "b, c"}),
        ("NVRM: Xid (PCI:0000:01:00): 95, RST: Yes, D-RST: No", {"reset": True, "drain_reset": False}),
        ("NVRM: Xid (PCI:0000:01:00): 94, RST: No, D-RST: Yes", {"reset": False, "drain_reset": True}),
        ("NVRM: Xid (PCI:0000:01:00): 45, Ch 1 caused by previous Xid 145", {"previous_xid": 145}),
        ("NVRM: Xid (PCI:0000:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x0", {"fatal": True}),
        ("NVRM: Xid (PCI:0000:01:00): 149, NETIR Nonfatal XC0", {"fatal": False}),
        (
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)",
            {"recovery_action": 1},
        ),
    ],
)
def test_the_xid_grammar(text: str, expected: dict[str, object]) -> None:
    """Every optional part of a Xid line is read where it is there."""
    fact = xid_of(text)
    assert {name: getattr(fact, name) for name in expected} == expected


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:01:00): 7999999, x",
        "NVRM: Xid (PCI:0000:01): 79",
        "NVRM: Xid (PCI:0000:01:00) 79",
        "NVRM: Xid 79",
        "Xid (PCI:0000:01:00): 79, no driver prefix",
        "python: Xid (PCI:0000:01:00): 79",
    ],
)
def test_what_only_looks_like_a_xid_is_none(text: str) -> None:
    """A line that breaks the grammar, or that the driver did not print, is no Xid."""
    assert not isinstance(fact_of(text), XidFact)


def test_a_process_name_cannot_add_a_second_xid_or_a_reset_flag() -> None:
    """Only the first Xid of a record counts, and the decisive words are not looked for in the name."""
    fact = xid_of("NVRM: Xid (PCI:0000:01:00): 13, pid=1, name=x\nNVRM: Xid (PCI:0000:02:00): 79, RST: Yes")
    assert (fact.code, fact.address) == (13, "0000:01:00.0")
    fact = xid_of("NVRM: Xid (PCI:0000:01:00): 94, pid=1, name=RST: Yes, Contained: x. RST: No, D-RST: No")
    assert (fact.process, fact.reset) == ("RST: Yes", False)


def test_a_switch_error_is_not_a_gpu_error() -> None:
    """SXid contains the letters of Xid, and its severity is read from the line."""
    fact = fact_of("nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert isinstance(fact, SxidFact)
    assert (fact.code, fact.fatal, fact.link) == (20034, True, 30)


def test_the_banner_and_hung_tools_are_noted() -> None:
    """The driver's banner starts the time of boot noise; a hung NVIDIA tool is a witness."""
    banner = fact_of("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build")
    assert isinstance(banner, DriverLoadedFact)
    assert banner.version == "570.158.01"
    assert isinstance(fact_of("INFO: task nvidia-smi:4711 blocked for more than 122 seconds."), HungTaskFact)
    other = fact_of("INFO: task containerd-shim:931150 blocked for more than 122 seconds.")
    assert not isinstance(other, HungTaskFact)


def test_only_the_kernels_own_facility_is_trusted() -> None:
    """Any root process can write to the kernel log, but not as the kernel."""
    assert trusted(record("x"))
    assert not trusted(record("x", priority=USER))
    assert trusted(record("x", priority=USER), trust_user_records=True)


@settings(deadline=None)  # the machine may be busy
@given(st.text(max_size=400))
def test_no_text_is_too_strange(text: str) -> None:
    """Any text is read without an exception, and what comes out is bounded."""
    for candidate in (text, f"NVRM: Xid (PCI:0000:01:00): 79{text}", f"NVRM: {text}", f"SXid ({text}"):
        fact, _ = read(KernelRecord(sequence=1, timestamp_us=1, priority=4, text=candidate), LineMemory())
        if fact is not None:
            assert len(fact.text) <= FACT_TEXT_MAX + len("NVRM: ")
            EVENT_CHECKS[0].run(fact, builtin())


@pytest.mark.parametrize("filler", ["a", "NVRM: ", "Xid (", "NVRM: Xid (PCI:0000:", "\x00", ", "])
def test_a_line_of_a_megabyte_is_read_in_bounded_time(filler: str) -> None:
    """A hostile long line costs no more than its first 64 KiB."""
    text = "NVRM: Xid (PCI:0000:01:00): 13, pid=1, name=" + filler * (1024 * 1024 // len(filler))
    fact = xid_of(text)
    assert fact.code == 13
    assert len(fact.text) <= FACT_TEXT_MAX + len("NVRM: ")
    assert read(record(filler * (1024 * 1024 // len(filler))), LineMemory())[0] is None


def test_nvlink_severity_decides_between_record_and_fault() -> None:
    """A non-fatal NVLink 5 line is recorded, a fatal one opens a fault, an unreadable one is unknown."""
    line = "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB {} XC0 i0 Link 0 (0x00000001 {})"
    said = (("Nonfatal", "0x00000008"), ("Fatal", "0x00000010"), ("Nonf", "0x00000008"))
    roles = [event.role for words in said if (event := event_of(line.format(*words)))]
    assert roles == [Role.INFORMATIONAL, Role.LEADER, Role.UNEXPECTED]


@pytest.mark.parametrize(
    ("printed", "normal"),
    [("00000000:10:00.0", "0000:10:00.0"), ("PCI:0000:AB:1C", "0000:ab:1c.0"), ("nonsense", "nonsense")],
)
def test_addresses_have_one_form(printed: str, normal: str) -> None:
    """NVML, the driver and sysfs print addresses differently; we compare one form."""
    assert normalise(printed) == normal
