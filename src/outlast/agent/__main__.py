"""The agent's own process: takes its configuration as one JSON argument, and parses no command line.

`outlast agent` replaces itself with this, because a parser of command lines would stay in the memory of
every node for as long as the agent runs (2.7 MB).
"""

from __future__ import annotations

import sys

from outlast.adapters.event_log import write_events_to_stderr

_EXIT_USAGE = 2


def main() -> int:
    """Run until a signal; exit code 2, with one sentence, when the agent cannot start as asked."""
    write_events_to_stderr()
    from outlast.adapters.lean import without_default_authorities
    from outlast.agent.config import Config

    with without_default_authorities():
        from outlast.agent.main import StartError, run

    try:
        config = Config.from_json(sys.argv[1] if len(sys.argv) == 2 else "")
    except ValueError as error:
        return _refuse(f"started without its configuration ({error}); start it with `outlast agent`")
    try:
        run(config)
    except StartError as error:
        return _refuse(str(error))


def _refuse(why: str) -> int:
    sys.stderr.write(f"outlast agent: {why}\n")
    return _EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
