"""Can programs open each GPU? Its node in /dev has to be there, with the right major number.

The agent sees the /dev of its own container: where no GPU has a node there, that says nothing.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import assessment, finding, readable
from outlast.health.finding import Assessment
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass
from outlast.model.observation import GpuSurvey

NAME: Final = "device_nodes"
POLLS: Final = 4
RANK: Final = 15


def run(view: View) -> Assessment | None:
    """A finding for each GPU without a usable node, where others have one."""
    gpus = [gpu for gpu in readable(view) if gpu.minor is not None]
    if all(gpu.device_node for gpu in gpus):
        return None
    bad = [
        finding(
            gpu,
            "gpu/device-node",
            Reason.DEVICE_NODE_MISSING,
            FaultClass.TRANSIENT,
            RANK,
            f"cannot be opened by programs: {gpu.device_node}",
            polls=POLLS,
        )
        for gpu in gpus
        if gpu.device_node
    ]
    return assessment(NAME, gpus, bad)


CHECK: Final = LevelCheck(NAME, "device nodes of GPUs", frozenset({GpuSurvey}), run)
