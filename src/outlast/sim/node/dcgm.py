"""DCGM of a simulated node: a health report that a scenario sets, and an engine that can be away or hang."""

from __future__ import annotations

import msgspec

from outlast.model.observation.dcgm import DcgmIncident, DcgmProblem, DcgmSurvey
from outlast.ports.clock import Clock
from outlast.ports.node import Wanted


class FakeDcgm:
    """Implements `outlast.ports.node.Surveyor`; counts reports in a row as the real one does."""

    def __init__(self, *, clock: Clock, deadline_s: float = 10.0) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._polls: dict[DcgmIncident, int] = {}
        self.incidents: list[DcgmIncident] = []
        """What the watches hold now."""
        self.problem: DcgmProblem | None = None
        """Set to have no opinion; HUNG takes the whole deadline of the clock."""
        self.engines = 1

    async def survey(self, wanted: Wanted) -> DcgmSurvey:
        """The present report."""
        if self.problem is DcgmProblem.HUNG:
            await self._clock.sleep(self._deadline_s)
        if self.problem is not None:
            self._polls.clear()
            return DcgmSurvey(problem=self.problem, message=self.problem.value, engines=self.engines)
        self._polls = {incident: self._polls.get(incident, 0) + 1 for incident in self.incidents}
        worst = {incident.health for incident in self.incidents}
        return DcgmSurvey(
            overall=next((word for word in ("Failure", "Warning") if word in worst), "Healthy"),
            incidents=tuple(
                msgspec.structs.replace(incident, polls=polls) for incident, polls in self._polls.items()
            ),
            engines=self.engines,
        )

    async def aclose(self) -> None:
        """Nothing is held."""

    def reboot(self, boot_id: str) -> None:
        """A new engine that remembers nothing."""
        self.incidents.clear()
        self.problem = None
        self._polls.clear()
