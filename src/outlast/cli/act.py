"""`outlast act`: what runs inside a repair Job, on the machine itself. People do not call it.

A reboot happens once because the boot id is compared here, right before it: if the kubelet starts the
pod again after the reboot, the ids differ and nothing is done. The result goes into the pod's
termination message, which the controller reads.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter, validators

from outlast.cli import EXIT_FAULT, EXIT_OK, UserError

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
TERMINATION_LOG: Final = Path("/dev/termination-log")
SYSRQ: Final = Path("/proc/sysrq-trigger")
REBOOT_COMMAND: Final = "nsenter --target 1 --mount --uts --ipc --net -- systemctl reboot"
"""Asks the machine's own init to shut down in order; needs hostPID and a privileged container."""
COMMAND_DEADLINE_S: Final = 60.0
MESSAGE_BYTES_MAX: Final = 4000
"""Kubernetes keeps 4096 bytes of a termination message."""

app = App(help="Change this machine; runs inside a repair Job only.")


@app.command
def reboot(
    *,
    intent: str,
    if_boot_id: str,
    command: Annotated[str, Parameter(env_var="OUTLAST_REBOOT_COMMAND")] = REBOOT_COMMAND,
    force_after: Annotated[
        float, Parameter(env_var="OUTLAST_REBOOT_FORCE_AFTER", validator=validators.Number(gte=0, lte=86_400))
    ] = 300.0,
    boot_id_file: Annotated[Path, Parameter(env_var="OUTLAST_BOOT_ID_FILE")] = BOOT_ID,
    sysrq_file: Annotated[Path, Parameter(env_var="OUTLAST_SYSRQ_FILE")] = SYSRQ,
    termination_log: Annotated[Path, Parameter(env_var="OUTLAST_TERMINATION_LOG")] = TERMINATION_LOG,
) -> int:
    """Reboot this machine, unless it has rebooted already.

    Example: outlast act reboot --intent 3-Reboot --if-boot-id 0a1b2c3d-...

    Parameters
    ----------
    intent
        The intent this carries out, for the record.
    if_boot_id
        The boot that is to end. When the machine runs another one, nothing is done and the exit code is 0.
    command
        What reboots the machine, split as a shell would and started without one.
    force_after
        Seconds after which a shutdown that hangs (a wedged driver) is forced by SysRq; 0 never forces.
    boot_id_file
        Where the kernel tells its boot id.
    sysrq_file
        The kernel's SysRq trigger.
    termination_log
        Where Kubernetes reads the result.
    """
    arguments = shlex.split(command)
    if not arguments:
        raise UserError("the reboot command is empty; leave it out to use the default.")
    current = _read_boot_id(boot_id_file)
    if current != if_boot_id.strip():
        return _say(termination_log, f"intent {intent}: boot {if_boot_id} is over already; nothing done")
    problem = _run(arguments)
    if problem:
        return _fail(termination_log, f"intent {intent}: {problem}")
    _say(termination_log, f"intent {intent}: the machine was asked to reboot")
    if force_after > 0:
        # The shutdown kills this process. Still being here afterwards means that it hangs.
        threading.Event().wait(force_after)
        if _read_boot_id(boot_id_file) == if_boot_id.strip():
            return _force(termination_log, intent, sysrq_file)
    return EXIT_OK


def _read_boot_id(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise UserError(f"the boot id cannot be read from {path}: {error.strerror}; nothing done.") from error


def _run(arguments: list[str]) -> str:
    """Why the command did not do its work; empty when it did."""
    try:
        ended = subprocess.run(
            arguments, capture_output=True, timeout=COMMAND_DEADLINE_S, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return f"{arguments[0]} is not installed in the repair image"
    except OSError as error:
        return f"{arguments[0]} cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        # systemctl waits for a wedged init; the forced reboot below is for that case.
        return ""
    if ended.returncode == 0:
        return ""
    words = (ended.stderr or ended.stdout).decode(errors="replace").strip()[-512:]
    return f"{arguments[0]} ended with code {ended.returncode}: {words or 'no output'}"


def _force(log: Path, intent: str, sysrq: Path) -> int:
    for key in ("s", "b"):
        try:
            sysrq.write_text(key)
        except OSError as error:
            why = f"the shutdown hangs and {sysrq} refuses: {error.strerror}"
            return _fail(log, f"intent {intent}: {why}")
    return _say(log, f"intent {intent}: the shutdown hung; the reboot was forced by SysRq")


def _say(log: Path, text: str) -> int:
    print(text)
    _note(log, text)
    return EXIT_OK


def _fail(log: Path, text: str) -> int:
    print(f"outlast act reboot: {text}", file=sys.stderr)
    _note(log, text)
    return EXIT_FAULT


def _note(log: Path, text: str) -> None:
    # Outside of a pod there is no such file, and the result was printed.
    with contextlib.suppress(OSError):
        log.write_bytes(text.encode()[:MESSAGE_BYTES_MAX])
