"""Adds InfiniBand, RoCE and EFA devices to a /sys tree, laid out as their drivers do.

rdma = RdmaTree(FakeSysfs(tmp_path))
rdma.add_infiniband("mlx5_0", "0000:5c:00.0")
rdma.set("mlx5_0", "ports/1/state", "1: DOWN")
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.sysfs import FakeSysfs

CONNECTX_7 = 0x1021
MLX5_COUNTERS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
)
MLX5_HW_COUNTERS = (
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "roce_slow_restart",
    "rx_icrc_encapsulated",
)
EFA_PORT_COUNTERS = (
    "lifespan",
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_pkts",
    "rx_drops",
    "send_bytes",
    "send_wrs",
    "recv_bytes",
    "recv_wrs",
    "rdma_read_wrs",
    "rdma_read_bytes",
    "rdma_read_wr_err",
    "rdma_read_resp_bytes",
    "rdma_write_wrs",
    "rdma_write_bytes",
    "rdma_write_wr_err",
    "rdma_write_recv_bytes",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
    "unresponsive_remote_events",
    "impaired_remote_conn_events",
)
EFA_DEVICE_COUNTERS = (
    "submitted_cmds",
    "completed_cmds",
    "cmds_err",
    "no_completion_cmds",
    "keep_alive_rcvd",
    "alloc_pd_err",
    "create_qp_err",
    "create_cq_err",
    "reg_mr_err",
    "alloc_ucontext_err",
    "create_ah_err",
    "mmap_err",
)
OLD_NITRO_LACKS = ("retrans_bytes", "retrans_pkts", "retrans_timeout_events")


class RdmaTree:
    """RDMA devices of a `FakeSysfs`."""

    def __init__(self, sysfs: FakeSysfs) -> None:
        self.sysfs = sysfs
        self._class = sysfs.root / "sys/class/infiniband"
        self._homes: dict[str, Path] = {}

    def add_infiniband(self, name: str, address: str, *, ports: int = 1, rate: int = 400) -> None:
        """A ConnectX-7 with InfiniBand links, all up."""
        self._add_mlx5(name, address, 0x020700, "InfiniBand", ports, rate)

    def add_roce(self, name: str, address: str, interface: str, *, rate: int = 400) -> None:
        """A ConnectX-7 with an Ethernet link that is up."""
        self._add_mlx5(name, address, 0x020000, "Ethernet", 1, rate)
        for file, text in (("flags", "0x1003"), ("carrier_changes", "2"), ("operstate", "up")):
            self.set(name, f"device/net/{interface}/{file}", text)

    def add_efa(self, name: str, address: str, *, without: tuple[str, ...] = ()) -> None:
        """An EFA device: always active, whatever happens. `without`: counters that it lacks."""
        self.sysfs.add_efa(address)
        self._link(name, address)
        self.set(name, "node_type", "7: unspecified")
        self.set(name, "fw_ver", "0.0.0.0")
        self._port(name, 1, "Unknown", 400)
        for counter in EFA_PORT_COUNTERS:
            if counter not in without:
                self.set(name, f"ports/1/hw_counters/{counter}", "0")
        for counter in EFA_DEVICE_COUNTERS:
            self.set(name, f"hw_counters/{counter}", "0")

    def add_virtual_function(self, name: str, address: str, of: str) -> None:
        """A function that was split off a physical one."""
        self.sysfs.add(
            address, vendor=0x15B3, device=0x101E, class_code=0x020700, driver="mlx5_core", physfn=of
        )
        self._link(name, address)
        self._port(name, 1, "InfiniBand", 400)

    def add_software(self, name: str) -> None:
        """A device without hardware (rxe)."""
        home = self.sysfs.root / f"sys/devices/virtual/infiniband/{name}"
        home.mkdir(parents=True)
        self._homes[name] = home
        self._enlist(name)
        self._port(name, 1, "Ethernet", 2)

    def set(self, name: str, path: str, text: str) -> None:
        """A file of a device: `ports/1/state`, `ports/1/counters/link_downed`, `device/net/eth2/flags`."""
        file = self._homes[name] / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def hang(self, name: str, path: str) -> None:
        """Reading this file never returns: a FIFO that nobody writes to."""
        file = self._homes[name] / path
        file.unlink()
        os.mkfifo(file)

    def refuse(self, name: str, path: str) -> None:
        """Reading this file fails, as a register that the firmware does not give: here a folder."""
        file = self._homes[name] / path
        file.unlink()
        file.mkdir()

    def remove(self, name: str) -> None:
        """The RDMA device is gone; its PCI function stays."""
        (self._class / name).unlink()
        shutil.rmtree(self._homes.pop(name))

    def _add_mlx5(self, name: str, address: str, class_code: int, layer: str, ports: int, rate: int) -> None:
        self.sysfs.add(
            address,
            vendor=0x15B3,
            device=CONNECTX_7,
            class_code=class_code,
            driver="mlx5_core",
            width=(16, 16),
        )
        self._link(name, address)
        self.set(name, "node_type", "1: CA")
        for port in range(1, ports + 1):
            self._port(name, port, layer, rate)
            for counter in MLX5_COUNTERS:
                self.set(name, f"ports/{port}/counters/{counter}", "0")
            for counter in MLX5_HW_COUNTERS:
                self.set(name, f"ports/{port}/hw_counters/{counter}", "0")

    def _port(self, name: str, port: int, layer: str, rate: int) -> None:
        self.set(name, f"ports/{port}/state", "4: ACTIVE")
        self.set(name, f"ports/{port}/phys_state", "5: LinkUp")
        self.set(name, f"ports/{port}/rate", f"{rate} Gb/sec (4X NDR)")
        self.set(name, f"ports/{port}/link_layer", layer)

    def _link(self, name: str, address: str) -> None:
        function = self.sysfs.folder(address)
        home = function / "infiniband" / name
        home.mkdir(parents=True)
        (home / "device").symlink_to("../..")
        self._homes[name] = home
        self._enlist(name)

    def _enlist(self, name: str) -> None:
        self._class.mkdir(parents=True, exist_ok=True)
        (self._class / name).symlink_to(os.path.relpath(self._homes[name], self._class))
