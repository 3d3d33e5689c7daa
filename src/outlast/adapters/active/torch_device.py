"""Matrices and sums through torch: on CUDA where there is a GPU, on the processor in tests.

torch is never imported by the agent or the command line, only by a worker, which may run under another
interpreter than ours.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from outlast.active.device import DeviceError

_WORDS = {
    "out of memory": 2,
    "uncorrectable ECC error": 214,
    "uncorrectable NVLink error": 220,
    "illegal memory access": 700,
    "illegal instruction": 715,
    "misaligned address": 716,
    "unspecified launch failure": 719,
    "system not yet initialized": 802,
    "unknown error": 999,
}
"""What torch says, and CUDA's number for it; older versions of torch only give the words."""


def load_torch() -> Any:
    """torch; raises ImportError."""
    return import_module("torch")


def as_device_error(error: Exception) -> DeviceError:
    """A torch exception with CUDA's number, 0 where it has none."""
    text = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    code = getattr(error, "error_code", None)
    if not isinstance(code, int):
        code = next((number for words, number in _WORDS.items() if words in str(error)), 0)
    return DeviceError(text, code)


class TorchMultiplier:
    """Implements `outlast.active.device.Multiplier`; `device` as torch names it."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._device = torch.device(device)
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = True  # The tensor cores, with 32-bit sums.
        cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ""
        self.engine = f"torch {torch.__version__}{cuda} on {self._device.type}"

    def load(self, values: Sequence[int], size: int) -> Any:
        """A square matrix of these signed bytes."""
        raw = self._torch.frombuffer(bytearray(values), dtype=self._torch.int8)
        return raw.reshape(size, size).to(self._device).to(self._torch.float32)

    def multiply(self, left: Any, right: Any) -> Any:
        """The product."""
        return self._torch.matmul(left, right)

    def same_bits(self, one: Any, other: Any) -> bool:
        """Whether two matrices agree in every bit."""
        bits = self._torch.int32
        return bool(self._torch.equal(one.view(bits), other.view(bits)))

    def row_sums(self, matrix: Any) -> list[int]:
        """The exact sum of each row."""
        return [int(value) for value in matrix.double().sum(dim=1).tolist()]

    def content(self, matrix: Any) -> bytes:
        """All bits of a matrix."""
        here = matrix.contiguous().cpu()
        return ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())


class TorchGroup:
    """Implements `outlast.active.device.Group` over a file that all members can reach."""

    def __init__(
        self, torch: Any, device: str, *, rendezvous: str, rank: int, size: int, timeout_s: float
    ) -> None:
        self._torch = torch
        self._device = torch.device(device)
        self._distributed = import_module("torch.distributed")
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        self.rank, self.size = rank, size
        self.engine = f"torch {torch.__version__} {backend}"
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._distributed.init_process_group(
            backend,
            store=self._distributed.FileStore(rendezvous, size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )

    def close(self) -> None:
        """Leave the group."""
        self._distributed.destroy_process_group()

    def all_reduce(self, value: int, count: int) -> tuple[int, int, int, float]:
        """Sum of vectors of `count` times `value`: its smallest and largest element, its length, seconds."""
        vector = self._torch.full((count,), float(value), device=self._device)
        self._wait()
        start = time.perf_counter()
        self._distributed.all_reduce(vector)
        self._wait()
        spent = time.perf_counter() - start
        return int(vector.min().item()), int(vector.max().item()), vector.numel(), spent

    def _wait(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)
