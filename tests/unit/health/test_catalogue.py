"""The catalogues are whole, agree with themselves, and can be overridden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.health.catalogue import (
    CatalogueError,
    SwitchSeverity,
    Urgency,
    builtin,
    load,
    nvlink5,
    tables,
)
from outlast.health.catalogue.tables import TABLES
from outlast.health.finding import RANK_LAST, Role
from outlast.health.reason_texts import REASON_TEXTS, as_markdown
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass, Scope, Subsystem
from outlast.model.policy import Rung

ROOT = Path(__file__).parents[3]


def test_every_code_is_listed() -> None:
    """Codes 1 to 176 are all there, with a name and a sentence."""
    xids = builtin().xids
    assert sorted(xids) == list(range(1, 177))
    assert all(entry.name and entry.text.endswith(".") for entry in xids.values())


@pytest.mark.parametrize("entry", builtin().xids.values(), ids=lambda e: str(e.code))
def test_an_entry_agrees_with_itself(entry) -> None:  # type: ignore[no-untyped-def]
    """Class, role, rank, rung and expiry do not contradict each other."""
    leads = entry.role in (Role.LEADER, Role.FOLLOWER) and entry.fault_class is not FaultClass.APPLICATION
    assert 1 <= entry.rank <= RANK_LAST
    assert entry.severity in ("info", "warning", "error", "fatal")
    assert entry.expiry_s >= 0
    if entry.fault_class is FaultClass.APPLICATION:
        assert (entry.reason, entry.rung) == (Reason.APPLICATION_ERROR, Rung.WATCH)
        assert entry.role in (Role.APPLICATION, Role.FOLLOWER)
    if leads:
        assert "False" in REASON_TEXTS[entry.reason].conditions
        assert entry.rung.height >= Rung.BLOCK_NEW_WORK.height
    cures = {
        FaultClass.RESET_CURES: Rung.RESET_GPU,
        FaultClass.REBOOT_CURES: Rung.REBOOT,
        FaultClass.HARDWARE_GONE: Rung.REPLACE,
    }
    if leads and entry.fault_class in cures:
        assert entry.rung in (cures[entry.fault_class], Rung.HOLD)


ORDER = [(79,), (64, 161, 140, 175), (119, 120, 62, 46, 143, 158, 167, 169), (95,), (48, 171, 172)]
ORDER += [
    (74, 136, 144, 145, 146, 149, 150),
    (63, 156, 160),
    (109, 110, 151),
    (94,),
    (137,),
    (13, 31),
    (43, 45),
]


def test_the_order_of_causes() -> None:
    """Within one burst the cause is found by this order."""
    ranks = [{builtin().xids[code].rank for code in group} for group in ORDER]
    assert all(len(group) == 1 for group in ranks)
    flat = [rank for group in ranks for rank in group]
    assert flat == sorted(set(flat))


ROWS = [
    *(
        (table.file, entry)
        for table in TABLES
        for entry in tables.parse(table, tables.text_of(table), table.file).values()
    )
]


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("xid.csv", 176),
        ("sxid.csv", 93),
        ("nvlink5.csv", 94),
        ("dcgm.csv", 133),
        ("dcgm-health.csv", 18),
    ],
)
def test_the_tables_are_whole(table: str, rows: int) -> None:
    """A row that gets lost is seen."""
    assert sum(file == table for file, _ in ROWS) == rows


@pytest.mark.parametrize(
    ("table", "entry"), ROWS, ids=lambda value: value if isinstance(value, str) else str(value.key)
)
def test_every_row_speaks_to_people(table: str, entry) -> None:  # type: ignore[no-untyped-def]
    """One or a few whole sentences, none of the vendor's tokens, and a deed that fits the class."""
    if table == "hardware.csv":
        return
    assert entry.text.endswith(".")
    assert entry.text[0].isupper() or entry.text.startswith(("dcgmi", "outlast"))
    assert not re.search(r"_[A-Z]|CONTACT_SUPPORT|WORKFLOW|RESTART_|  ", entry.text)
    if table == "dcgm-health.csv":
        return
    cures = {
        FaultClass.RESET_CURES: (Rung.RESET_GPU,),
        FaultClass.REBOOT_CURES: (Rung.REBOOT,),
        FaultClass.HARDWARE_GONE: (Rung.REPLACE, Rung.HOLD),
        FaultClass.TRANSIENT: (Rung.WATCH, Rung.BLOCK_NEW_WORK),
        FaultClass.APPLICATION: (Rung.WATCH,),
    }
    assert entry.rung in cures[entry.fault_class]
    assert (entry.rung is Rung.WATCH) == (entry.urgency in (Urgency.NEVER, Urgency.WHEN_IDLE))


def test_switch_codes_by_severity() -> None:
    """What is always fatal needs a reboot of the node; what is not fatal is only recorded."""
    for entry in builtin().sxids.values():
        if entry.severity is SwitchSeverity.ALWAYS_FATAL:
            assert (entry.rung, entry.scope) == (Rung.REBOOT, Scope.NODE)
        if entry.severity is SwitchSeverity.NON_FATAL:
            assert entry.rung is Rung.WATCH


def test_nvlink_rows_do_not_collide() -> None:
    """A first word and a unit's name never fit two sub-codes, whichever driver printed it."""
    for entry in builtin().nvlink5:
        for before in (False, True):
            words = nvlink5.example(entry, before_r575=before)
            for unit in entry.unit.split("/"):
                found = nvlink5.find(builtin().nvlink5, entry.xid, unit, words)
                assert found is not None
                assert (found.subcode, found.severity, found.text.split(" pipe")[0]) == (
                    entry.subcode,
                    entry.severity,
                    entry.text.split(" pipe")[0],
                )


def test_dcgm_is_found_by_number_and_by_name() -> None:
    """However a report names it."""
    known = builtin()
    assert known.dcgm(95) == known.dcgm("DCGM_FR_EUD_TEST_FAILED") == known.dcgm("eud_test_failed")
    assert known.dcgm("nothing") is None
    watch = known.dcgm_watch("Memory system")
    assert watch is not None
    assert (watch.name, watch.value) == ("MEM", 0x10)


# --- overrides

XID_COLUMNS = "code,name,class,scope,severity,rung,role,rank,subsystem,reason,proof,expiry_s,text"
XID_ROW = "13,OURS,ResetCures,GPU,error,ResetGPU,leader,9,GPU,GpuStuck,RecoveryNone,0,Ours."


def test_an_override_replaces_rows(tmp_path: Path) -> None:
    """A file with the same columns changes the codes it names and no other; a newer column may be missing."""
    file = tmp_path / "xid.csv"
    file.write_text(f"{XID_COLUMNS}\n{XID_ROW}\n")
    xids = load(file).xids
    assert (xids[13].name, xids[13].fault_class) == ("OURS", FaultClass.RESET_CURES)
    assert xids[79] == builtin().xids[79]
    assert builtin().xids[13].name != "OURS"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.file)
def test_any_table_can_be_written_out_and_read_back(tmp_path: Path, table: tables.Table) -> None:
    """A copy of a built-in file, also with the mark that spreadsheets put first, changes nothing."""
    file = tmp_path / "copy.csv"
    file.write_bytes(b"\xef\xbb\xbf" + tables.text_of(table).replace("\n", "\r\n").encode())
    found, rows = tables.read_override(file)
    assert found is table
    assert rows == tables.parse(table, tables.text_of(table), table.file)


def test_several_files_add_up_and_the_last_one_wins(tmp_path: Path) -> None:
    """Files of one table and of different ones."""
    first, second, third = (tmp_path / name for name in ("a", "b", "c"))
    first.write_text(f"{XID_COLUMNS}\n{XID_ROW}\n{XID_ROW.replace('13,', '900,', 1)}\n")
    second.write_text(f"{XID_COLUMNS}\n{XID_ROW.replace('OURS', 'LATER')}\n")
    third.write_text("instance_type,gpus,efa\nours.8xlarge,4,2\n")
    known = load(first, second, third)
    assert (known.xids[13].name, known.xids[900].name) == ("LATER", "OURS")
    assert known.hardware["ours.8xlarge"].gpus == 4
    assert known.sxids == builtin().sxids


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"code,name\n1,x\n", "line 1.*without"),
        (b"nonsense\n", "line 1: the columns are those of no table"),
        (b"", "columns"),
        (b"\xff\xfe", "cannot read"),
        (b"x" * (1024 * 1024 + 1), "larger"),
        (f"{XID_COLUMNS},colour\n{XID_ROW},red\n".encode(), "line 1.*unknown: colour"),
        (f"{XID_COLUMNS},code\n{XID_ROW},1\n".encode(), "line 1.*twice"),
        (f"{XID_COLUMNS}\n{XID_ROW.replace('ResetCures', 'Nonsense')}\n".encode(), r"line 2.*class"),
        (f"{XID_COLUMNS}\n{XID_ROW}\n{XID_ROW}\n".encode(), "line 3: 13 is there already"),
        (f"{XID_COLUMNS}\n{XID_ROW},more\n".encode(), "line 2: has more values"),
        (f"{XID_COLUMNS}\n13,OURS\n".encode(), "line 2: has fewer values"),
        (f"{XID_COLUMNS}\n{XID_ROW.replace('13,', '-1,', 1)}\n".encode(), r"line 2.*code"),
        (f"{XID_COLUMNS}\n{XID_ROW.replace(',9,', ',99,')}\n".encode(), r"line 2.*rank"),
        (f"{XID_COLUMNS}\n{XID_ROW.replace('Ours.', '')}\n".encode(), r"line 2.*text"),
        (f"{XID_COLUMNS}\n{XID_ROW.replace('Ours.', 'x' * 999)}\n".encode(), r"line 2.*text"),
        (
            f"{XID_COLUMNS}\n{XID_ROW.replace('ResetGPU', 'Replace')}\n".encode(),
            "line 2: class ResetCures goes with",
        ),
        (
            f"{XID_COLUMNS}\n{XID_ROW.replace('ResetCures', 'Application')}\n".encode(),
            "line 2: class Application",
        ),
        (f"{XID_COLUMNS}\n{XID_ROW.replace('leader', 'application')}\n".encode(), "line 2: role application"),
        (f'{XID_COLUMNS}\n13,"OURS'.encode(), "line 2"),
        (f"{XID_COLUMNS}\n".encode() + b"\x00" * 40, "line 2"),
    ],
    ids=range(20),
)
def test_a_wrong_override_is_refused_with_its_place(tmp_path: Path, content: bytes, complaint: str) -> None:
    """The error is one sentence that names the file, the line and what is wrong."""
    file = tmp_path / "mine.csv"
    file.write_bytes(content)
    with pytest.raises(CatalogueError, match=complaint) as error:
        load(file)
    assert "mine.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_too_many_rows_are_refused(tmp_path: Path) -> None:
    """A limit with its number."""
    file = tmp_path / "hardware.csv"
    file.write_text("instance_type\n" + "".join(f"t{i}\n" for i in range(tables.OVERRIDE_ROWS_MAX + 1)))
    with pytest.raises(CatalogueError, match="more than 4096 rows"):
        load(file)


@given(st.binary(max_size=200), st.sampled_from(TABLES))
def test_no_file_makes_the_reader_fail(tail: bytes, table: tables.Table) -> None:
    """Rows, or a sentence; never anything else."""
    text = ",".join(table.columns) + "\n" + tail.decode("utf-8", "replace")
    try:
        assert isinstance(tables.parse(tables.recognise(text, "f"), text, "f"), dict)
    except CatalogueError as error:
        assert str(error).startswith("f")


def test_a_missing_override_is_an_error(tmp_path: Path) -> None:
    """A file that was asked for and is not there does not pass silently."""
    with pytest.raises(CatalogueError, match=r"cannot read .*absent\.csv: No such file or directory$"):
        load(tmp_path / "absent.csv")


def test_machine_types_say_what_they_have() -> None:
    """The table is read with numbers."""
    p5 = builtin().hardware["p5.48xlarge"]
    assert (p5.gpus, p5.efa) == (8, 32)


def test_every_reason_has_its_text() -> None:
    """No reason without meaning and advice."""
    assert set(REASON_TEXTS) == set(Reason)
    assert all(text.meaning and text.advice for text in REASON_TEXTS.values())


def test_the_page_of_reasons_is_current() -> None:
    """docs/reasons.md is what the code would write; `python -m outlast.health.reasons` writes it."""
    assert (ROOT / "docs" / "reasons.md").read_text("utf-8") == as_markdown()


def test_words_are_those_of_the_model() -> None:
    """Scopes and subsystems of the catalogue are the model's own."""
    assert {entry.scope for entry in builtin().xids.values()} <= set(Scope)
    assert {entry.subsystem for entry in builtin().xids.values()} <= {Subsystem.GPU, Subsystem.FABRIC}
