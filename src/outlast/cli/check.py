"""`outlast check`: one machine, looked at once, by the agent's own sources and judge; no cluster needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from outlast.cli import EXIT_UNKNOWN, UserError
from outlast.cli.catalogues import CatalogueFiles

_Level = Literal["quick", "standard", "deep"]
_Seconds = Annotated[float, Parameter(validator=validators.Number(gt=0, lte=86_400))]
_Span = Annotated[float, Parameter(validator=validators.Number(gte=0, lte=3_600))]
_Count = Annotated[int | None, Parameter(validator=validators.Number(gte=0, lte=64))]


def check(
    *,
    level: Annotated[
        Literal["quick", "standard", "deep"], Parameter(env_var="OUTLAST_CHECK_LEVEL")
    ] = "quick",
    json: bool = False,
    gpu: list[str] | None = None,
    timeout: Annotated[_Seconds | None, Parameter(env_var="OUTLAST_CHECK_TIMEOUT")] = None,
    python: Annotated[Path | None, Parameter(env_var="OUTLAST_TORCH_PYTHON")] = None,
    fail_on: Annotated[Literal["fault", "unknown"], Parameter(env_var="OUTLAST_CHECK_FAIL_ON")] = "unknown",
    settle: _Span = 0.0,
    expected_gpus: Annotated[_Count, Parameter(env_var="OUTLAST_EXPECTED_GPUS")] = None,
    expected_efa: Annotated[_Count, Parameter(env_var="OUTLAST_EXPECTED_EFA")] = None,
    kernel_log: Annotated[str, Parameter(env_var="OUTLAST_KERNEL_LOG")] = "auto",
    host_root: Annotated[Path, Parameter(env_var="OUTLAST_HOST_ROOT")] = Path("/"),
    proc_root: Annotated[Path | None, Parameter(env_var="OUTLAST_PROC_ROOT")] = None,
    dcgm: Annotated[str, Parameter(env_var="OUTLAST_DCGM")] = "auto",
    state_dir: Annotated[Path, Parameter(env_var="OUTLAST_STATE_DIR")] = Path("/var/lib/outlast"),
    catalogues: CatalogueFiles = None,
    trust_user_records: Annotated[bool, Parameter(env_var="OUTLAST_TRUST_USER_RECORDS")] = False,
) -> None:
    """Check this machine's GPUs now; needs no cluster, and root only for the kernel log.

    Exit code 0: all healthy. 1: a fault was found. 2: asked for something impossible. 3: it could not be
    told, because something could not be looked at or there is no NVIDIA device.

    Example: outlast check --expected-gpus 8

    Parameters
    ----------
    level
        `quick`: look at everything, and open each idle GPU once (seconds). `standard`: also test memory,
        copies and calculation of idle GPUs (minutes). `deep`: all memory, every pair of GPUs (up to an hour).
    json
        Print JSON instead of tables.
    gpu
        Only this GPU, by index, PCI address or UUID; may be given several times, or with commas.
    timeout
        Seconds for all of it; what has not answered by then is unknown. Default: by level.
    python
        An interpreter that has torch, for the tests that need it; default: the one that runs outlast.
    fail_on
        `fault`: exit 0 also where something could not be told. `unknown`: exit 3 then.
    settle
        Seconds to go on looking while a fault of the past waits for the proof that it is over.
    expected_gpus
        GPUs this machine should have; default: by machine type, and what its agent has seen.
    expected_efa
        EFA devices this machine should have; default: likewise.
    kernel_log
        auto takes the first that answers of /dev/kmsg, syslog(2) and the journal. Or name one: /dev/kmsg,
        syslog, journal, or the path of a log file.
    host_root
        Where the machine's /sys and /proc are mounted.
    dcgm
        auto: this machine's host engine where `dcgmi` is installed; off; or the address of another.
    proc_root
        The machine's /proc, when it is not below the host root.
    state_dir
        Where this machine's agent keeps its memory; read where it is there, never written.
    trust_user_records
        For tests: believe records that user space wrote to the kernel log.
    """
    import asyncio
    import sys

    import structlog

    from outlast.active.plan import Level
    from outlast.agent.ending import leave
    from outlast.agent.sources import Places
    from outlast.cli.check_run import Request, run
    from outlast.health.catalogue import CatalogueError, load
    from outlast.health.verdict import Settings

    # What sources have to say is in the table; events are for the agent's log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        catalogue = load(*catalogues or ())
    except CatalogueError as error:
        raise UserError(f"{error}.") from error
    request = Request(
        level=Level(level),
        as_json=json,
        gpus=tuple(name.strip() for given in gpu or () for name in given.split(",") if name.strip()),
        timeout_s=timeout,
        python=str(python or sys.executable),
        fail_on_unknown=fail_on == "unknown",
        settle_s=settle,
        places=Places(host_root, proc_root or host_root / "proc", dcgm),
        kernel_log=kernel_log,
        state_dir=state_dir,
        settings=Settings(
            expected_gpus=expected_gpus, expected_efa=expected_efa, trust_user_records=trust_user_records
        ),
        catalogue=catalogue,
    )
    try:
        code = asyncio.run(run(request))
    except BrokenPipeError:
        code = EXIT_UNKNOWN
    leave(code)  # Nothing is joined: a worker that hangs in the driver must not hold us.
