"""The process that runs active tests on one GPU or pair, and may be lost to the driver at any call.

Run by file path (`python -I worker.py`), under our interpreter or another one that has torch; loads only the
standard library, our tests, CUDA's driver library and, where a test needs it, torch.

    frames   = those of the NVML worker
    request  = {"tests": [...], "gpus": [{"address", "uuid"}], sizes ..., "device": "cuda" or "cpu"}
    answers  = {"test", "share": 0.4} while it runs, {"test", "outcome", ...} for each test, {"done": true}
    id 0     = {"ready": true} once it runs
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from outlast.active.all_reduce import try_all_reduce
from outlast.active.device import DeviceError, NoRoom, WrongMemory, WrongResult
from outlast.active.gemm import try_gemm
from outlast.active.memory import try_context, try_host_copy, try_memory, try_peer_copy
from outlast.adapters.nvml.worker import HEADER, encode_frame

PROCESS_NAME = "outlast-active"
PROGRESS_EVERY_S = 0.5
ALL_REDUCE_ITERATIONS = 20

# CUDA's numbers, equal in the driver's and the runtime's library.
_FABRIC_NOT_READY = 802
_UNAVAILABLE = 46
_BROKEN = frozenset({214, 220, 700, 702, 714, 715, 716, 717, 718, 719, 999})
"""Uncorrectable memory or NVLink errors, and kernels that failed: our own work, so no program is to blame."""

_PR_SET_PDEATHSIG, _PR_SET_NAME, _SIGKILL = 1, 15, 9

Answer = dict[str, Any]


class _Run:
    """One request, test by test."""

    def __init__(self, request: dict[str, Any], send: Callable[[Answer], None]) -> None:
        self._request = request
        self._send = send
        self._addresses = [gpu["address"] for gpu in request["gpus"]]
        self._driver: Any = None
        self._told_s = 0.0

    def all(self) -> None:
        """Every test; after one that broke the context the others say so."""
        broken = ""
        for test in self._request["tests"]:
            if broken:
                why = f"the {broken} test before it broke off"
                self._send({"test": test, "outcome": "NotTested", "not_tested": "EarlierTest", "why": why})
                continue
            start = time.perf_counter()
            answer = self._one(test)
            self._send({"test": test, "duration_s": time.perf_counter() - start, **answer})
            if answer.get("failure") in ("Error", "FabricNotReady") or answer.get("ends"):
                broken = test

    def _one(self, test: str) -> Answer:
        try:
            return {"outcome": "Passed", **self._tests()[test](test)}
        except WrongMemory as error:
            return _failed("WrongMemory", error)
        except WrongResult as error:
            return _failed("WrongResult", error)
        except (NoRoom, MemoryError) as error:
            return _not_tested("NoRoom", error)
        except ImportError as error:
            return _not_tested("NoEngine", error)
        except DeviceError as error:
            return _of_device(error)
        except Exception as error:
            from outlast.adapters.active.torch_device import as_device_error

            return _of_device(as_device_error(error))

    def _tests(self) -> dict[str, Callable[[str], Answer]]:
        return {
            "context": self._context,
            "memory-pattern": self._memory,
            "host-copy": self._host_copy,
            "gemm-checksum": self._gemm,
            "peer-copy": self._peer_copy,
            "all-reduce": self._all_reduce,
        }

    def _context(self, test: str) -> Answer:
        return self._on_memory(try_context)

    def _memory(self, test: str) -> Answer:
        most, piece = self._request["memory_bytes_max"], self._request["memory_piece_bytes"]
        size = self._on_memory(
            lambda memory: {"bytes": try_memory(memory, most, self._progress(test), piece)}
        )
        tested = size.pop("bytes")
        return {**size, "why": f"{tested / (1 << 30):.1f} GiB"}

    def _host_copy(self, test: str) -> Answer:
        def copies(memory: Any) -> Answer:
            there, back = try_host_copy(memory, self._request["copy_bytes"])
            words = f"to the GPU {there / 1e9:.1f} GB/s, back {back / 1e9:.1f} GB/s"
            return {"bytes_per_s": min(there, back), "why": words}

        return self._on_memory(copies)

    def _peer_copy(self, test: str) -> Answer:
        from outlast.adapters.active.cuda_driver import CudaMemory

        driver = self._loaded()
        one, other = (CudaMemory(driver, address) for address in self._addresses)
        direct = one.open_path(other) and other.open_path(one)
        there, back = try_peer_copy(one, other, self._request["copy_bytes"])
        one.close()
        other.close()
        way = "direct" if direct else "through the host"
        return {
            "engine": f"{driver.engine}, {way}",
            "bytes_per_s": min(there, back),
            "why": f"{way}, there {there / 1e9:.1f} GB/s, back {back / 1e9:.1f} GB/s",
        }

    def _gemm(self, test: str) -> Answer:
        from outlast.adapters.active.torch_device import TorchMultiplier, load_torch

        device = TorchMultiplier(load_torch(), self._device())
        size, iterations = self._request["gemm_size"], self._request["gemm_iterations"]
        checksum = try_gemm(device, size, iterations, self._progress(test))
        return {
            "engine": device.engine,
            "checksum": checksum,
            "why": f"{2 * iterations} products of {size}^2",
        }

    def _all_reduce(self, test: str) -> Answer:
        from outlast.adapters.active.torch_device import TorchGroup, load_torch

        group = TorchGroup(
            load_torch(),
            self._device(),
            rendezvous=self._request["rendezvous"],
            rank=self._request["rank"],
            size=self._request["size"],
            timeout_s=self._request["deadline_s"],
        )
        rate = try_all_reduce(group, self._request["copy_bytes"] // 4, ALL_REDUCE_ITERATIONS)
        group.close()
        return {"engine": group.engine, "bytes_per_s": rate, "why": f"{rate / 1e9:.1f} GB/s"}

    def _device(self) -> str:
        # The environment shows this process its own GPU only.
        return "cuda:0" if self._request["device"] == "cuda" else "cpu"

    def _loaded(self) -> Any:
        from outlast.adapters.active.cuda_driver import CudaDriver

        if self._driver is None:
            self._driver = CudaDriver()
        return self._driver

    def _on_memory(self, work: Callable[[Any], Answer | None]) -> Answer:
        from outlast.adapters.active.cuda_driver import CudaMemory

        driver = self._loaded()
        memory = CudaMemory(driver, self._addresses[0])
        answer = work(memory) or {}
        memory.close()
        return {"engine": driver.engine, **answer}

    def _progress(self, test: str) -> Callable[[float], None]:
        def tell(share: float) -> None:
            now = time.perf_counter()
            if now - self._told_s >= PROGRESS_EVERY_S:
                self._told_s = now
                self._send({"test": test, "share": round(share, 3)})

        return tell


def _of_device(error: DeviceError) -> Answer:
    if error.code == _FABRIC_NOT_READY:
        return _failed("FabricNotReady", error)
    if error.code in _BROKEN:
        return _failed("Error", error)
    if error.code == _UNAVAILABLE:
        return {**_not_tested("GpuBusyForeign", error), "ends": True}
    if error.code == -1:
        return {**_not_tested("NoEngine", error), "ends": False}
    return {**_not_tested("NoRoom" if error.code == 2 else "Software", error), "ends": error.code != 2}


def _failed(failure: str, error: Exception) -> Answer:
    return {"outcome": "Failed", "failure": failure, "why": str(error)[:300]}


def _not_tested(reason: str, error: Exception) -> Answer:
    return {"outcome": "NotTested", "not_tested": reason, "why": str(error)[:300] or type(error).__name__}


def _become_a_worker() -> int:
    """Die with the parent, be recognisable, dump no core; keep what libraries print out of our pipe."""
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


def main() -> int:
    """One request, then the end."""
    answers = _become_a_worker()

    def send(request_id: int, message: Answer) -> None:
        frame = memoryview(encode_frame(request_id, message))
        while frame:
            frame = frame[os.write(answers, frame) :]

    try:
        send(0, {"ready": True})
        _, length, request_id = HEADER.unpack(_read(HEADER.size))
        request = json.loads(_read(length))
        _Run(request, lambda answer: send(request_id, answer)).all()
        send(request_id, {"done": True})
    except (EOFError, BrokenPipeError):
        pass
    return 0


if __name__ == "__main__":
    # Nothing is torn down in order: what is on the GPU goes with the process.
    os._exit(main())
