"""NVLink 5 lines are judged by sub-code, status and severity word together, on either driver generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.catalogue import NvlinkEntry, builtin, nvlink5
from outlast.health.checks import kernel_log
from outlast.health.finding import Event, Role
from outlast.health.sources import kernel_text
from outlast.health.sources.facts import XidFact
from outlast.model.health import FaultClass, Scope
from tests.unit.health.builders import record

ROWS = builtin().nvlink5


def event_of(line: str) -> Event:
    """What the check makes of one line."""
    fact, _ = kernel_text.read(record(line), kernel_text.LineMemory())
    assert isinstance(fact, XidFact)
    event = kernel_log.run(fact, builtin())
    assert event is not None
    return event


def line_of(entry: NvlinkEntry, unit: str, *, before_r575: bool, noise: int = 0) -> str:
    """A line as the driver prints it for a row; `noise` sets bits that the row leaves free."""
    first, status = nvlink5.example(entry, before_r575=before_r575)
    bits = entry.bits_before_r575 if before_r575 else entry.bits
    free = int(bits.replace("1", "0").replace("-", "1"), 2)
    words = " ".join(f"0x{word:08x}" for word in (first | noise & free, status, 0, 0, 0, 0))
    said = "Fatal" if entry.fatal else "Nonfatal"
    return f"NVRM: Xid (PCI:0018:01:00): {entry.xid}, {unit} {said} XC0 i0 Link 13 ({words})"


@pytest.mark.parametrize("before_r575", [False, True], ids=["r575", "before"])
@pytest.mark.parametrize("noise", [0, 0xFFFFFFFF], ids=["plain", "free-bits-set"])
@pytest.mark.parametrize("entry", ROWS, ids=lambda e: f"{e.xid}-{e.unit}-{e.subcode}-{e.status}")
def test_a_line_is_judged_by_its_row(entry: NvlinkEntry, before_r575: bool, noise: int) -> None:
    """A non-fatal row is recorded, a fatal one leads with its own class; the decoded parts are told."""
    for unit in entry.unit.split("/"):
        event = event_of(line_of(entry, unit, before_r575=before_r575, noise=noise))
        assert event.role is (Role.LEADER if entry.fatal else Role.INFORMATIONAL)
        assert event.fault_class is entry.fault_class
        assert event.blames_peer is entry.blames_peer
        assert (event.link, event.code) == (13, f"xid/{entry.xid}")
        assert f"sub-code {entry.subcode}, status {entry.status}" in event.summary


def test_peers_are_blamed_and_never_drained_for() -> None:
    """Sub-codes 21 and 32 to 37 point to the other end of the link; alone they only block new work."""
    blaming = [entry for entry in ROWS if entry.blames_peer]
    assert [entry.subcode for entry in blaming] == [21, *range(32, 38)]
    assert {entry.fault_class for entry in blaming} == {FaultClass.TRANSIENT}


REAL = [
    # gpud issues 1160 and 1174 and its tests, addresses kept
    (
        "145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 "
        "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
        Role.INFORMATIONAL,
        "RLW_RXPIPE, sub-code 0, status 0x00000008, Nonfatal, link 13",
    ),
    (
        "145, pid=11436, name=cache_mgr_main, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 "
        "(0x040868e2 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
        Role.INFORMATIONAL,
        "RLW_SRC_TRACK, sub-code 0",
    ),
    (
        "149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000 0x00000000 0x0 0x0)",
        Role.INFORMATIONAL,
        "NETIR_BER_EVENT",
    ),
    (
        "149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        Role.LEADER,
        "NETIR, sub-code 0, status 0x00000000, Fatal)",
    ),
    (
        "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x0 0x0 0x0)",
        Role.LEADER,
        "sub-code 33",
    ),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x0 0x0)", Role.LEADER, "sub-code 4"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000)", Role.LEADER, "sub-code 37"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)", Role.LEADER, "sub-code 38"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x016415c6 0x00000000)", Role.LEADER, "sub-code 22"),
    (
        "144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000 0x0 0x0 0x0)",
        Role.INFORMATIONAL,
        "SAW_MVB, sub-code 0",
    ),
    ("145, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000 0x0 0x0)", Role.INFORMATIONAL, "RLW_CTRL"),
    # NVIDIA's own example of 150, with a word between unit and severity
    (
        "150, MSE Degraded Fatal XC0 i0 Link -1 (0x00000000 0x00000000 0x00000000 0x0 0x0 0x0)",
        Role.LEADER,
        "MSE,",
    ),
    (
        "149, NETIR_LINK_EVT/NETIR_LINK_DOWN Fatal XC0 i0 Link 00 (0x02500011 0x00000000)",
        Role.LEADER,
        "sub-code 37",
    ),
    # cut short, or of a form that says too little
    ("145, RLW_REMAP Nonfatal XC0 i0 Link 02", Role.UNEXPECTED, "no status"),
    ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406", Role.UNEXPECTED, "no sub-code"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 ...)", Role.UNEXPECTED, "sub-code 37, no status"),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0000", Role.UNEXPECTED, "no status"),
    ("149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]", Role.UNEXPECTED, "link 1"),
    ("149, NETIR_LINK_EVT Fat", Role.UNEXPECTED, "no severity"),
    ("145, driver-specific detail", Role.UNEXPECTED, "no unit"),
    ("150", Role.UNEXPECTED, "no unit"),
    # listed, but not so
    ("149, NETIR_LINK_DOWN Nonfatal XC1 i2 Link 17 (0x000001c6 0x00000000)", Role.UNEXPECTED, "Nonfatal"),
    (
        "146, TLW_RX_PIPE1 Nonfatal XC0 i0 Link 03 (0x00000010 0x00000020 0x30 0x40)",
        Role.UNEXPECTED,
        "TLW_RX",
    ),
    ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x03f001c6 0x00000000)", Role.UNEXPECTED, "sub-code 63"),
    ("144, NEW_UNIT Fatal XC0 i0 Link 00 (0x00000001 0x00000002)", Role.UNEXPECTED, "NEW_UNIT"),
]


@pytest.mark.parametrize(("text", "role", "told"), REAL, ids=lambda value: str(value)[:48])
def test_real_lines(text: str, role: Role, told: str) -> None:
    """Lines from the field: what is whole and listed is judged, everything else is Unknown and no drain."""
    event = event_of(f"NVRM: Xid (PCI:0018:01:00): {text}")
    assert event.role is role
    assert told in event.summary
    if role is Role.UNEXPECTED:
        assert event.fault_class is FaultClass.TRANSIENT


def test_several_flags_at_once_are_as_bad_as_the_worst() -> None:
    """A status with two flags is judged by the worse one, and by none when one of them is unknown."""
    line = "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Fatal XC0 i0 Link 0 (0x00000001 {})"
    assert event_of(line.format("0x00000012")).role is Role.LEADER
    assert event_of(line.format("0x0000000a")).role is Role.LEADER
    assert event_of(line.format("0x00000042")).role is Role.UNEXPECTED


def test_a_status_that_is_a_number_is_not_taken_apart() -> None:
    """Status 6 of a firmware event is not status 2 and 4."""
    line = "NVRM: Xid (PCI:0000:01:00): 149, NETIR_MFDE_EVENT Fatal XC0 i0 Link 1 (0x00000014 0x00000006)"
    assert event_of(line).role is Role.UNEXPECTED


SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): {}"


@pytest.mark.parametrize(
    ("text", "role", "fault_class"),
    [
        ("22013, Non-fatal, Link 44 Minion Link DLREQ interrupt", Role.INFORMATIONAL, FaultClass.TRANSIENT),
        ("20034, Fatal, Link 30 LTSSM Fault Up", Role.LEADER, FaultClass.REBOOT_CURES),
        ("20034, Non-fatal, Link 30 LTSSM Fault Up", Role.INFORMATIONAL, FaultClass.TRANSIENT),
        ("12020, Fatal, Link 30 egress sequence ID error", Role.LEADER, FaultClass.REBOOT_CURES),
        ("10004, Fatal, Host_thermal_event_start", Role.LEADER, FaultClass.TRANSIENT),
        ("12020, Non-fatal, Link 30 egress sequence ID error", Role.UNEXPECTED, FaultClass.TRANSIENT),
        ("11012, Fatal, Link 30 ECC", Role.UNEXPECTED, FaultClass.TRANSIENT),
        ("28006, Non-fatal, MC TS crumbstore MCTO (First)", Role.INFORMATIONAL, FaultClass.TRANSIENT),
        ("28006, Fatal, MC TS crumbstore MCTO (First)", Role.UNEXPECTED, FaultClass.TRANSIENT),
        ("20034", Role.UNEXPECTED, FaultClass.TRANSIENT),
        ("20034, Data {0x50610002, 0x10100030}", Role.MODIFIER, FaultClass.TRANSIENT),
        ("22013, Severity 0 Engine instance 44 Sub-engine instance 00", Role.MODIFIER, FaultClass.TRANSIENT),
    ],
)
def test_switch_codes(text: str, role: Role, fault_class: FaultClass) -> None:
    """The table's class, refined by the word in the line; a detail line opens nothing."""
    fact, _ = kernel_text.read(record(SWITCH.format(text)), kernel_text.LineMemory())
    assert fact is not None
    event = kernel_log.run(fact, builtin())
    assert event is not None
    assert (event.role, event.fault_class) == (role, fault_class)
    assert (event.gpu, event.device) == ("", "nvswitch 0000:04:00.0")


@pytest.mark.parametrize("entry", builtin().sxids.values(), ids=lambda e: str(e.code))
def test_every_switch_code_is_judged(entry) -> None:  # type: ignore[no-untyped-def]
    """What can be fatal leads when the line says so and covers the node; the rest is recorded."""
    said = "Non-fatal" if entry.severity == "non-fatal" else "Fatal"
    fact, _ = kernel_text.read(
        record(SWITCH.format(f"{entry.code:05d}, {said}, Link 2 x")), kernel_text.LineMemory()
    )
    assert fact is not None
    event = kernel_log.run(fact, builtin())
    assert event is not None
    if said == "Fatal":
        assert (event.role, event.scope, event.fault_class) == (Role.LEADER, Scope.NODE, entry.fault_class)
    else:
        assert event.role is Role.INFORMATIONAL
    assert event.link == 2
    assert entry.text in event.summary


@pytest.mark.parametrize(
    ("detail", "unit"),
    [
        ("Graphics SM Warp Exception on (GPC 7, TPC 3, SM 0): Illegal Instruction", "GPC 7/TPC 3/SM 0"),
        ("Graphics Exception on GPC 1: UPD", "GPC 1"),
        ("Graphics Exception: ESR 0x57c730=0xc04000b 0x57c734=0x24", ""),
    ],
)
def test_the_part_of_the_chip_is_kept(detail: str, unit: str) -> None:
    """The same part failing different jobs makes the GPU suspicious, so the event carries it."""
    event = event_of(f"NVRM: Xid (PCI:0000:cb:00): 13, pid=42, name=trainer, {detail}")
    assert (event.unit, event.pid, event.process) == (unit, 42, "trainer")


@given(
    st.integers(144, 150),
    st.text(
        alphabet=st.sampled_from("NETIRLKVDWO_ XCi0123456789abcdefx()[],.-\n\x00é Fatal Nonfatal Link"),
        max_size=600,
    ),
)
def test_any_tail_gives_an_event_and_only_a_listed_one_leads(code: int, tail: str) -> None:
    """Whatever stands behind the code: never an exception, and nothing unlisted that drains."""
    event = event_of(f"NVRM: Xid (PCI:0018:01:00): {code}, {tail}")
    assert event.role is Role.UNEXPECTED or "No catalogue explains" not in event.summary
    if event.role is Role.UNEXPECTED:
        assert event.fault_class is FaultClass.TRANSIENT


@pytest.mark.parametrize(
    ("registers", "role"),
    [
        ("0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Role.LEADER),
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Role.INFORMATIONAL),
        ("0x40800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Role.INFORMATIONAL),
        ("0x1, 0x0, 0x1, 0x0, 0x0, 0x0, 0x0", Role.LEADER),
        ("0x3, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Role.LEADER),
        ("0x1, 0x0", Role.LEADER),
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x", Role.LEADER),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Role.LEADER),
    ],
)
def test_bits_of_an_older_link_error_that_mean_nothing_are_recorded(registers: str, role: Role) -> None:
    """Xid 74 blocks new work, unless all its bits are ones to ignore and every register was read."""
    line = "NVRM: Xid (PCI:0000:d8:00): 74, pid=1, name=a, NVLink: fatal error detected on link 14({})"
    event = event_of(line.format(registers))
    assert (event.role, event.link, event.fault_class) == (role, 14, FaultClass.TRANSIENT)
