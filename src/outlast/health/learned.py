"""What a GPU has shown it can do, so that less of it later is noticed; kept by board, over restarts.

A board that is replaced, or whose ECC mode was changed, starts anew: that is a choice, not a loss.
"""

from __future__ import annotations

from typing import Final

from outlast.health.checks.declaration import KnownGpu
from outlast.model.observation import GpuDetail, GpuReading

_NOTHING: Final = GpuDetail()


def learned(gpu: GpuReading, before: KnownGpu | None) -> KnownGpu:
    """The identity and the most ever seen of the GPU that answers at an address."""
    detail = gpu.detail or _NOTHING
    if before is None or not _same_board(gpu, before):
        before = KnownGpu(pci_address=gpu.pci_address)
    ecc = before.ecc_enabled if detail.ecc_enabled is None else detail.ecc_enabled
    memory = before.memory_total_bytes if ecc == before.ecc_enabled else 0
    return KnownGpu(
        pci_address=gpu.pci_address,
        uuid=gpu.uuid,
        serial=gpu.serial,
        name=gpu.name,
        index=gpu.index,
        ecc_enabled=ecc,
        memory_total_bytes=max(memory, gpu.memory_total_bytes or 0),
        nvlinks_up=max(before.nvlinks_up, sum(detail.nvlinks or ())),
        pcie_width=max(before.pcie_width, gpu.pcie_width or 0),
    )


def _same_board(gpu: GpuReading, known: KnownGpu) -> bool:
    if gpu.serial and known.serial:
        return gpu.serial == known.serial
    return gpu.uuid == known.uuid
