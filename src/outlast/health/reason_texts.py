"""What people read about each reason: where it appears, what it means, what to do.

Its own file because an agent never needs it. docs/reasons.md is generated from this table.
"""

# ruff: noqa: E501 (one table, one row a line)
from __future__ import annotations

from typing import Final, NamedTuple

from outlast.health.reasons import Reason


class ReasonText(NamedTuple):
    """What people read about a reason."""

    conditions: str
    """Where it appears, and with which status."""
    meaning: str
    advice: str


_GPU = "GPUReady=False"
_FABRIC = "GPUFabricReady=False"
_MONITOR = "GPUMonitorReady=False"
_NIC = "RDMAReady=False, HostReady=False for a device without RDMA"
_HOST = "HostReady=False"
_RESET = "Drain the GPU and reset it; reboot if the reset does not help."
_REBOOT = "Drain the node and reboot it; replace the board if it happens again."
_RDMA = "RDMAReady=False"
_LINK = "Look at the cable, the transceiver and the switch port. New work stays away until it is good again; nothing is drained."
_WAIT = "Nothing; it clears by itself."

REASON_TEXTS: Final[dict[Reason, ReasonText]] = {
    Reason.GPUS_HEALTHY: ReasonText(
        "GPUReady=True",
        "A check completed in this boot: all expected GPUs answer and no fault is open.",
        "Nothing.",
    ),
    Reason.FABRIC_HEALTHY: ReasonText(
        "GPUFabricReady=True",
        "No NVLink or NVSwitch error stands, and all links that should be up are up.",
        "Nothing.",
    ),
    Reason.RDMA_HEALTHY: ReasonText(
        "RDMAReady=True",
        "All expected EFA devices are present, and every InfiniBand and RoCE port that was ever active is so now.",
        "Nothing.",
    ),
    Reason.MONITOR_HEALTHY: ReasonText(
        "GPUMonitorReady=True", "NVML, the kernel log and the PCI bus all answer.", "Nothing."
    ),
    Reason.HOST_HEALTHY: ReasonText(
        "HostReady=True", "No fault of disks, memory or the kernel stands.", "Nothing."
    ),
    Reason.GPU_FELL_OFF_BUS: ReasonText(
        _GPU, "The driver lost the GPU on PCIe (Xid 79 or its text without a number).", _REBOOT
    ),
    Reason.GPU_MISSING: ReasonText(
        _GPU, "Fewer GPUs are on the PCI bus than this machine should have.", _REBOOT
    ),
    Reason.GPU_NOT_RESPONDING: ReasonText(
        _GPU, "A GPU is still listed on the PCI bus but reads as all ones.", _REBOOT
    ),
    Reason.GPU_LOST: ReasonText(_GPU, "NVML says that the GPU is lost.", _REBOOT),
    Reason.NO_GPU_FOUND: ReasonText(
        "GPUReady=False where GPUs are expected, else GPUReady=Unknown and GPUMonitorReady=Unknown",
        "The PCI bus shows no NVIDIA GPU.",
        "On a GPU machine: reboot, then replace it. Elsewhere: keep the agent off this node with its node selector.",
    ),
    Reason.GPU_INIT_FAILED: ReasonText(_GPU, "The driver could not start a GPU.", _RESET),
    Reason.GPU_STUCK: ReasonText(
        _GPU, "A part of the GPU stopped working or did not answer in time.", _RESET
    ),
    Reason.GSP_NOT_RESPONDING: ReasonText(
        _GPU,
        "The processor on the GPU that runs the driver firmware does not answer; tools may hang.",
        _RESET,
    ),
    Reason.UNCORRECTABLE_MEMORY_ERROR: ReasonText(_GPU, "GPU memory lost data.", _RESET),
    Reason.UNCONTAINED_MEMORY_ERROR: ReasonText(
        _GPU, "GPU memory lost data and every program on the GPU is affected.", _RESET
    ),
    Reason.CONTAINED_MEMORY_ERROR: ReasonText(
        _GPU,
        "GPU memory lost data and only the program that used it was ended.",
        "Let running jobs finish; it clears by itself when no reset is asked for.",
    ),
    Reason.ROW_REMAP_PENDING: ReasonText(
        _GPU, "A bad memory row is replaced by a spare one at the next reset.", _RESET
    ),
    Reason.ROW_REMAP_FAILED: ReasonText(
        _GPU,
        "A bad memory row could not be replaced by a spare one.",
        "Replace the board; a reset does not help.",
    ),
    Reason.REPAIR_PENDING: ReasonText(
        _GPU, "A damaged part of the chip or a memory channel is repaired at the next reset.", _RESET
    ),
    Reason.REPAIR_FAILED: ReasonText(
        _GPU,
        "A damaged part of the chip could not be taken out of use.",
        "Ask the vendor; plan to replace the board.",
    ),
    Reason.POWER_CABLE_MISSING: ReasonText(
        _GPU, "The extra power cable of a GPU gives no power.", "Look at the machine."
    ),
    Reason.SRAM_THRESHOLD_EXCEEDED: ReasonText(
        _GPU,
        "The memory on the chip had more uncorrected errors than the vendor allows (NVML's threshold flag).",
        "Replace the board.",
    ),
    Reason.CORRECTED_ERROR_STORM: ReasonText(
        _GPU,
        "A GPU corrects memory errors at ten times the rate of its peers or more; it is slow, and data may be lost next.",
        "Let running jobs finish; test the memory under load. An idle GPU shows nothing.",
    ),
    Reason.PAGE_RETIREMENT_PENDING: ReasonText(
        _GPU, "A bad memory page is retired at the next reset (Volta and older).", _RESET
    ),
    Reason.MEMORY_REDUCED: ReasonText(
        _GPU,
        "A GPU has less memory than its peers, or than it had before in the same ECC mode.",
        "Let running jobs finish, then reboot; replace the board if it stays.",
    ),
    Reason.GPU_TOO_HOT: ReasonText(
        _GPU, "Heat has held down the clocks of a GPU for minutes.", "Look at fans, air flow and coolant."
    ),
    Reason.POWER_BRAKE: ReasonText(
        _GPU,
        "The power supply has held down the clocks of a GPU, or of all GPUs, for minutes.",
        "Look at power supplies and the rack's power cap.",
    ),
    Reason.PCIE_LINK_DEGRADED: ReasonText(
        _GPU,
        "A GPU uses fewer PCIe lanes than before or than its peers, or a lower speed under load.",
        "Let running jobs finish, then reboot; reseat the board if it stays.",
    ),
    Reason.DEVICE_NODE_MISSING: ReasonText(
        _GPU,
        "Programs cannot open a GPU: its /dev/nvidiaN is missing or wrong, while those of other GPUs are right.",
        "Run nvidia-modprobe, or restart the container toolkit; restart the agent after a hot-plug.",
    ),
    Reason.PCIE_ERRORS: ReasonText(
        "GPUReady=False, HostReady=False for another device",
        "The PCIe link of a GPU, or of a port or device around it, fails.",
        "Follow the class of the fault: wait, reset or reboot; check the seating if it returns.",
    ),
    Reason.CONFIDENTIAL_COMPUTING_ERROR: ReasonText(
        _GPU, "Confidential computing lost its keys.", "Restart the virtual machine."
    ),
    Reason.GPU_SUSPECT: ReasonText(
        _GPU,
        "Different jobs failed in the same way on one GPU within a day (only where the application rule is set to block).",
        "Test the GPU deeply while it is idle. It clears a day after the last such error.",
    ),
    Reason.DRIVER_WEDGED: ReasonText(
        _GPU,
        "A program that the driver took off a GPU is stuck in the kernel. Without a sign that it is stuck in the driver this only keeps new work away.",
        _REBOOT,
    ),
    Reason.GPU_RESET_REQUIRED: ReasonText(
        _GPU, "The driver asks for a reset of the GPU (NVML field 230).", _RESET
    ),
    Reason.REBOOT_REQUIRED: ReasonText(_GPU, "The driver asks for a reboot (NVML field 230).", _REBOOT),
    Reason.SUSPECTED_DATA_CORRUPTION: ReasonText(
        _GPU,
        "An active check got other bits from the same calculation, or other bits than equal GPUs got.",
        "Use the GPU for nothing; repeat with `outlast check --level deep`, and replace the board if it fails again.",
    ),
    Reason.MEMORY_TEST_FAILED: ReasonText(
        _GPU, "GPU memory gave back other data than an active check wrote.", _RESET
    ),
    Reason.GPU_REFUSES_WORK: ReasonText(
        _GPU, "A GPU that NVML finds well refused or broke off the work of an active check.", _RESET
    ),
    Reason.GPU_DIAGNOSTIC_FAILED: ReasonText(
        _GPU, "DCGM's diagnostic, run as an active check, found a fault whose cure is known.", _RESET
    ),
    Reason.NVLINK_ERROR: ReasonText(_FABRIC, "An NVLink of a GPU failed.", _RESET),
    Reason.NVLINK_DOWN: ReasonText(
        _FABRIC, "Fewer NVLinks of a GPU are up than its model, its peers or its past have.", _RESET
    ),
    Reason.FABRIC_NOT_READY: ReasonText(
        _FABRIC,
        "GPUs have not joined the NVLink fabric; programs fail with CUDA error 802.",
        "Look at the fabric manager (or IMEX) service. The GPUs are not to blame.",
    ),
    Reason.FABRIC_UNHEALTHY: ReasonText(
        _FABRIC,
        "A GPU joined the NVLink fabric but its bandwidth, routes or configuration are not in order.",
        "Let running jobs finish; look at the fabric manager and the switches.",
    ),
    Reason.NVSWITCH_ERROR: ReasonText(_FABRIC, "An NVSwitch reported a fatal error (SXid).", _REBOOT),
    Reason.FABRIC_RECOVERY_REQUIRED: ReasonText(
        _FABRIC,
        "The driver asks to drain peer traffic or to recover the IMEX domain (NVML field 230).",
        "Let running jobs finish; recover the fabric.",
    ),
    Reason.EFA_MISSING: ReasonText(
        "RDMAReady=False", "Fewer EFA devices are present than this machine should have.", _REBOOT
    ),
    Reason.NIC_FAILED: ReasonText(
        _NIC, "A network device takes no commands any more, or could not be started.", _REBOOT
    ),
    Reason.NIC_NOT_RESPONDING: ReasonText(
        _NIC,
        "A network device left commands or packets unanswered, or its firmware reported a failure.",
        "Let running jobs finish; it clears by itself when the device recovers.",
    ),
    Reason.NIC_OVERHEATED: ReasonText(
        _NIC,
        "A network device or its module keeps reporting a high temperature.",
        "Look at the machine's cooling.",
    ),
    Reason.LINK_FLAPPING: ReasonText(
        _NIC,
        "A network link keeps going down, or no link of a bond is up.",
        "Look at cable, module and switch.",
    ),
    Reason.KERNEL_FAULT: ReasonText(
        _HOST, "The kernel stopped or hit a fault of its own.", "Drain the node and reboot it."
    ),
    Reason.KERNEL_STALLED: ReasonText(
        _HOST,
        "A processor is stuck in the kernel, for long or again and again.",
        "Drain the node and reboot it.",
    ),
    Reason.KERNEL_TABLE_FULL: ReasonText(
        _HOST,
        "A table of the kernel is full: file handles, network connections or neighbours.",
        "Raise the limit that the message names, or find who uses it up.",
    ),
    Reason.TASK_HUNG: ReasonText(
        _HOST,
        "A task has not run for minutes, waiting in the kernel.",
        "Nothing at first; see what it waits for if it stays.",
    ),
    Reason.OUT_OF_MEMORY: ReasonText(
        _HOST,
        "The node itself ran out of memory. A container that reached its own limit is not meant.",
        "Look for what is overcommitted.",
    ),
    Reason.HOST_MEMORY_ERROR: ReasonText(
        _HOST,
        "Host memory or a processor reported an error that was not repaired, or too many that were.",
        "Have the memory module checked; reboot where the message says so.",
    ),
    Reason.DISK_FAILED: ReasonText(
        _HOST, "The kernel gave up a disk.", "Drain the node; replace the disk or the machine."
    ),
    Reason.DISK_ERRORS: ReasonText(
        _HOST,
        "A disk keeps failing, or its file system is damaged.",
        "Let running jobs finish and check the disk.",
    ),
    Reason.FILESYSTEM_READ_ONLY: ReasonText(
        _HOST,
        "A file system takes no more writes; checkpoints to it fail.",
        "Drain the node; check or replace the disk.",
    ),
    Reason.EFA_NOT_RESPONDING: ReasonText(
        _RDMA, "An EFA device leaves the commands of its driver unanswered.", _REBOOT
    ),
    Reason.NIC_MISSING: ReasonText(
        _RDMA, "A network device with an RDMA port that was in use is gone from the PCI bus.", _REBOOT
    ),
    Reason.NIC_DRIVER_UNBOUND: ReasonText(
        _RDMA,
        "An RDMA device is on the PCI bus without its driver, or its driver offers no RDMA device.",
        "Load or bind the driver (efa, mlx5_core with mlx5_ib); reboot if it does not take the device.",
    ),
    Reason.RDMA_LINK_DOWN: ReasonText(
        _RDMA, "An InfiniBand or RoCE port that was active is not, for two minutes.", _LINK
    ),
    Reason.RDMA_LINK_SLOW: ReasonText(
        _RDMA, "An InfiniBand or RoCE port is slower than it has been on this machine.", _LINK
    ),
    Reason.RDMA_LINK_ERRORS: ReasonText(
        _RDMA, "A port counts errors that its own cable or transceiver makes.", _LINK
    ),
    Reason.FABRIC_MANAGER_DOWN: ReasonText(
        _FABRIC,
        "The machine has NVSwitches and no fabric manager runs. New CUDA programs fail with error 802.",
        "Start nvidia-fabricmanager in the version of the driver. The GPUs are fine: replace none.",
    ),
    Reason.NVSWITCH_MISSING: ReasonText(
        _FABRIC, "Fewer NVSwitches are on the PCI bus than such a machine has.", _REBOOT
    ),
    Reason.DRIVER_STUCK: ReasonText(
        _GPU,
        "A program has been asleep in NVIDIA's driver for a minute or more and cannot be killed.",
        "Nothing at first. When NVML hangs too the driver is wedged: reboot.",
    ),
    Reason.DIAGNOSTICS_HUNG: ReasonText(
        _MONITOR,
        "NVML missed its deadline. Nobody can vouch for the GPUs, so the node takes no new work (fail closed).",
        "Nothing at first: it recovers by itself when the check completes again. With a second witness the driver is wedged: reboot.",
    ),
    Reason.DIAGNOSTICS_CRASHED: ReasonText(
        _MONITOR,
        "The NVML worker crashed or answered garbage several times in a row.",
        "Look at the driver's version and the agent's log.",
    ),
    Reason.NO_SOURCE: ReasonText(
        _MONITOR,
        "Neither NVML nor the kernel log can be read on a machine with GPUs.",
        "Look at the agent's rights and mounts.",
    ),
    Reason.DRIVER_NOT_LOADED: ReasonText(
        "GPUMonitorReady=False after 30 minutes, Unknown before; GPUReady=False for a GPU that no driver runs",
        "The NVIDIA driver is not loaded, or another one (nouveau) holds the GPUs.",
        "Finish the driver's installation.",
    ),
    Reason.REBOOT_NEEDED: ReasonText(
        _MONITOR,
        "The loaded driver and NVIDIA's libraries differ in version, as after an upgrade under running programs.",
        "Nothing at once: running programs go on. Reboot, or reload the driver, when the node is empty.",
    ),
    Reason.NOT_YET_CHECKED: ReasonText("any=Unknown", "No check has completed in this boot.", _WAIT),
    Reason.NOT_OBSERVED: ReasonText(
        "any=Unknown", "No check completed for a while.", "See GPUMonitorReady for the cause."
    ),
    Reason.AWAITING_PROOF: ReasonText(
        "any=Unknown",
        "A fault of an earlier boot, or from before the agent's first start, has not yet been proven to be over.",
        _WAIT,
    ),
    Reason.CONFIRMING: ReasonText(
        "any=Unknown", "A first poll found something; the next ones confirm or drop it.", _WAIT
    ),
    Reason.INITIALIZING: ReasonText(
        "any=Unknown", "The driver or the network came up a moment ago and devices still arrive.", _WAIT
    ),
    Reason.UNRECOGNISED_XID: ReasonText(
        "GPUReady=Unknown",
        "The driver printed a code that no catalogue explains.",
        "Ask the vendor; add the code with a catalogue override.",
    ),
    Reason.GPU_NOT_READABLE: ReasonText(
        "GPUReady=Unknown",
        "NVML cannot read a GPU, for a reason that does not prove a fault.",
        "Look at the message.",
    ),
    Reason.DRIVER_CHANGING: ReasonText(
        "GPUMonitorReady=Unknown",
        "The NVIDIA driver is not loaded at the moment, as during an upgrade. No GPU is called lost meanwhile.",
        "Finish the upgrade within 30 minutes.",
    ),
    Reason.MAINTENANCE: ReasonText(
        "GPUReady=Unknown, GPUFabricReady=Unknown, GPUMonitorReady=Unknown",
        "Somebody asked the agent to let go of the GPUs, such as for a reset; NodeHealth says who and until when.",
        "Nothing; the agent looks again when the request ends, or by itself after half an hour at most.",
    ),
    Reason.GPU_ASSIGNED_TO_VM: ReasonText(
        "GPUReady=Unknown",
        "All GPUs are given to virtual machines (vfio-pci); the machine that has them must watch them.",
        "Nothing.",
    ),
    Reason.RECONFIGURING: ReasonText(
        "GPUReady=Unknown",
        "The MIG layout of a GPU changes, or a changed MIG mode waits for a reset.",
        "Reset the GPU if a mode change waits; otherwise nothing.",
    ),
    Reason.NO_RDMA_FOUND: ReasonText(
        "RDMAReady=Unknown",
        "There is no EFA device and no InfiniBand or RoCE port was ever active, and none is expected.",
        "Nothing.",
    ),
    Reason.RDMA_NOT_READABLE: ReasonText(
        "RDMAReady=Unknown",
        "The files of an RDMA device do not answer, twice in a row. Nobody knows whether it works.",
        "Look at the message; a device whose firmware hangs needs a reboot.",
    ),
    Reason.KERNEL_LOG_BLIND: ReasonText(
        "GPUMonitorReady=Unknown",
        "The kernel log cannot be read; faults are seen late or not at all.",
        "Give the agent the kernel log (profile A or B).",
    ),
    Reason.LIBRARY_MISSING: ReasonText(
        "GPUMonitorReady=Unknown",
        "NVIDIA's library is not in the agent's container: a matter of wiring, not of health.",
        "Mount the driver libraries.",
    ),
    Reason.DRIVER_MISMATCH: ReasonText(
        "GPUMonitorReady=Unknown",
        "Driver and library have different versions, as after an upgrade without a reboot.",
        "Reboot or reload the driver.",
    ),
    Reason.NO_PERMISSION: ReasonText(
        "GPUMonitorReady=Unknown", "The agent may not use the GPUs.", "Look at the agent's rights."
    ),
    Reason.DIAGNOSTICS_FAILED: ReasonText(
        "GPUMonitorReady=Unknown",
        "NVML answered with an error, or a check of outlast failed by itself.",
        "Look at the message; a check that fails is a bug of outlast: please report the message.",
    ),
    Reason.DCGM_DISAGREES: ReasonText(
        "GPUReady=Unknown, GPUFabricReady=Unknown",
        "DCGM has held a failure against a GPU for three reports, and nothing else can confirm or deny it.",
        "Look at the message; `outlast dcgm CODE` explains the code. Run a diagnostic when the GPU is idle.",
    ),
    Reason.DCGM_UNUSABLE: ReasonText(
        "in the message of GPUMonitorReady",
        "DCGM has no opinion: no host engine answers, it hangs, watches nothing or has another version. NVML still vouches.",
        "Look at the message; the GPUs are not in doubt for this.",
    ),
    Reason.DCGM_BLIND: ReasonText(
        "in the message of GPUMonitorReady",
        "DCGM answers, but its values are blank or stand still, as after it gave up on the driver.",
        "Restart the host engine; look for Xid 119 in the kernel log.",
    ),
    Reason.APPLICATION_ERROR: ReasonText(
        "none", "A program made the error. Nothing happens to the node.", "Look at the job."
    ),
    Reason.RECORDED: ReasonText("none", "Worth a record, not a fault.", "Nothing."),
    Reason.RECOVERY_ACTION_CHANGED: ReasonText(
        "none", "The driver changed what it asks for; the field itself is polled.", "Nothing."
    ),
    Reason.INVENTORY_CHANGED: ReasonText(
        "none", "A GPU was added, replaced or taken out, by its serial number.", "Nothing."
    ),
}


def as_markdown() -> str:
    """docs/reasons.md, whole."""
    lines = [
        "# Reasons",
        "",
        "Every reason that outlast writes into a node condition. They are stable: alerts and scripts may match on them.",
        "This page is generated: `python -m outlast.health.reason_texts > docs/reasons.md`. A test keeps it current.",
        "",
        "| reason | appears as | means | what to do |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{reason}` | {text.conditions} | {text.meaning} | {text.advice} |"
        for reason, text in REASON_TEXTS.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(as_markdown())
