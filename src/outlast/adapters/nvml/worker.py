"""The process that talks to NVIDIA's driver, and may be lost to it at any call.

Run by file path (`python -I worker.py`), so it imports nothing of ours and starts in some 50 ms. It reads
request frames on its standard input and answers each GPU as soon as it is read, so that whoever waits
knows which GPU does not answer. It ends when its input ends, and is killed when its parent dies.

    frame    = magic, payload length, request id, payload (JSON)
    request  = {"gpus": [pci address, ...]} | {"exit": true}
    answers  = {"gpu": {reading}} for each GPU in order, then {"done": true}
    id 0     = after NVML was opened: {"driver_version": "..."} or {"error": code, "name": "..."}
"""

from __future__ import annotations

import json
import os
import resource
import struct
from collections.abc import Callable
from typing import Any

MAGIC = b"OLNV"
HEADER = struct.Struct("<4sII")
FRAME_BYTES_MAX = 1024 * 1024
PROCESS_NAME = "outlast-nvml"
"""How a worker is recognised in /proc after its agent is gone; the kernel keeps 15 bytes."""

PROCESS_IDS_MAX = 64
_TEXT_MAX = 128

# Field ids and return codes of nvml.h.
_RECOVERY_ACTION, _REMAP_PENDING, _REMAP_FAILED = 230, 144, 145
_SUCCESS, _NOT_SUPPORTED = 0, 3
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
        self.reading: dict[str, Any] = {"pci_address": address}

    def read(self) -> dict[str, Any]:
        """All that is known of it, worst news first."""
        try:
            handle = self._call("nvmlDeviceGetHandleByPciBusId", self.reading["pci_address"], needed=True)
            if handle is not None:
                self._levels(handle)
                self._identity(handle)
                self._signals(handle)
        except _Stop:
            pass
        return {key: value for key, value in self.reading.items() if value is not None}

    def _levels(self, handle: Any) -> None:
        wanted = (_RECOVERY_ACTION, _REMAP_PENDING, _REMAP_FAILED)
        values = dict(
            zip(wanted, self._call("nvmlDeviceGetFieldValues", handle, list(wanted)) or (), strict=False)
        )
        self.reading["recovery_action"] = self._field(values.get(_RECOVERY_ACTION))
        pending = self._field(values.get(_REMAP_PENDING))
        failed = self._field(values.get(_REMAP_FAILED))
        if pending is None or failed is None:
            rows = self._call("nvmlDeviceGetRemappedRows", handle)
            pending, failed = (rows[2], rows[3]) if rows else (pending, failed)
        self.reading["remap_pending"] = None if pending is None else bool(pending)
        self.reading["remap_failed"] = None if failed is None else bool(failed)

    def _identity(self, handle: Any) -> None:
        self.reading["uuid"] = _text(self._call("nvmlDeviceGetUUID", handle, needed=True))
        self.reading["serial"] = _text(self._call("nvmlDeviceGetSerial", handle))
        self.reading["name"] = _text(self._call("nvmlDeviceGetName", handle))
        self.reading["index"] = self._call("nvmlDeviceGetIndex", handle)

    def _signals(self, handle: Any) -> None:
        nvml, reading = self._nvml, self.reading
        reading["ecc_uncorrected_volatile"] = self._call("nvmlDeviceGetTotalEccErrors", handle, 1, 0)
        reading["temperature_c"] = self._first(
            lambda: self._call("nvmlDeviceGetTemperatureV", handle, 0),
            lambda: self._call("nvmlDeviceGetTemperature", handle, 0),
        )
        reading["clocks_event_reasons"] = self._call("nvmlDeviceGetCurrentClocksEventReasons", handle)
        mig = self._call("nvmlDeviceGetMigMode", handle)
        reading["mig_enabled"] = None if mig is None else mig[0] == 1
        persistence = self._call("nvmlDeviceGetPersistenceMode", handle)
        reading["persistence_enabled"] = None if persistence is None else persistence == 1
        memory = self._call("nvmlDeviceGetMemoryInfo", handle, getattr(nvml, "nvmlMemory_v2", None))
        if memory is not None:
            reading["memory_total_bytes"], reading["memory_used_bytes"] = memory.total, memory.used
        sram = self._filled("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus", handle)
        reading["sram_threshold_exceeded"] = None if sram is None else bool(sram.bThresholdExceeded)
        fabric = self._first(
            lambda: self._filled("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV", handle),
            lambda: self._filled("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV", handle),
        )
        if fabric is not None:
            reading["fabric_state"] = fabric.state & 0xFF  # One byte in nvml.h, read as four by the bindings.
            reading["fabric_summary"] = getattr(fabric, "healthSummary", None)
        users = self._call("nvmlDeviceGetComputeRunningProcesses", handle)
        reading["process_ids"] = None if users is None else [user.pid for user in users[:PROCESS_IDS_MAX]]

    def _call(self, function: str, *arguments: Any, needed: bool = False) -> Any:
        """The answer, or None when this driver or GPU has none. `needed` calls make the GPU unreadable."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (AttributeError, getattr(self._nvml, "NVMLLibraryMismatchError", AttributeError)):
            return None  # The bindings or the driver are older than the function.
        except UnicodeDecodeError:
            return None  # The driver's text is none.
        except self._nvml.NVMLError as error:
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

    def _field(self, field: Any) -> int | None:
        """A field's own return code decides: an unsupported field has value 0."""
        if field is None:
            return None
        if field.nvmlReturn != _SUCCESS:
            self._failed(field.nvmlReturn, needed=False)
            return None
        members = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
        member = members.get(field.valueType)
        return None if member is None else int(getattr(field.value, member))


def _text(value: Any) -> str | None:
    """NVIDIA's bindings return str or bytes by version."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return None if value is None else str(value)[:_TEXT_MAX]


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
            for address in request["gpus"]:
                _send(answers, request_id, {"gpu": _Gpu(pynvml, names, address).read()})
            _send(answers, request_id, {"done": True})
    except (EOFError, BrokenPipeError):
        pass
    pynvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
