"""What several lose at once is no bad board of each; and what one alone loses is still found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.model.health import FaultClass, Scope, Subsystem
from tests.unit.health.sites import DISRUPTIVE, LINKED, MACHINES, Site, changed, mlx5

TEN_MINUTES_S = 600.0


def found(site: Site) -> dict[str, FaultClass]:
    """Codes that stand, and their cures."""
    return {fault.code: fault.fault_class for fault in site.answer.status.faults}


# --- NVLink


def test_one_gpu_below_its_own_past_asks_for_a_reset() -> None:
    """Alone on a whole machine: its own links."""
    site = MACHINES["H100 p5"]()
    site.first_gpu(nvlinks=(True,) * 17 + (False,))
    site.live(TEN_MINUTES_S)
    assert found(site) == {"nvlink/down": FaultClass.RESET_CURES}


def test_one_gpu_below_its_equal_peers_since_ever_is_found() -> None:
    """It never had all, and every other has."""
    gpus = MACHINES["H100 p5"]().gpus
    site = Site([changed(gpus[0], nvlinks=(True,) * 16 + (False,) * 2), *gpus[1:]])
    site.live(TEN_MINUTES_S)
    assert found(site) == {"nvlink/down": FaultClass.RESET_CURES}


def test_links_of_several_gpus_are_one_finding_that_drains_nobody() -> None:
    """Two ends of one link, or a switch between them; all up for ten minutes ends it."""
    site = MACHINES["H100 p5"]()
    before = list(site.gpus)
    site.gpus = [changed(gpu, nvlinks=(True,) * 14 + (False,) * 4) for gpu in before[:3]] + before[3:]
    site.live(TEN_MINUTES_S)
    assert found(site) == {"nvlink/down-several": FaultClass.TRANSIENT}
    assert "3 of 8 GPUs" in site.answer.status.faults[0].summary
    site.gpus = before
    site.live(2 * TEN_MINUTES_S)
    assert found(site) == {}


def test_a_gpu_whose_links_are_down_is_not_well_because_others_lose_theirs_too() -> None:
    """The first fault stays until its own GPU has its links."""
    site = MACHINES["H100 p5"]()
    before = list(site.gpus)
    site.first_gpu(nvlinks=(False,) * 18)
    site.live(TEN_MINUTES_S)
    site.every_gpu(nvlinks=(False,) * 18)
    site.live(3 * TEN_MINUTES_S)
    assert set(found(site)) == {"nvlink/down", "nvlink/none"}
    site.gpus = before
    site.live(2 * TEN_MINUTES_S)
    assert found(site) == {}


def test_a_peer_in_a_virtual_machine_takes_its_links_along() -> None:
    """Where boards are linked to each other directly, the one that is left is no bad board."""
    site = MACHINES["V100 half a machine"]()
    site.drivers[site.gpus[3].pci_address] = "vfio-pci"
    site.first_gpu(nvlinks=(True, True) + (False,) * 4)
    site.live(TEN_MINUTES_S)
    assert found(site) == {"nvlink/down": FaultClass.TRANSIENT}


def test_a_bridge_that_was_taken_out_drains_nobody() -> None:
    """Both of its boards have none any more."""
    site = MACHINES["A100 PCIe, two bridged"]()
    site.gpus = [changed(gpu, nvlinks=(False,) * len(LINKED)) for gpu in site.gpus]
    site.live(TEN_MINUTES_S)
    assert not set(found(site).values()) & DISRUPTIVE


# --- the machine


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"remap_failed": True}, "remap/failed"),
        ({"memory_unrepairable": True}, "repair/unrepairable"),
        ({"sram_threshold_exceeded": True}, "ecc/sram-threshold"),
    ],
)
def test_boards_do_not_end_all_at_once(fields: dict[str, Any], code: str) -> None:
    """One that says so is replaced; where all do, it is the driver that is in doubt."""
    site = MACHINES["H100 p5"]()
    site.every_gpu(**fields)
    site.live(TEN_MINUTES_S)
    assert found(site) == {}
    assert site.verdicts[Subsystem.GPU] == "Unknown"
    alone = MACHINES["H100 p5"]()
    alone.first_gpu(**fields)
    alone.live(TEN_MINUTES_S)
    assert found(alone) == {code: FaultClass.HARDWARE_GONE}


def test_all_gpus_lost_are_one_finding_about_the_machine() -> None:
    """After two minutes, because somebody may reset the whole board."""
    site = MACHINES["H100 p5"]()
    before = list(site.gpus)
    site.every_gpu(error="GPU_IS_LOST", recovery_action=None)
    site.live(60)
    assert found(site) == {}
    site.live(120)
    [fault] = site.answer.status.faults
    assert (fault.code, fault.scope, fault.fault_class) == (
        "gpu/lost-all",
        Scope.NODE,
        FaultClass.REBOOT_CURES,
    )
    site.gpus = before
    site.live(TEN_MINUTES_S)
    assert found(site) == {}


def test_a_recovery_that_nobody_knows_is_unknown() -> None:
    """Neither healthy nor a reason to drain."""
    site = MACHINES["H100 p5"]()
    site.first_gpu(recovery_action=11)
    site.live(60)
    assert found(site) == {}
    assert site.verdicts[Subsystem.GPU] == "Unknown"
    site.first_gpu(recovery_action=0)
    site.live(60)
    assert site.verdicts[Subsystem.GPU] == "Healthy"


def test_a_machine_that_was_given_another_type_misses_nothing() -> None:
    """Stopped, made smaller, started: the same disk with the agent's memory, one GPU and one EFA device."""
    site = MACHINES["H100 p5"]()
    site.gpus, site.efa, site.instance_type, site.switches = site.gpus[:1], 1, "p5.4xlarge", (0, 0)
    site.first_gpu(serial="another", uuid="GPU-another", nvlinks=())
    site.reboot()
    site.live(2 * TEN_MINUTES_S)
    assert site.codes == set()
    assert site.verdicts[Subsystem.GPU] == "Healthy"


def test_the_memory_of_another_machine_misses_nothing() -> None:
    """An image made of one machine, started on a smaller one of no known type."""
    site = MACHINES["H100 Google"]()
    site.gpus = [changed(g, serial=f"new{i}", uuid=f"GPU-new{i}") for i, g in enumerate(site.gpus[:4])]
    site.reboot()
    site.live(2 * TEN_MINUTES_S)
    assert not set(found(site).values()) & DISRUPTIVE
    assert site.answer.status.gpus_expected == 4


def test_one_board_that_left_is_missed_on_a_machine_of_no_known_type() -> None:
    """The others are the same boards as before."""
    site = MACHINES["H100 Google"]()
    site.gpus = site.gpus[1:]
    site.reboot()
    site.live(TEN_MINUTES_S)
    assert found(site) == {"gpu/missing": FaultClass.REBOOT_CURES}


def test_faults_of_the_machine_end_while_virtual_machines_have_some_gpus() -> None:
    """The GPUs that are ours all answer: more than those nobody can ask."""
    site = MACHINES["some GPUs in virtual machines"]()
    before = list(site.gpus)
    site.every_gpu(error="GPU_IS_LOST", recovery_action=None)
    site.live(TEN_MINUTES_S)
    assert "gpu/lost-all" in found(site)
    site.gpus = before
    site.live(TEN_MINUTES_S)
    assert found(site) == {}


def test_the_gpu_that_is_gone_is_named_and_not_the_one_in_a_virtual_machine() -> None:
    """Both are unknown to NVML; only one is off the bus."""
    site = MACHINES["some GPUs in virtual machines"]()
    site.drivers = {site.gpus[1].pci_address: "vfio-pci"}
    site.live(TEN_MINUTES_S)
    site.unlisted.add(site.gpus[6].pci_address)
    site.live(TEN_MINUTES_S)
    missing = [fault for fault in site.answer.status.faults if fault.code == "gpu/missing"]
    assert [fault.gpu.pci_address for fault in missing if fault.gpu] == [site.gpus[6].pci_address]


def test_a_gpu_for_a_screen_is_not_ours_and_the_other_is() -> None:
    """Nouveau holds the small one; nobody calls it healthy when the large one goes."""
    site = MACHINES["workstation"]()
    assert site.answer.status.gpu_count == "1/1"
    site.unlisted.add(site.gpus[0].pci_address)
    site.live(TEN_MINUTES_S)
    assert set(site.verdicts.values()) & {"Faulty"}


# --- the network


@pytest.mark.parametrize(
    ("machine", "gone", "cure"),
    [
        ("H100 p5", 1, FaultClass.REBOOT_CURES),
        ("H100 p5", 8, FaultClass.REBOOT_CURES),
        ("H100 p5", 16, FaultClass.TRANSIENT),
        ("H100 p5", 32, FaultClass.TRANSIENT),
        ("A100 MIG p4d", 1, FaultClass.REBOOT_CURES),
        ("A100 MIG p4d", 2, FaultClass.TRANSIENT),
        ("A100 p4d with one EFA", 1, FaultClass.REBOOT_CURES),
    ],
)
def test_efa_devices_fail_one_by_one_and_are_detached_in_numbers(
    machine: str, gone: int, cure: FaultClass
) -> None:
    """All are missed; only few that are gone ask for a reboot."""
    site = MACHINES[machine]()
    site.unlisted |= set(site.efa_addresses[:gone])
    site.live(TEN_MINUTES_S)
    assert found(site) == {"efa/missing": cure}


def test_infiniband_devices_that_all_left_drain_nobody_and_one_alone_does() -> None:
    """A cloud services its network; a card fails."""
    all_of_them = MACHINES["H100 Azure"]()
    all_of_them.unlisted |= {device.pci_address for device in all_of_them.rdma}
    all_of_them.live(TEN_MINUTES_S)
    assert set(found(all_of_them).values()) == {FaultClass.TRANSIENT}
    one = MACHINES["H100 Azure"]()
    one.unlisted.add(one.rdma[3].pci_address)
    one.live(TEN_MINUTES_S)
    assert found(one) == {"nic/missing": FaultClass.REBOOT_CURES}


def test_a_card_that_was_added_and_never_used_is_never_missed() -> None:
    """No cable, so no port of it was ever active."""
    site = MACHINES["H200 with InfiniBand"]()
    device, function = mlx5(60)
    port = msgspec.structs.replace(device.ports[0], state="DOWN", physical_state="Polling")
    site.rdma.append(msgspec.structs.replace(device, ports=(port,)))
    site.nics.append(function)
    site.live(TEN_MINUTES_S)
    site.rdma.pop()
    site.nics.pop()
    site.live(TEN_MINUTES_S)
    assert site.codes == set()
