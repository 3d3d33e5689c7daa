"""A fake NVIDIA library, compiled from our own C, loaded by NVIDIA's real Python bindings.

    nvml = FakeNvml(tmp_path).machine("H100", gpus=8)
    nvml.set("gpu.3.recovery_action", 1)
    nvml.action("nvmlDeviceGetUUID", "hang", gpu=3)
    NvmlReader(clock=..., environment=nvml.environment)

The script is read again at every call, so changes reach a worker that is already running.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.installing import Report, apt_install
from tests.left_out import leave_out

HOW_TO_GET_A_COMPILER = "`apt-get install gcc libc6-dev` as root, or any C compiler as `cc`"
SOURCE = Path(__file__).with_name("fake.c")
LIBRARY = "libnvidia-ml.so.1"

_FIELDS = {
    "recovery_action": 230,
    "field_remap_corrected": 142,
    "field_remap_uncorrected": 143,
    "field_remap_pending": 144,
    "field_remap_failed": 145,
    "pages_retired_uncorrected": 30,
    "field_pages_pending": 31,
    "pcie_replay": 94,
    "pcie_fatal": 180,
    "nvlink_replay": 161,
    "nvlink_recovery": 162,
    "nvlink_crc": 163,
    "nvlink_recovery_failed": 214,
    "nvlink_effective": 219,
    "c2c_interrupts": 231,
    "power_smoothing_enabled": 251,
    "power_smoothing_life_percent": 258,
    "sw_thermal_ns": 269,
    "hw_thermal_ns": 270,
    "power_brake_ns": 271,
    "bank_groups_exhausted": 306,
    "bank_remap_pending": 307,
}
"""Values that NVML gives as numbered fields; `nvlink_replay@3` is that of link 3."""

_ROWS: dict[str, object] = {
    "field_remap_corrected": 0,
    "field_remap_uncorrected": 0,
    "field_remap_pending": 0,
    "field_remap_failed": 0,
    "remap_histogram": "640,0,0,0,0",
}
_DATACENTER: dict[str, object] = {
    **_ROWS,
    "sram_threshold_exceeded": 0,
    "sram_parity": 0,
    "sram_secded": 0,
    "recovery_action": 0,
    "temperature_margin": 40,
    "sw_thermal_ns": 0,
    "hw_thermal_ns": 0,
    "power_brake_ns": 0,
}
_SWITCHED: dict[str, object] = {
    "nvlinks": "1" * 18,
    "fabric_state": 3,
    "fabric_summary": 1,
    # Nothing degraded, no route in trouble; configuration right, partition assigned, manager connected.
    "fabric_mask": 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8 | 1 << 12 | 1 << 14,
}
_MACHINES: dict[str, dict[str, object]] = {
    "H100": {
        **_DATACENTER,
        **_SWITCHED,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total": 85_520_809_984,
        "nvlink_replay": 0,
        "nvlink_recovery": 0,
        "nvlink_crc": 0,
    },
    "B200": {
        **_DATACENTER,
        **_SWITCHED,
        "name": "NVIDIA B200",
        "memory_total": 192_265_846_784,
        "nvlink_recovery_failed": 0,
        "nvlink_effective": 0,
        "channel_repair_pending": 0,
        "tpc_repair_pending": 0,
        "memory_unrepairable": 0,
        "bank_groups_exhausted": 0,
        "bank_remap_pending": 0,
        "power_smoothing_enabled": 1,
        "power_smoothing_life_percent": 100,
        "c2c_interrupts": 0,
    },
    "A100": {
        **_DATACENTER,
        "name": "NVIDIA A100-SXM4-80GB",
        "memory_total": 85_899_345_920,
        "nvlinks": "1" * 12,
        "nvlink_replay": 0,
        "mig_count_max": 7,
        "pcie_generation": 4,
        "pcie_generation_max": 4,
    },
    # Boards of this class give no serial number and have no NVLink.
    "L4": {**_DATACENTER, "name": "NVIDIA L4", "memory_total": 24_152_899_584, "serial": None},
    "A10G": {**_ROWS, "name": "NVIDIA A10G", "memory_total": 24_146_608_128, "recovery_action": 0},
    # Retires pages where newer ones replace rows.
    "V100": {
        "name": "Tesla V100-SXM2-16GB",
        "memory_total": 16_945_512_448,
        "nvlinks": "1" * 6,
        "pages_pending": 0,
        "pages_retired_uncorrected": 0,
        "pcie_generation": 3,
        "pcie_generation_max": 3,
    },
}


class FakeNvml:
    """A script for the fake library; every method takes effect at the next call of any worker."""

    def __init__(self, folder: Path, *, old_driver: bool = False) -> None:
        self._script = folder / "nvml.script"
        self._values: dict[str, str] = {"gpus": "0", "driver_version": "580.95.05"}
        self._library = _build(old_driver=old_driver)
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to load the fake instead of the driver's library; set it before exec."""
        return {"LD_LIBRARY_PATH": str(self._library.parent), "OUTLAST_FAKE_NVML": str(self._script)}

    def install(self, folder: Path, version: str) -> None:
        """Put the library into a folder of its own under a version's name, as a driver package does."""
        folder.mkdir(exist_ok=True)
        shutil.copy(self._library, folder / f"libnvidia-ml.so.{version}")
        link = folder / f"{LIBRARY}.new"
        link.symlink_to(f"libnvidia-ml.so.{version}")
        link.replace(folder / LIBRARY)
        self._library = folder / LIBRARY

    @staticmethod
    def address(gpu: int) -> str:
        """The PCI address of a GPU, as sysfs writes it."""
        return f"0000:{0x10 + 0x10 * gpu:02x}:1c.0"

    def addresses(self) -> tuple[str, ...]:
        """Of all GPUs."""
        return tuple(self.address(gpu) for gpu in range(int(self._values["gpus"])))

    def machine(self, model: str, *, gpus: int) -> FakeNvml:
        """A healthy machine."""
        common: dict[str, object] = {
            "ecc": 1,
            "ecc_corrected_volatile": 0,
            "ecc_uncorrected_volatile": 0,
            "ecc_corrected_aggregate": 0,
            "ecc_uncorrected_aggregate": 0,
            "temperature": 41,
            "clocks_event_reasons": 1,
            "performance_state": 0,
            "mig": 0,
            "persistence": 1,
            "memory_used": 0,
            "process_ids": "",
            "pcie_width": 16,
            "pcie_width_max": 16,
            "pcie_generation": 5,
            "pcie_generation_max": 5,
            "pcie_replay": 0,
            "pcie_fatal": 0,
            **_MACHINES[model],
        }
        self._values["gpus"] = str(gpus)
        for key, value in common.items():
            self._put(f"gpu.*.{key}", value)
        for gpu in range(gpus):
            self._put(f"gpu.{gpu}.bus_id", self.address(gpu))
            self._put(f"gpu.{gpu}.minor", gpu)
            self._put(f"gpu.{gpu}.uuid", f"GPU-00000000-0000-0000-0000-{gpu:012d}")
            if "serial" not in common:
                self._put(f"gpu.{gpu}.serial", f"16530220{gpu:05d}")
        self._write()
        return self

    def set(self, key: str, value: object) -> FakeNvml:
        """A value, such as `gpu.3.recovery_action`; None takes it away, which makes it unsupported."""
        self._put(key, value)
        self._write()
        return self

    def action(self, call: str, action: str, *, gpu: int | None = None) -> FakeNvml:
        """What a call does first; an empty action ends it.

        ret:N, sleep:MS, hang, spin, abort, segv, dstate:PATH, stdout:TEXT
        """
        key = f"call.{call}" if gpu is None else f"call.{call}.{gpu}"
        self._values.pop(key, None)
        if action:
            self._values[key] = action
        self._write()
        return self

    def _put(self, key: str, value: object) -> None:
        head, _, name = key.rpartition(".")
        name, at, link = name.partition("@")
        if name in _FIELDS:
            key = f"{head}.field.{_FIELDS[name]}{at}{link}"
        if value is None:
            self._values.pop(key, None)
            self._values.pop(key.replace(key.split(".")[1], "*", 1), None)
        else:
            self._values[key] = str(value)

    def _write(self) -> None:
        new = self._script.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self._values.items()))
        new.replace(self._script)


def compiler() -> str | None:
    """The C compiler that builds the fake, None when the machine has none."""
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def obtain_compiler(report: Report) -> str | None:
    """The C compiler, installing one where this machine allows; None when it cannot be had."""
    if compiler() is None:
        report("C compiler: not found, installing it")
        apt_install(["gcc", "libc6-dev"], report)
    return compiler()


def _build(*, old_driver: bool) -> Path:
    """The library, compiled once per source and age into a cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outlast"
    age = ["-DOLD_DRIVER"] if old_driver else []
    recipe = SOURCE.read_bytes() + " ".join(age).encode()
    folder = cache / f"fake-nvml-{hashlib.sha256(recipe).hexdigest()[:16]}"
    library = folder / LIBRARY
    if not library.exists():
        found = compiler()
        if found is None:
            leave_out("the tests of NVIDIA's bindings on a library of ours", HOW_TO_GET_A_COMPILER)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / LIBRARY
            options = [
                "-shared",
                "-fPIC",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                f"-Wl,-soname,{LIBRARY}",
                *age,
            ]
            subprocess.run([found, *options, "-o", built, SOURCE], check=True, timeout=60)
            built.replace(library)
    return library
