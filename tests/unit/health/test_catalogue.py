"""The catalogues are whole, agree with themselves, and can be overridden."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.health.catalogue import CatalogueError, builtin, load
from outlast.health.finding import RANK_LAST, Role
from outlast.health.reasons import REASON_TEXTS, Reason, as_markdown
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


def test_an_override_replaces_rows(tmp_path: Path) -> None:
    """A file with the same columns changes the codes it names and no other."""
    file = tmp_path / "xid.csv"
    columns = "code,name,class,scope,severity,rung,role,rank,subsystem,reason,proof,expiry_s,text"
    row = "13,OURS,ResetCures,GPU,error,ResetGPU,leader,9,GPU,GpuStuck,RecoveryNone,0,Ours."
    file.write_text(f"{columns}\n{row}\n")
    xids = load(file).xids
    assert (xids[13].name, xids[13].fault_class) == ("OURS", FaultClass.RESET_CURES)
    assert xids[79] == builtin().xids[79]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"code,name\n1,x\n", "columns"),
        (b"", "columns"),
        (b"\xff\xfe", "cannot read"),
        (b"x" * (1024 * 1024 + 1), "larger"),
    ],
)
def test_a_wrong_override_is_refused_with_its_place(tmp_path: Path, content: bytes, complaint: str) -> None:
    """The error names the file and what is wrong."""
    file = tmp_path / "xid.csv"
    file.write_bytes(content)
    with pytest.raises(CatalogueError, match=complaint) as error:
        load(file)
    assert "xid.csv" in str(error.value)


def test_a_wrong_value_is_refused_with_its_line(tmp_path: Path) -> None:
    """A row that does not fit names its line and its column."""
    file = tmp_path / "xid.csv"
    columns = "code,name,class,scope,severity,rung,role,rank,subsystem,reason,proof,expiry_s,text"
    file.write_text(f"{columns}\n13,X,Nonsense,GPU,error,ResetGPU,leader,9,GPU,GpuStuck,RecoveryNone,0,T.\n")
    with pytest.raises(CatalogueError, match=r"line 2.*class"):
        load(file)


def test_a_missing_override_is_an_error(tmp_path: Path) -> None:
    """A file that was asked for and is not there does not pass silently."""
    with pytest.raises(CatalogueError, match="cannot read"):
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
