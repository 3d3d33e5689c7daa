"""One file a check: a frozen declaration and a pure function from readings to findings.

To add one: write `checks/<name>.py` with a `CHECK`, add it to `CHECKS` below, add its reasons to
`outlast.health.reasons` and its test data to tests/unit/health. Event checks read facts of the kernel
log, level checks read the newest survey of the source they name. docs/mechanisms/health.md has more.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks import (
    active,
    agent_state,
    c2c,
    corrected_storm,
    dcgm_exporter,
    dcgm_health,
    device_nodes,
    driver,
    ecc,
    efa_errors,
    efa_presence,
    fabric,
    gpu_answers,
    gpu_presence,
    host_disks,
    host_filesystems,
    host_tables,
    kernel_lines,
    kernel_log,
    memory_repair,
    memory_size,
    monitor,
    nvlink,
    nvswitch_presence,
    pcie_aer,
    pcie_lanes,
    pcie_link,
    persistence,
    power_smoothing,
    rdma_errors,
    rdma_links,
    rdma_presence,
    recovery_action,
    row_remap,
    services,
    stuck_tasks,
    thermal,
)
from outlast.health.checks.declaration import EventCheck, LevelCheck

EVENT_CHECKS: Final[tuple[EventCheck, ...]] = (kernel_log.CHECK, kernel_lines.CHECK)
LEVEL_CHECKS: Final[tuple[LevelCheck, ...]] = (
    gpu_presence.CHECK,
    gpu_answers.CHECK,
    recovery_action.CHECK,
    row_remap.CHECK,
    memory_repair.CHECK,
    ecc.CHECK,
    corrected_storm.CHECK,
    memory_size.CHECK,
    thermal.CHECK,
    pcie_link.CHECK,
    nvlink.CHECK,
    fabric.CHECK,
    driver.CHECK,
    device_nodes.CHECK,
    persistence.CHECK,
    c2c.CHECK,
    power_smoothing.CHECK,
    efa_presence.CHECK,
    efa_errors.CHECK,
    rdma_presence.CHECK,
    rdma_links.CHECK,
    rdma_errors.CHECK,
    pcie_aer.CHECK,
    pcie_lanes.CHECK,
    nvswitch_presence.CHECK,
    services.CHECK,
    stuck_tasks.CHECK,
    host_filesystems.CHECK,
    host_disks.CHECK,
    host_tables.CHECK,
    monitor.CHECK,
    agent_state.CHECK,
    dcgm_health.CHECK,
    dcgm_exporter.CHECK,
    *active.CHECKS,
)
