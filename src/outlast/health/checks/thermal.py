"""Clocks that are held down by heat or by the power supply, for so long that it is no peak.

Idle clocks and the software's power cap are normal. Where all GPUs brake at once the supply is to blame.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import LevelCheck, View
from outlast.health.checks.gpus import IDLE, assessment, clock_reasons, finding, of_node, readable
from outlast.health.finding import Assessment, Level
from outlast.health.reasons import Reason
from outlast.model.health import FaultClass
from outlast.model.observation import GpuReading, GpuSurvey

NAME: Final = "thermal"
SUPPLY: Final = "power supply"
HW_SLOWDOWN: Final = 0x8
SW_THERMAL: Final = 0x20
HW_THERMAL: Final = 0x40
POWER_BRAKE: Final = 0x80

HARDWARE_POLLS: Final = 4
SOFTWARE_POLLS: Final = 20
"""At the default poll of 15 s: five minutes. Boards in warm racks touch their target temperature often."""
SHARE: Final = 0.5
"""Held down for so much of the window counts as held down, also when the poll itself hit a gap."""
WINDOW_S: Final = 120.0
SAFE_MARGIN_C: Final = 5
HEAT_CLEAN_SPAN_S: Final = 600.0
POWER_CLEAN_SPAN_S: Final = 3600.0
RANK_HEAT: Final = 13
RANK_POWER: Final = 12


def run(view: View) -> Assessment | None:
    """Per GPU at most one of heat and power; one finding for the node when the supply brakes all."""
    gpus = [gpu for gpu in readable(view) if clock_reasons(gpu) is not None or _margin(gpu) is not None]
    braking = [gpu for gpu in gpus if _brakes(view, gpu)]
    bad: list[Level] = []
    if len(braking) == len(gpus) > 1:
        bad.append(
            of_node(
                SUPPLY,
                "power/brake-all",
                Reason.POWER_BRAKE,
                FaultClass.TRANSIENT,
                RANK_POWER,
                f"The power supply of the machine holds down all {len(gpus)} GPUs",
                polls=HARDWARE_POLLS,
                clean_span_s=POWER_CLEAN_SPAN_S,
            )
        )
        braking = []
    for gpu in gpus:
        if gpu in braking:
            text = "is held down by its power supply (hardware slowdown or power brake)"
            power = (Reason.POWER_BRAKE, FaultClass.TRANSIENT, RANK_POWER, text)
            bad.append(
                finding(
                    gpu,
                    "power/brake",
                    *power,
                    polls=HARDWARE_POLLS,
                    clean_span_s=POWER_CLEAN_SPAN_S,
                )
            )
        elif (level := _heat(view, gpu)) is not None:
            bad.append(level)
    hot = {level.gpu for level in bad}
    judged = [gpu for gpu in gpus if gpu.pci_address in hot or not _still_warm(view, gpu)]
    return assessment(NAME, judged, bad, also=(SUPPLY,))


CHECK: Final = LevelCheck(NAME, "heat and power that hold the clocks down", frozenset({GpuSurvey}), run)


def _brakes(view: View, gpu: GpuReading) -> bool:
    reasons = clock_reasons(gpu) or 0
    # The hardware sets its general bit beside either cause; some boards also set it when idle.
    slowed = reasons & HW_SLOWDOWN and not reasons & (HW_THERMAL | SW_THERMAL | IDLE)
    return bool(reasons & POWER_BRAKE or slowed) or _held(view, gpu, "power_brake_ns")


def _heat(view: View, gpu: GpuReading) -> Level | None:
    reasons, margin, detail = clock_reasons(gpu) or 0, _margin(gpu), gpu.detail
    limit = detail.slowdown_margin_c if detail else None
    beyond = margin is not None and margin <= (limit if limit is not None and -50 < limit < 0 else -2)
    at = "" if gpu.temperature_c is None else f" at {gpu.temperature_c} C"
    if reasons & HW_THERMAL or beyond or _held(view, gpu, "hw_thermal_ns"):
        code, polls, text = "thermal/hardware", HARDWARE_POLLS, f"is slowed down by its hardware{at}: too hot"
    elif reasons & SW_THERMAL or (margin is not None and margin <= 0) or _held(view, gpu, "sw_thermal_ns"):
        code, polls, text = "thermal/software", SOFTWARE_POLLS, f"is slowed down by the driver{at}: too hot"
    else:
        return None
    heat = (Reason.GPU_TOO_HOT, FaultClass.TRANSIENT, RANK_HEAT, text)
    return finding(gpu, code, *heat, polls=polls, clean_span_s=HEAT_CLEAN_SPAN_S)


def _still_warm(view: View, gpu: GpuReading) -> bool:
    """It was slowed down lately and is only a few degrees below: neither hot nor over."""
    margin = _margin(gpu)
    near = margin is not None and margin <= SAFE_MARGIN_C
    return near and bool(view.grown(gpu.pci_address, "hw_thermal_ns", HEAT_CLEAN_SPAN_S))


def _held(view: View, gpu: GpuReading, counter: str) -> bool:
    grown_ns = view.grown(gpu.pci_address, counter, WINDOW_S)
    return grown_ns is not None and grown_ns >= SHARE * WINDOW_S * 1e9


def _margin(gpu: GpuReading) -> int | None:
    """Degrees left; None where the number cannot be one."""
    margin = gpu.temperature_margin_c
    return margin if margin is not None and -50 < margin < 200 else None
