"""`outlast agent`: the process on each GPU node. Flags and environment only; wiring is in agent/main.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from outlast.agent.options import HEARTBEAT_S, LEASE_RENEW_S, POLL_INTERVAL_S
from outlast.cli import UserError
from outlast.cli.catalogues import CatalogueFiles
from outlast.model.names import SYSTEM_NAMESPACE

_PositiveSeconds = Annotated[float, Parameter(validator=validators.Number(gt=0, lte=86_400))]
_Count = Annotated[int | None, Parameter(validator=validators.Number(gte=0, lte=64))]


def agent(
    *,
    node_name: Annotated[str, Parameter(env_var="NODE_NAME")] = "",
    kubeconfig: Annotated[Path | None, Parameter(env_var="OUTLAST_KUBECONFIG")] = None,
    namespace: Annotated[str, Parameter(env_var="OUTLAST_NAMESPACE")] = SYSTEM_NAMESPACE,
    kernel_log: Annotated[str, Parameter(env_var="OUTLAST_KERNEL_LOG")] = "auto",
    host_root: Annotated[Path, Parameter(env_var="OUTLAST_HOST_ROOT")] = Path("/"),
    proc_root: Annotated[Path | None, Parameter(env_var="OUTLAST_PROC_ROOT")] = None,
    state_dir: Annotated[Path, Parameter(env_var="OUTLAST_STATE_DIR")] = Path("/var/lib/outlast"),
    poll_interval: Annotated[_PositiveSeconds, Parameter(env_var="OUTLAST_POLL_INTERVAL")] = POLL_INTERVAL_S,
    heartbeat: Annotated[_PositiveSeconds, Parameter(env_var="OUTLAST_HEARTBEAT")] = HEARTBEAT_S,
    lease_renew: Annotated[_PositiveSeconds, Parameter(env_var="OUTLAST_LEASE_RENEW")] = LEASE_RENEW_S,
    expected_gpus: Annotated[_Count, Parameter(env_var="OUTLAST_EXPECTED_GPUS")] = None,
    expected_efa: Annotated[_Count, Parameter(env_var="OUTLAST_EXPECTED_EFA")] = None,
    application_rule: Annotated[
        Literal["off", "shadow", "block"], Parameter(env_var="OUTLAST_APPLICATION_RULE")
    ] = "shadow",
    catalogues: CatalogueFiles = None,
    note: Annotated[str, Parameter(env_var="OUTLAST_NOTE")] = "",
    trust_user_records: Annotated[bool, Parameter(env_var="OUTLAST_TRUST_USER_RECORDS")] = False,
    dcgm: Annotated[str, Parameter(env_var="OUTLAST_DCGM")] = "auto",
    dcgm_exporter: Annotated[str, Parameter(env_var="OUTLAST_DCGM_EXPORTER")] = "",
    metrics_address: Annotated[str, Parameter(env_var="OUTLAST_METRICS_ADDRESS")] = "",
) -> None:
    """Watch this node and publish its health as node conditions, a NodeHealth object and a Lease.

    Example: NODE_NAME=$(hostname) outlast agent --kubeconfig ~/.kube/config

    Parameters
    ----------
    node_name
        Name of this Node in the cluster.
    kubeconfig
        Cluster to write to; default: KUBECONFIG, ~/.kube/config, or the pod's service account.
    namespace
        Where the agent's Lease lives.
    kernel_log
        auto takes the first that answers of /dev/kmsg, syslog(2) and the journal. Or name one: /dev/kmsg,
        syslog, journal, or the path of a log file or FIFO.
    host_root
        Where the machine's /sys and /proc are mounted.
    proc_root
        The machine's /proc, when it is not below the host root.
    state_dir
        Directory that outlives the pod: open faults, log position, lock.
    poll_interval
        Seconds between two polls of NVML and the PCI bus; the kernel log does not wait for them.
    heartbeat
        Seconds between two condition writes when nothing changes.
    lease_renew
        Seconds between two renewals of the Lease.
    expected_gpus
        GPUs this machine should have; default: by machine type and experience.
    expected_efa
        EFA devices this machine should have; default: by machine type and experience.
    application_rule
        What follows when three different jobs meet the same application error on one GPU within a day:
        shadow says it, block keeps new work away, off does not count.
    note
        Said in the message of GPUMonitorReady, such as the privilege profile.
    trust_user_records
        For tests: believe records that user space wrote to the kernel log.
    dcgm
        `auto`: ask DCGM's host engine of this machine where `dcgmi` is installed; `off`; or HOST:PORT of an
        engine. No engine is ever started, and no watch turned on.
    dcgm_exporter
        Address of dcgm-exporter's page on this node, such as http://localhost:9400/metrics.
    metrics_address
        HOST:PORT to serve /metrics (Prometheus) and /healthz on, such as :9477; default: nowhere.
    """
    if not node_name:
        raise UserError("the node's name is not known; set NODE_NAME or use --node-name.")
    if dcgm_exporter and not dcgm_exporter.startswith(("http://", "https://")):
        raise UserError(
            f"--dcgm-exporter wants an address such as http://localhost:9400/metrics, not {dcgm_exporter!r}."
        )
    if not dcgm or dcgm.startswith("-") or len(dcgm.split()) != 1:
        raise UserError(f"--dcgm wants auto, off or HOST:PORT, not {dcgm!r}.")
    if metrics_address:
        from outlast.adapters.metrics_page import parse_address

        try:
            parse_address(metrics_address)
        except ValueError as error:
            raise UserError(f"--metrics-address: {error}.") from error
    from outlast.agent.config import Config

    config = Config(
        node_name=node_name,
        kubeconfig=kubeconfig,
        namespace=namespace,
        kernel_log=kernel_log,
        host_root=host_root,
        proc_root=proc_root or host_root / "proc",
        state_dir=state_dir,
        poll_interval_s=poll_interval,
        heartbeat_s=heartbeat,
        lease_renew_s=lease_renew,
        expected_gpus=expected_gpus,
        expected_efa=expected_efa,
        application_rule=application_rule,
        catalogues=tuple(catalogues or ()),
        note=note,
        trust_user_records=trust_user_records,
        dcgm=dcgm,
        dcgm_exporter=dcgm_exporter,
        metrics_address=metrics_address,
    )
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "outlast.agent", config.to_json()])  # noqa: S606 - ourselves
