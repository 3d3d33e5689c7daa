"""Every polled source on this very machine: what is not here is quietly not here."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outlast.adapters.clock import SystemClock
from outlast.adapters.linux.pci import SysfsPciBus
from outlast.agent.sources import Places, build
from outlast.health.catalogue import builtin
from outlast.health.verdict import Moment, Settings, judge, start
from outlast.model.health import Subsystem, Verdict
from outlast.model.observation import HostSurvey, ProcessSurvey, RdmaSurvey
from outlast.ports.node import Wanted

NO_GPU = not Path("/sys/module/nvidia").exists()
NO_RDMA = not Path("/sys/class/infiniband").exists()


@pytest.mark.asyncio
@pytest.mark.skipif(not (NO_GPU and NO_RDMA), reason="this machine has a GPU or RDMA devices")
async def test_a_machine_without_gpus_and_rdma_has_no_fault_and_no_alarm() -> None:
    """All sources answer, nothing is wrong, and nothing is claimed about what is not there."""
    clock = SystemClock()
    state = start("boot", "", Settings(), Moment(datetime.now(UTC), 0.0))
    looked = {}
    for round_ in range(1, 6):
        moment = Moment(datetime.now(UTC), 1000.0 * round_)
        readings = [SysfsPciBus().survey()]
        for source in build(Places(), clock):
            survey = await source.surveyor.survey(Wanted(process_ids=(os.getpid(),)))
            looked[survey.source] = survey
            readings.append(survey)
            await source.surveyor.aclose()
        answer = judge(state, readings, moment, builtin())
        state = answer.state

    rdma, processes, host = looked["RDMA"], looked["processes"], looked["host"]
    assert isinstance(rdma, RdmaSurvey)
    assert isinstance(processes, ProcessSurvey)
    assert isinstance(host, HostSurvey)
    assert (rdma.devices, rdma.problem, rdma.readable) == ((), None, True)
    assert processes.readable
    assert processes.processes > 1
    assert answer.status.faults == ()
    found = answer.status.verdict(Subsystem.RDMA)
    assert found is not None
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, "NoRdmaFound")
