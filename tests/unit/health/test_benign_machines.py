"""Everyday life of many machines: none of it drains anybody, and afterwards all is as it was before.

Each story is told on each machine, with all sources polled at their pace in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from outlast.model.observation import Fill, SurveyProblem
from outlast.model.observation.dcgm import DcgmProblem, DcgmSurvey
from tests.unit.health.sites import MACHINES, Site, mlx5

# Hours of 19 machines: half of the inner loop's time.
pytestmark = pytest.mark.long

MINUTE_S: Final = 60.0
AFTERWARDS_S: Final = 25 * MINUTE_S
"""Longer than any proof of what such a story may leave in doubt."""

Story = Callable[[Site], None]


def busy_hour(site: Site) -> None:
    """Full load: power cap, warm, links at full speed; then idle again."""
    site.every_gpu(
        clocks_event_reasons=0x4, temperature_margin_c=7, memory_used_bytes=70 << 30, process_ids=(4711,)
    )
    site.live(20 * MINUTE_S)
    site.every_gpu(clocks_event_reasons=0x24, temperature_margin_c=3)
    site.live(2 * MINUTE_S)
    site.every_gpu(
        clocks_event_reasons=0x1, temperature_margin_c=40, memory_used_bytes=1 << 30, process_ids=()
    )


def sleeping_links(site: Site) -> None:
    """Idle links lower their speed, sleeping GPUs their lanes."""
    before = list(site.gpus)
    site.every_gpu(pcie_generation=1, performance_state=8)
    site.live(10 * MINUTE_S)
    site.first_gpu(pcie_width=4)
    site.live(10 * MINUTE_S)
    site.gpus = before


def corrected_errors(site: Site) -> None:
    """A trickle, as every large memory has."""
    for count in range(1, 40):
        site.first_gpu(ecc_corrected_volatile=3 * count)
        site.live(30)


def driver_upgrade(site: Site) -> None:
    """New library first, then the module goes, comes back, handles fail for a moment, the fabric forms."""
    services, site.services = set(site.services), set()
    site.problem = SurveyProblem.DRIVER_MISMATCH
    site.live(30)
    site.problem, loaded = None, site.driver_loaded
    site.driver_loaded = False
    site.live(6 * MINUTE_S)
    site.driver_loaded = loaded
    before = list(site.gpus)
    site.every_gpu(error="UNKNOWN")
    site.line("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05")
    site.live(15)
    site.gpus = before
    site.every_gpu(ecc_corrected_volatile=0, sw_thermal_ns=0)
    joined = [gpu.fabric_state for gpu in site.gpus]
    if any(joined):
        site.every_gpu(fabric_state=2, fabric_summary=None)
    site.live(60)
    site.services = services
    if any(joined):
        site.every_gpu(fabric_state=3, fabric_summary=1)


def reset_by_hand(site: Site) -> None:
    """Of one GPU, then of a whole board; a burst of other news makes all sources look meanwhile."""
    before = list(site.gpus)
    site.first_gpu(error="GPU_IS_LOST", recovery_action=None)
    site.live(15, step_s=1.0)
    site.first_gpu(error="RESET_REQUIRED")
    site.live(10, step_s=1.0)
    site.gpus = before
    site.live(MINUTE_S)
    if site.answer.status.gpus_expected < 2:
        return
    site.every_gpu(error="GPU_IS_LOST", recovery_action=None)
    site.live(60)
    site.gpus = before


def slices_for_each_pod(site: Site) -> None:
    """MIG instances come and go with pods."""
    if not any(gpu.mig_enabled for gpu in site.gpus):
        return
    for step in range(20):
        site.first_gpu(mig_instances=tuple(range(step % 3)))
        site.live(30)


def other_mig_mode(site: Site) -> None:
    """Asked for, then done by a reset."""
    before = site.gpus[:1]
    if not before or before[0].mig_enabled is None:
        return
    wanted = not before[0].mig_enabled
    site.first_gpu(mig_pending=wanted)
    site.live(5 * MINUTE_S)
    site.first_gpu(mig_enabled=wanted)
    if wanted and before[0].detail is not None and before[0].detail.nvlinks:
        site.first_gpu(nvlinks=(False,) * len(before[0].detail.nvlinks))
    site.live(10 * MINUTE_S)
    site.gpus[:1] = before


def counters_start_again(site: Site) -> None:
    """By a reload, and by running over."""
    for value in (2**63, 5, 2**64 - 1, 0):
        site.every_gpu(
            ecc_corrected_volatile=value, hw_thermal_ns=value, power_brake_ns=value, sw_thermal_ns=value
        )
        site.live(15)


def machine_stood_still(site: Site) -> None:
    """A virtual machine is moved: time is missing, devices come back late."""
    site.suspended_s += 90
    site.every_port(state="DOWN")
    site.live(MINUTE_S)
    site.every_port(state="ACTIVE")


def one_port_switched_off(site: Site) -> None:
    """`ip link set down`, by an administrator, for ten minutes."""
    for number, device in enumerate(site.rdma[:1]):
        port = msgspec.structs.replace(device.ports[0], state="DOWN", physical_state="Disabled")
        site.rdma[number] = msgspec.structs.replace(device, ports=(port,))
        site.live(10 * MINUTE_S)
        site.rdma[number] = device


def fabric_restart(site: Site) -> None:
    """The switches of the whole network start again: all ports of all machines are down."""
    site.every_port(state="DOWN", physical_state="Polling")
    site.live(8 * MINUTE_S)
    site.every_port(state="INIT", physical_state="LinkUp")
    site.live(4 * MINUTE_S)
    site.every_port(state="ACTIVE")


def network_serviced(site: Site) -> None:
    """A cloud takes all network functions away for six minutes."""
    gone = {one.pci_address for one in site.rdma}
    site.unlisted |= gone
    site.live(6 * MINUTE_S)
    site.unlisted -= gone


def network_driver_upgrade(site: Site) -> None:
    """All devices of the driver are gone, their functions stay."""
    rdma, nics = list(site.rdma), list(site.nics)
    site.rdma = []
    site.nics = [msgspec.structs.replace(nic, driver="") for nic in nics]
    site.live(6 * MINUTE_S)
    site.rdma, site.nics = rdma, nics


def tables_full_for_a_moment(site: Site) -> None:
    """A burst of connections."""
    site.connections = Fill(used=1000, limit=1000)
    site.live(45)
    site.connections = Fill(used=10, limit=1000)


def nothing_may_be_read(site: Site) -> None:
    """No rights, no mounts, a bus that cannot be listed."""
    site.problem = SurveyProblem.NO_PERMISSION
    site.rdma_message = "no such folder"
    site.live(5 * MINUTE_S)
    site.pci_message = "no such folder"
    site.live(5 * MINUTE_S)
    site.problem, site.rdma_message, site.pci_message = None, "", ""


def blank_answers(site: Site) -> None:
    """Every value that may be missing is missing for a while."""
    before = list(site.gpus)
    blank = dict.fromkeys(
        (
            *("recovery_action", "remap_pending", "remap_failed", "ecc_corrected_volatile"),
            *("ecc_uncorrected_volatile", "sram_uncorrected", "sram_threshold_exceeded", "pcie_width"),
            *("temperature_c", "temperature_margin_c", "clocks_event_reasons", "performance_state"),
            *("mig_enabled", "mig_pending", "fabric_state", "fabric_summary", "process_ids", "detail"),
            *("pcie_generation", "memory_used_bytes", "memory_total_bytes", "persistence_enabled"),
        )
    )
    site.every_gpu(**blank)
    site.live(5 * MINUTE_S)
    site.gpus = before


def engine_restarts(site: Site) -> None:
    """DCGM's host engine is away for ninety seconds."""
    site.extra = [DcgmSurvey(problem=DcgmProblem.ENGINE_DOWN, message="no connection")]
    site.live(90)
    site.extra = [DcgmSurvey()]


def agent_restarts(site: Site) -> None:
    """The process ends and reads its memory."""
    site.restart()


def boots_again(site: Site) -> None:
    """A reboot; some devices are late, handles fail at first, the fabric forms."""
    before, switches = list(site.gpus), site.switches
    joined = any(gpu.fabric_state for gpu in site.gpus)
    site.unlisted |= set(site.efa_addresses[1:])
    site.reboot()
    site.every_gpu(error="UNKNOWN")
    site.every_port(state="INIT")
    site.live(45)
    site.gpus = before
    if joined:
        site.every_gpu(fabric_state=2)
    site.live(MINUTE_S)
    site.unlisted.clear()
    site.every_port(state="ACTIVE")
    site.gpus = before
    assert site.switches == switches


def bus_scanned_anew(site: Site) -> None:
    """One look finds the bus half listed; a burst of news makes it many looks."""
    gone = {gpu.pci_address for gpu in site.gpus[1:3]}
    site.unlisted |= gone
    site.live(5, step_s=0.5)
    site.unlisted -= gone


def handed_to_a_virtual_machine(site: Site) -> None:
    """A GPU is unbound, then bound to vfio for an hour, and comes back."""
    if len(site.gpus) < 2:
        return
    address = site.gpus[-1].pci_address
    before = site.drivers.get(address)
    site.drivers[address] = ""
    site.live(30)
    site.drivers[address] = "vfio-pci"
    site.live(20 * MINUTE_S)
    if before is None:
        del site.drivers[address]
    else:
        site.drivers[address] = before


def persistence_off(site: Site) -> None:
    """A word, and no more."""
    site.every_gpu(persistence_enabled=False)
    site.live(10 * MINUTE_S)
    site.every_gpu(persistence_enabled=True)


def functions_come_and_go(site: Site) -> None:
    """Devices are added while the machine runs, never used, and removed."""
    for _ in range(3):
        nics = list(site.nics)
        site.nics = [*nics, mlx5(40)[1]]
        site.live(2 * MINUTE_S)
        site.nics = nics
        site.live(2 * MINUTE_S)


STORIES: Final[tuple[Story, ...]] = (
    busy_hour,
    sleeping_links,
    corrected_errors,
    driver_upgrade,
    reset_by_hand,
    slices_for_each_pod,
    other_mig_mode,
    counters_start_again,
    machine_stood_still,
    one_port_switched_off,
    fabric_restart,
    network_serviced,
    network_driver_upgrade,
    tables_full_for_a_moment,
    nothing_may_be_read,
    blank_answers,
    engine_restarts,
    agent_restarts,
    boots_again,
    bus_scanned_anew,
    handed_to_a_virtual_machine,
    persistence_off,
    functions_come_and_go,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
@pytest.mark.parametrize("machine", MACHINES)
def test_everyday_life_drains_nobody_and_leaves_nothing_behind(machine: str, story: Story) -> None:
    """The verdicts afterwards are those from before, and no fault ever asked for a drain."""
    site = MACHINES[machine]()
    before = site.verdicts
    assert site.codes == set()
    story(site)
    site.live(AFTERWARDS_S, step_s=30.0)
    assert site.disruptive == set()
    assert site.answer.status.faults == ()
    assert site.verdicts == before
