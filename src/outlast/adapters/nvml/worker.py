"""The process that talks to NVIDIA's driver, and may be lost to it at any call.

Run by file path (`python -I worker.py`), so it imports nothing of ours and starts in some 50 ms. It reads
request frames on its standard input and answers each GPU as soon as it is read, so that whoever waits
knows which GPU does not answer. It ends when its input ends, and is killed when its parent dies.

    frame    = magic, payload length, request id, payload (JSON)
    request  = {"gpus": [pci address, ...], "detail": bool} | {"exit": true}
    answers  = {"gpu": {reading}} for each GPU in order, then {"done": true, "library_version": "..."}
    id 0     = after NVML was opened: {"driver_version": "..."} or {"error": code, "name": "..."}
"""

from __future__ import annotations

import json
import os
import resource
import stat
import struct
from collections.abc import Callable
from typing import Any

MAGIC = b"OLNV"
HEADER = struct.Struct("<4sII")
PROCESS_NAME = "outlast-nvml"
"""How a worker is recognised in /proc after its agent is gone; the kernel keeps 15 bytes."""

PROCESS_IDS_MAX = 64
INSTANCES_MAX = 16
LINKS_MAX = 36
"""NVML_NVLINK_MAX_LINKS."""
NVIDIA_MAJOR = 195
_TEXT_MAX = 128
_NODES = "/dev"
LIBRARY = "libnvidia-ml.so"

# Field ids and return codes of nvml.h.
_PCIE_ERRORS = {
    "replay": 94,
    "correctable": 173,
    "naks_received": 174,
    "receiver": 175,
    "bad_tlp": 176,
    "naks_sent": 177,
    "bad_dllp": 178,
    "non_fatal": 179,
    "fatal": 180,
    "unsupported_request": 181,
    "lcrc": 182,
    "lane": 183,
}
_PLAIN_LEVELS = {
    "recovery_action": 230,
    "remapped_corrected": 142,
    "remapped_uncorrected": 143,
    "sw_thermal_ns": 269,
    "hw_thermal_ns": 270,
    "power_brake_ns": 271,
}
_LEVELS = {**_PLAIN_LEVELS, "remap_pending": 144, "remap_failed": 145, **_PCIE_ERRORS}
_DETAILS = {
    "pages_retired_corrected": 29,
    "pages_retired_uncorrected": 30,
    "pages_pending": 31,
    "shutdown_margin_c": 193,
    "slowdown_margin_c": 194,
    "power_smoothing_enabled": 251,
    "power_smoothing_life_percent": 258,
    "rows_inactive_corrected": 301,
    "rows_inactive_uncorrected": 302,
    "banks_remapped": 303,
    "banks_inactive": 304,
    "bank_groups_full": 305,
    "bank_groups_exhausted": 306,
    "bank_remap_pending": 307,
}
_C2C_ERRORS = {"interrupts": 231, "replay": 232, "replay_back_to_back": 233}
_LINK_ERRORS = {
    "replay": 161,
    "recovery": 162,
    "crc": 163,
    "malformed_packet": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "receive_remote": 209,
    "receive_general": 210,
    "local_integrity": 211,
    "transmit_discard": 212,
    "recovery_succeeded": 213,
    "recovery_failed": 214,
    "recovery_event": 215,
    "effective": 219,
    "symbol": 221,
}
"""By link. Fields 216-218, 220 and 222 are error *rates*, packed, and no counters."""
_VALUE_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t, without the doubles, which no field of ours has."""
_NO_INSTANCE = (None, 0xFFFFFFFF)
_SUCCESS, _INVALID_ARGUMENT, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND = 0, 2, 3, 13
_TIMEOUT = 10
_SICK = (8, _TIMEOUT, 11, 15, 16)
"""Insufficient power, time-out, interrupt trouble, GPU is lost, reset required: any call may tell."""

_PR_SET_PDEATHSIG, _PR_SET_NAME, _SIGKILL = 1, 15, 9


def encode_frame(request_id: int, message: dict[str, Any]) -> bytes:
    """One frame, header and payload."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(MAGIC, len(payload), request_id) + payload


class _Stop(Exception):
    """This GPU is not worth more calls."""


class _Gpu:
    """Asks about one GPU; what is not supported or not readable is left out, never zero."""

    def __init__(self, nvml: Any, names: dict[int, str], address: str) -> None:
        self._nvml = nvml
        self._names = names
        self._code = _SUCCESS
        """Return code of the last call."""
        self.reading: dict[str, Any] = {"pci_address": address}

    def read(self, detail: bool) -> dict[str, Any]:
        """All that is known of it, worst news first; with `detail` also what is slow or rarely changes."""
        try:
            handle = self._call("nvmlDeviceGetHandleByPciBusId", self.reading["pci_address"], needed=True)
            if handle is not None:
                self._levels(handle)
                self._identity(handle)
                self._errors(handle)
                self._speed(handle)
                self._use(handle)
                if detail:
                    self.reading["detail"] = _present(self._detail(handle))
        except _Stop:
            pass
        return _present(self.reading)

    def _levels(self, handle: Any) -> None:
        fields = self._fields(handle, _LEVELS)
        self.reading.update({name: fields[name] for name in _PLAIN_LEVELS})
        pending, failed = fields["remap_pending"], fields["remap_failed"]
        if pending is None or failed is None:
            rows = self._call("nvmlDeviceGetRemappedRows", handle)
            if rows:
                self.reading["remapped_corrected"], self.reading["remapped_uncorrected"] = rows[0], rows[1]
                pending, failed = rows[2], rows[3]
        self.reading["remap_pending"] = _flag(pending)
        self.reading["remap_failed"] = _flag(failed)
        self.reading["pcie_errors"] = _present({name: fields[name] for name in _PCIE_ERRORS})

    def _identity(self, handle: Any) -> None:
        self.reading["uuid"] = _text(self._call("nvmlDeviceGetUUID", handle, needed=True))
        self.reading["serial"] = _text(self._call("nvmlDeviceGetSerial", handle))
        self.reading["name"] = _text(self._call("nvmlDeviceGetName", handle))
        self.reading["index"] = self._call("nvmlDeviceGetIndex", handle)
        minor = self.reading["minor"] = self._call("nvmlDeviceGetMinorNumber", handle)
        if minor is not None:
            self.reading["device_node"] = _node_trouble(f"{_NODES}/nvidia{minor}") or None

    def _errors(self, handle: Any) -> None:
        reading = self.reading
        reading["ecc_corrected_volatile"] = self._call("nvmlDeviceGetTotalEccErrors", handle, 0, 0)
        reading["ecc_uncorrected_volatile"] = self._call("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
        sram = self._filled("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus", handle)
        if sram is not None:
            reading["sram_threshold_exceeded"] = bool(sram.bThresholdExceeded)
            reading["sram_uncorrected"] = sram.aggregateUncParity + sram.aggregateUncSecDed
        fabric = self._first(
            lambda: self._filled("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV", handle),
            lambda: self._filled("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV", handle),
        )
        if fabric is not None:
            reading["fabric_state"] = fabric.state & 0xFF  # One byte in nvml.h, read as four by the bindings.
            reading["fabric_status"] = fabric.status
            reading["fabric_clique"] = fabric.cliqueId
            reading["fabric_health_mask"] = fabric.healthMask
            reading["fabric_summary"] = getattr(fabric, "healthSummary", None)

    def _speed(self, handle: Any) -> None:
        reading = self.reading
        reading["temperature_c"] = self._first(
            lambda: self._call("nvmlDeviceGetTemperatureV", handle, 0),
            lambda: self._call("nvmlDeviceGetTemperature", handle, 0),
        )
        reading["temperature_margin_c"] = self._call("nvmlDeviceGetMarginTemperature", handle)
        reading["clocks_event_reasons"] = self._first(
            lambda: self._call("nvmlDeviceGetCurrentClocksEventReasons", handle),
            lambda: self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle),
        )
        reading["performance_state"] = self._call("nvmlDeviceGetPerformanceState", handle)
        reading["pcie_width"] = self._call("nvmlDeviceGetCurrPcieLinkWidth", handle)
        reading["pcie_generation"] = self._call("nvmlDeviceGetCurrPcieLinkGeneration", handle)

    def _use(self, handle: Any) -> None:
        reading = self.reading
        persistence = self._call("nvmlDeviceGetPersistenceMode", handle)
        reading["persistence_enabled"] = _flag(persistence)
        memory = self._first(
            lambda: self._call("nvmlDeviceGetMemoryInfo", handle, getattr(self._nvml, "nvmlMemory_v2", None)),
            lambda: self._call("nvmlDeviceGetMemoryInfo", handle),
        )
        if memory is not None:
            reading["memory_total_bytes"], reading["memory_used_bytes"] = memory.total, memory.used
        mig = self._call("nvmlDeviceGetMigMode", handle)
        if mig is not None:
            reading["mig_enabled"], reading["mig_pending"] = mig[0] == 1, mig[1] == 1
            if mig[0] == 1:
                reading["mig_instances"] = self._instances(handle)
        users = self._call("nvmlDeviceGetComputeRunningProcesses", handle)
        if users is not None:
            users = users[:PROCESS_IDS_MAX]
            reading["process_ids"] = [user.pid for user in users]
            instances = {user.pid: getattr(user, "gpuInstanceId", None) for user in users}
            reading["process_instances"] = {
                pid: instance for pid, instance in instances.items() if instance not in _NO_INSTANCE
            }

    def _instances(self, handle: Any) -> list[int] | None:
        """Ids of the GPU instances; the index of a destroyed one is a hole, not the end."""
        count = self._call("nvmlDeviceGetMaxMigDeviceCount", handle)
        if count is None:
            return None
        found = set()
        for index in range(min(count, INSTANCES_MAX)):
            slice_ = self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if slice_ is not None:
                found.add(self._call("nvmlDeviceGetGpuInstanceId", slice_))
        return sorted(found - {None})

    def _detail(self, handle: Any) -> dict[str, Any]:
        detail: dict[str, Any] = self._fields(handle, _DETAILS)
        ecc = self._call("nvmlDeviceGetEccMode", handle)
        detail["ecc_enabled"] = None if ecc is None else ecc[0] == 1
        detail["ecc_corrected_aggregate"] = self._call("nvmlDeviceGetTotalEccErrors", handle, 0, 1)
        detail["ecc_uncorrected_aggregate"] = self._call("nvmlDeviceGetTotalEccErrors", handle, 1, 1)
        rows = self._call("nvmlDeviceGetRowRemapperHistogram", handle)
        if rows is not None:
            detail["remap_histogram"] = [rows.max, rows.high, rows.partial, rows.low, rows.none]
        repair = self._call("nvmlDeviceGetRepairStatus", handle)
        if repair is not None:
            detail["channel_repair_pending"], detail["tpc_repair_pending"] = map(bool, repair)
        detail["memory_unrepairable"] = _flag(self._call("nvmlDeviceGetUnrepairableMemoryFlag_v1", handle))
        if detail["pages_pending"] is None:
            detail["pages_pending"] = self._call("nvmlDeviceGetRetiredPagesPendingStatus", handle)
        for name in ("pages_pending", "bank_remap_pending", "power_smoothing_enabled"):
            detail[name] = _flag(detail[name])
        detail["pcie_width_max"] = self._call("nvmlDeviceGetMaxPcieLinkWidth", handle)
        detail["pcie_generation_max"] = self._call("nvmlDeviceGetMaxPcieLinkGeneration", handle)
        detail["c2c_errors"] = _present(self._fields(handle, _C2C_ERRORS))
        self._nvlinks(handle, detail)
        return detail

    def _nvlinks(self, handle: Any, detail: dict[str, Any]) -> None:
        answers: list[int | None] = []
        for link in range(LINKS_MAX):
            active = self._call("nvmlDeviceGetNvLinkState", handle, link)
            if self._code in (_INVALID_ARGUMENT, _FUNCTION_NOT_FOUND):
                break
            answers.append(active)  # A link that the board does not use may be "not supported".
        if all(active is None for active in answers):
            return
        states = [active == 1 for active in answers]
        detail["nvlinks"] = states
        # One link tells which fields this GPU has; asking all links for the others would double the cost.
        first = states.index(True) if True in states else 0
        supported = _present(self._fields(handle, _LINK_ERRORS, scope=first))
        wanted = {name: _LINK_ERRORS[name] for name in supported}
        by_link = [self._fields(handle, wanted, scope=link) for link in range(len(states)) if wanted]
        for name in wanted:
            detail.setdefault("nvlink_errors", {})[name] = [fields[name] for fields in by_link]
        if "nvlink_errors" not in detail:  # A driver from before these fields.
            for number, name in enumerate(("replay", "recovery", "crc_flit")):
                values = [
                    self._call("nvmlDeviceGetNvLinkErrorCounter", handle, link, number)
                    for link in range(len(states))
                ]
                if any(value is not None for value in values):
                    detail.setdefault("nvlink_errors", {})[name] = values

    def _call(self, function: str, *arguments: Any, needed: bool = False) -> Any:
        """The answer, or None when this driver or GPU has none. `needed` calls make the GPU unreadable."""
        self._code = _SUCCESS
        try:
            return getattr(self._nvml, function)(*arguments)
        except (AttributeError, getattr(self._nvml, "NVMLLibraryMismatchError", AttributeError)):
            self._code = _FUNCTION_NOT_FOUND  # The bindings or the driver are older than the function.
            return None
        except UnicodeDecodeError:
            return None  # The driver's text is none.
        except self._nvml.NVMLError as error:
            self._code = error.value
            self._failed(error.value, needed)
            return None

    def _failed(self, code: int, needed: bool) -> None:
        if code in _SICK or (needed and code != _NOT_SUPPORTED):
            self.reading.setdefault("error", self._names.get(code, f"NVML_{code}"))
        if code == _TIMEOUT:
            raise _Stop

    def _filled(self, struct_name: str, function: str, handle: Any) -> Any:
        """A structure that the call fills in; None as for `_call`."""
        make = getattr(self._nvml, struct_name, None)
        if make is None:
            return None
        import ctypes

        filled = make()
        done = self._call(function, handle, ctypes.byref(filled))
        return filled if done == _SUCCESS else None

    def _first(self, *ways: Callable[[], Any]) -> Any:
        """The first way that this driver knows."""
        for way in ways:
            answer = way()
            if answer is not None:
                return answer
        return None

    def _fields(self, handle: Any, wanted: dict[str, int], scope: int | None = None) -> dict[str, int | None]:
        """Values of fields by name, in one call. Each has its own return code; unsupported ones hold 0."""
        ids = [number if scope is None else (number, scope) for number in wanted.values()]
        answers = self._call("nvmlDeviceGetFieldValues", handle, ids) or ()
        values = dict.fromkeys(wanted)
        for name, answer in zip(wanted, answers, strict=False):
            if answer.nvmlReturn == _SUCCESS:
                member = _VALUE_MEMBERS.get(answer.valueType)
                values[name] = None if member is None else int(getattr(answer.value, member))
            else:
                self._failed(answer.nvmlReturn, needed=False)
        return values


def _present(values: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _node_trouble(path: str) -> str:
    """What keeps programs from opening a GPU's device node; empty when nothing does."""
    try:
        found = os.stat(path)  # noqa: PTH116 (no pathlib in a worker)
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError:
        return ""
    if not stat.S_ISCHR(found.st_mode):
        return f"{path} is no character device"
    major = os.major(found.st_rdev)
    return "" if major == NVIDIA_MAJOR else f"{path} has major number {major} instead of {NVIDIA_MAJOR}"


def _text(value: Any) -> str | None:
    """NVIDIA's bindings return str or bytes by version."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return None if value is None else "".join(c for c in str(value)[:_TEXT_MAX] if c.isprintable())


def library_version(maps: str = "/proc/self/maps") -> str:
    """Version of NVIDIA's library as it is on disk now, which need not be the one that was loaded.

    Taken from the name that the loaded library's folder gives it: libnvidia-ml.so.1 -> ...so.580.95.05.
    Empty where the name does not say.
    """
    try:
        with open(maps) as file:  # noqa: PTH123 (no pathlib in a worker)
            loaded = next((line.split(None, 5)[5] for line in file if f"/{LIBRARY}" in line), "")
    except (OSError, IndexError):
        return ""
    folder = os.path.dirname(loaded)  # noqa: PTH120
    found = os.path.realpath(f"{folder}/{LIBRARY}.1") if folder else ""
    version = found.rpartition(f"{LIBRARY}.")[2]
    return version[:_TEXT_MAX] if version.replace(".", "").isdigit() and "." in version else ""


def _open(nvml: Any, names: dict[int, str]) -> dict[str, Any]:
    try:
        nvml.nvmlInitWithFlags(0)
        return {"driver_version": _text(nvml.nvmlSystemGetDriverVersion())}
    except nvml.NVMLError as error:
        return {"error": error.value, "name": names.get(error.value, "UNKNOWN")}


def _become_a_worker() -> int:
    """Die with the parent, be recognisable, dump no core; keep the library's prints out of our pipe."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, PROCESS_NAME.encode(), 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return answers


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _send(answers: int, request_id: int, message: dict[str, Any]) -> None:
    frame = memoryview(encode_frame(request_id, message))
    while frame:
        frame = frame[os.write(answers, frame) :]


def main() -> int:
    """Answer until the input ends; the exit code says nothing that the frames did not."""
    answers = _become_a_worker()
    try:
        import pynvml
    except ImportError as error:
        _send(answers, 0, {"error": 12, "name": f"NVIDIA's Python bindings are missing: {error}"[:_TEXT_MAX]})
        return 1
    prefix = "NVML_ERROR_"
    names = {
        code: name.removeprefix(prefix)
        for name, code in vars(pynvml).items()
        if name.startswith(prefix) and isinstance(code, int)
    }
    opened = _open(pynvml, names)
    _send(answers, 0, opened)
    if "error" in opened:
        return 1
    try:
        while True:
            _, length, request_id = HEADER.unpack(_read(HEADER.size))
            request = json.loads(_read(length))
            if request.get("exit"):
                break
            detail = bool(request.get("detail"))
            for address in request["gpus"]:
                _send(answers, request_id, {"gpu": _Gpu(pynvml, names, address).read(detail)})
            _send(answers, request_id, {"done": True, "library_version": library_version()})
    except (EOFError, BrokenPipeError):
        pass
    pynvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
