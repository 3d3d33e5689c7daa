"""What every surveyor of DCGM must do: on a real program of a fake engine, and on the simulated one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from outlast.adapters.dcgm import survey, tool
from outlast.adapters.dcgm.survey import SPACING_S, DcgmSurveyor, engine_processes
from outlast.adapters.dcgm.tool import DcgmTool
from outlast.health.sources.dcgm_health import health_report
from outlast.model.observation.dcgm import DcgmProblem, DcgmSurvey
from outlast.ports.node import Surveyor, Wanted
from outlast.sim.node import FakeDcgm
from tests.contract.node.logs import RealTime
from tests.dcgm import FakeDcgmi, recorded

pytestmark = pytest.mark.asyncio

DEADLINE_S = 0.4


class Stepped(RealTime):
    """A clock that a test moves, for what is spaced in minutes."""

    def __init__(self) -> None:
        super().__init__(rate=1000.0)
        self.offset_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() / self.rate + self.offset_s


class UnderTest(Protocol):
    surveyor: Surveyor

    def later(self) -> None: ...
    def fail(self) -> None: ...
    def heal(self) -> None: ...
    def stop_engine(self) -> None: ...
    def hang(self) -> None: ...


class Scripted:
    """The real surveyor and a real program."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeDcgmi(folder)
        self.clock = Stepped()
        self.proc = folder / "proc"
        self.engine(4242)
        asked = DcgmTool(self.fake.command, clock=self.clock)
        self.surveyor = DcgmSurveyor(asked, clock=self.clock, proc=self.proc)

    def engine(self, pid: int) -> None:
        (self.proc / str(pid)).mkdir(parents=True)
        (self.proc / str(pid) / "comm").write_text("nv-hostengine\n")

    def later(self) -> None:
        self.clock.offset_s += survey.POLL_INTERVAL_S

    def fail(self) -> None:
        self.fake.say("health", recorded("health-failure.json"))

    def heal(self) -> None:
        self.fake.engine_up()

    def stop_engine(self) -> None:
        (self.proc / "4242/comm").unlink()
        self.fake.engine_down()

    def hang(self) -> None:
        self.fake.hang("health")


class Simulated:
    """The fake."""

    def __init__(self) -> None:
        self.dcgm = FakeDcgm(clock=RealTime(), deadline_s=DEADLINE_S)
        self.surveyor = self.dcgm

    def later(self) -> None:
        pass

    def fail(self) -> None:
        report = health_report(recorded("health-failure.json"), 0)
        self.dcgm.incidents = list(report.incidents)

    def heal(self) -> None:
        self.dcgm.reboot("")
        self.dcgm.engines = 1

    def stop_engine(self) -> None:
        self.dcgm.problem = DcgmProblem.ENGINE_DOWN
        self.dcgm.engines = 0

    def hang(self) -> None:
        self.dcgm.problem = DcgmProblem.HUNG


@pytest.fixture(params=["real program", "simulated"])
def dcgm(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[UnderTest]:
    monkeypatch.setattr(tool, "HEALTH_DEADLINE_S", DEADLINE_S)
    yield Scripted(tmp_path) if request.param == "real program" else Simulated()


async def look(dcgm: UnderTest) -> DcgmSurvey:
    dcgm.later()
    found = await dcgm.surveyor.survey(Wanted())
    assert isinstance(found, DcgmSurvey)
    return found


async def test_a_healthy_engine_says_so(dcgm: UnderTest) -> None:
    """One engine, no incident."""
    found = await look(dcgm)

    assert (found.overall, found.incidents, found.problem, found.engines) == ("Healthy", (), None, 1)


async def test_an_incident_that_lasts_is_counted(dcgm: UnderTest) -> None:
    """And starts again when it was away for one report."""
    dcgm.fail()
    assert [i.polls for i in (await look(dcgm)).incidents] == [1] * 5
    assert [i.polls for i in (await look(dcgm)).incidents] == [2] * 5

    dcgm.heal()
    assert (await look(dcgm)).incidents == ()
    dcgm.fail()
    assert [i.polls for i in (await look(dcgm)).incidents] == [1] * 5


async def test_an_engine_that_stops_and_starts_is_followed(dcgm: UnderTest) -> None:
    """Each survey says what is so now (UP-036, UP-037)."""
    dcgm.stop_engine()
    down = await look(dcgm)
    assert (down.problem, down.overall, down.engines) == (DcgmProblem.ENGINE_DOWN, "", 0)
    assert down.message

    dcgm.heal()
    up = await look(dcgm)
    assert (up.problem, up.overall) == (None, "Healthy")


async def test_an_engine_that_hangs_costs_the_deadline(dcgm: UnderTest) -> None:
    """And is asked again the next time."""
    dcgm.hang()
    assert (await look(dcgm)).problem is DcgmProblem.HUNG

    dcgm.heal()
    assert (await look(dcgm)).overall == "Healthy"


async def test_closing_never_waits(dcgm: UnderTest) -> None:
    """Twice is as good as once."""
    await dcgm.surveyor.aclose()
    await dcgm.surveyor.aclose()


async def test_the_engine_is_asked_seldom(tmp_path: Path) -> None:
    """A fault makes all sources look at once; DCGM then gives its last answer again."""
    there = Scripted(tmp_path)
    there.fail()

    first = await there.surveyor.survey(Wanted())
    there.clock.offset_s += SPACING_S / 2
    again = await there.surveyor.survey(Wanted())

    assert again is first
    assert len([call for call in there.fake.calls() if call.startswith("health")]) == 1


async def test_the_engine_s_version_is_told(tmp_path: Path) -> None:
    """And asked for once, until something goes wrong."""
    there = Scripted(tmp_path)

    versions = [(await look(there)).version for _ in range(3)]

    assert versions == ["4.6.0"] * 3
    assert there.fake.calls().count("-v") == 1


async def test_an_engine_of_another_generation_is_named(tmp_path: Path) -> None:
    """Whatever words the mismatch caused."""
    there = Scripted(tmp_path)
    there.fake.say("health", "Error: Unable to check health watches. Return: something\n", 253)
    there.fake.say("version", recorded("version-4-engine-3.txt"))

    found = await look(there)

    assert found.problem is DcgmProblem.VERSION_MISMATCH
    assert "3.3.9" in found.message


async def test_where_the_engine_is_missing_is_told(tmp_path: Path) -> None:
    """UP-035: not scheduled here, or here and deaf."""
    there = Scripted(tmp_path)
    there.fake.engine_down()

    deaf = await look(there)
    there.stop_engine()
    missing = await look(there)

    assert deaf.message.startswith("a host engine runs on this machine but does not answer")
    assert missing.message.startswith("no host engine runs on this machine")


async def test_host_engines_are_counted_by_name_alone(tmp_path: Path) -> None:
    """UP-016: a second one is seen. Nothing else of a process is read, because that may hang."""
    there = Scripted(tmp_path)
    there.engine(4343)
    (there.proc / "1").mkdir()
    (there.proc / "1/comm").write_text("systemd\n")
    (there.proc / "99").mkdir()
    (there.proc / "self").mkdir()

    assert engine_processes(there.proc) == 2
    assert (await look(there)).engines == 2
    assert engine_processes(tmp_path / "none") is None
