"""How our processes log: one JSON object a line on stderr, event names and fields, no prose to parse.

Call it before a process's own modules are imported, since they create their loggers as they load.
"""

from __future__ import annotations

import sys


def write_events_to_stderr() -> None:
    """Configure structlog for a process whose log a machine collects."""
    # structlog loads rich (6 MB) where it finds it, for colours that the log of a container never shows.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    # And greenlet (1 MB), which nobody uses here.
    sys.modules.setdefault("greenlet", None)  # type: ignore[arg-type]
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
