"""Every bound of the Kubernetes client, by name.

Times are seconds. Where a constant follows a measured behaviour of a server, its line says which.
"""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What the client allows itself and its server."""

    request_deadline_s: float = 4.0
    """One read attempt, or one write with all its retries. Below the lease's renew deadline."""
    list_deadline_s: float = 30.0
    """One page of a list, and the silence allowed while a streaming list has not ended."""
    attempts_max: int = 4
    """Tries of one call, the first included."""
    backoff_base_s: float = 0.2
    backoff_max_s: float = 5.0
    page_size: int = 500
    list_restarts_max: int = 3
    """How often a list starts again because its continue token expired."""
    connections_max: int = 128
    body_bytes_max: int = 256 * MIB
    """One response body; a page of 500 objects at etcd's usual size is 1 to 10 MiB."""
    error_bytes_max: int = 64 * 1024
    line_bytes_max: int = 8 * MIB
    """One watch line. etcd refuses objects above about 1.5 MiB, so a longer line is not an object."""
    inactivity_s: float = 90.0
    """Silence on a watch before it counts as dead. Idle bookmarks were seen 59 s apart."""
    watch_s: float = 300.0
    """The server is asked to end each watch after one to two times this, so that load spreads."""
    reconnect_base_s: float = 0.5
    reconnect_max_s: float = 30.0


DEFAULT_LIMITS = Limits()
