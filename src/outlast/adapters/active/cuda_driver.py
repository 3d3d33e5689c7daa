"""Memory of a GPU through CUDA's driver library alone: every machine with a driver has it, torch or not.

Copies go through one page-locked buffer of the host. Standard library only, like all that a worker loads.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from outlast.active.device import DeviceError, NoRoom

LIBRARY: Final = "libcuda.so.1"
PINNED_BYTES: Final = 32 << 20

OUT_OF_MEMORY: Final = 2
PEER_ACCESS_ALREADY_ENABLED: Final = 704
NO_LIBRARY: Final = -1
"""Our own number: the library is not on this machine."""


class CudaDriver:
    """The library, loaded and initialised. Raises DeviceError."""

    def __init__(self) -> None:
        try:
            self._library: Any = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise DeviceError(f"{LIBRARY} cannot be loaded: {error}", NO_LIBRARY) from error
        self.call("cuInit", 0)
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.engine = f"CUDA driver {version.value // 1000}.{version.value % 1000 // 10}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call by name; anything but success is a DeviceError, or NoRoom."""
        function = getattr(self._library, name, None)
        if function is None:
            raise DeviceError(f"{LIBRARY} is too old: it has no {name}", NO_LIBRARY)
        code = int(function(*arguments))
        if code == 0:
            return
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        words = (text.value or b"unknown").decode("utf-8", "replace")
        if code == OUT_OF_MEMORY:
            raise NoRoom(f"{name}: {words}")
        raise DeviceError(f"{name}: {words} (CUDA error {code})", code)


class CudaMemory:
    """Implements `outlast.active.device.Memory` on one GPU, by PCI address."""

    def __init__(self, driver: CudaDriver, address: str) -> None:
        self._driver = driver
        self._device = ctypes.c_int()
        driver.call("cuDeviceGetByPCIBusId", ctypes.byref(self._device), address.encode())
        self.context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self._device)
        self._pinned = ctypes.c_void_p()
        self._pinned_bytes = 0

    def close(self) -> None:
        """Give the context back."""
        self._current()
        if self._pinned:
            self._driver.call("cuMemFreeHost", self._pinned)
        self._driver.call("cuDevicePrimaryCtxRelease_v2", self._device)

    def free_bytes(self) -> int:
        """Memory that could be allocated now."""
        self._current()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size: int) -> int:
        """A device address. Raises NoRoom."""
        self._current()
        pointer = ctypes.c_uint64()
        self._driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def release(self, buffer: int) -> None:
        """Give it back."""
        self._current()
        self._driver.call("cuMemFree_v2", ctypes.c_uint64(buffer))

    def fill(self, buffer: int, offset: int, size: int, word: int) -> None:
        """Write one 32-bit word all over."""
        self._current()
        words = ctypes.c_size_t(size // 4)
        self._driver.call("cuMemsetD32_v2", ctypes.c_uint64(buffer + offset), ctypes.c_uint(word), words)
        self._driver.call("cuCtxSynchronize")

    def write(self, buffer: int, offset: int, data: bytes) -> None:
        """Copy from the host."""
        self._current()
        for start in range(0, len(data), PINNED_BYTES):
            piece = data[start : start + PINNED_BYTES]
            pinned = self._host_buffer(len(piece))
            ctypes.memmove(pinned, piece, len(piece))
            target = ctypes.c_uint64(buffer + offset + start)
            self._driver.call("cuMemcpyHtoD_v2", target, pinned, ctypes.c_size_t(len(piece)))

    def read(self, buffer: int, offset: int, size: int) -> bytes:
        """Copy to the host."""
        self._current()
        pieces = []
        for start in range(0, size, PINNED_BYTES):
            length = min(PINNED_BYTES, size - start)
            pinned = self._host_buffer(length)
            source = ctypes.c_uint64(buffer + offset + start)
            self._driver.call("cuMemcpyDtoH_v2", pinned, source, ctypes.c_size_t(length))
            assert pinned.value is not None
            pieces.append(ctypes.string_at(pinned.value, length))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def open_path(self, other: CudaMemory) -> bool:
        """Let copies from the other device go directly; False where they can only go through the host."""
        possible = ctypes.c_int()
        self._driver.call("cuDeviceCanAccessPeer", ctypes.byref(possible), self._device, other._device)
        if not possible.value:
            return False
        self._current()
        try:
            self._driver.call("cuCtxEnablePeerAccess", other.context, 0)
        except DeviceError as error:
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise
        return True

    def copy_from(self, other: CudaMemory, target: int, source: int, size: int) -> None:
        """Copy from another device's buffer into one of ours; complete when it returns."""
        self._current()
        self._driver.call(
            "cuMemcpyPeer",
            ctypes.c_uint64(target),
            self.context,
            ctypes.c_uint64(source),
            other.context,
            ctypes.c_size_t(size),
        )
        self._driver.call("cuCtxSynchronize")

    def _current(self) -> None:
        self._driver.call("cuCtxSetCurrent", self.context)

    def _host_buffer(self, size: int) -> ctypes.c_void_p:
        if self._pinned_bytes < size:
            if self._pinned:
                self._driver.call("cuMemFreeHost", self._pinned)
            self._driver.call("cuMemAllocHost_v2", ctypes.byref(self._pinned), ctypes.c_size_t(size))
            self._pinned_bytes = size
        return self._pinned
