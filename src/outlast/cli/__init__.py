"""The command line: one file per verb, imported only when that verb is called.

`outlast --help` and `--version` need nothing but this file, so they answer at once. A verb is added
with one line in `VERBS` and a module `outlast/cli/<verb>.py` that has a function of the verb's name,
or a cyclopts `app` when it has sub-commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

import outlast

EXIT_OK: Final = 0
EXIT_FAULT: Final = 1
"""A fault was found."""
EXIT_USAGE: Final = 2
"""The user asked for something that cannot be done as asked."""
EXIT_UNKNOWN: Final = 3
"""It could not be told."""
EXIT_PIPE: Final = 128 + 13
"""As of a program that SIGPIPE ended: its reader went away."""


class UserError(Exception):
    """One sentence for the person at the terminal: what happened, to what, what to do. Exit code 2."""


class Verb(NamedTuple):
    """A verb and the sentence that `--help` shows for it; `module` is `outlast.cli.<verb>`."""

    name: str
    help: str
    plain: bool = False
    """Its module has `plain(arguments)`, which answers the usual form without the parser, else None."""

    @property
    def module(self) -> str:
        """Where the verb lives."""
        return f"{__name__}.{self.name}"


# Order is the order of `outlast --help`.
VERBS: Final[tuple[Verb, ...]] = (
    Verb("demo", "All of it, on this machine: an hour of trouble in about a minute."),
    Verb("check", "Is this machine fit? Looks once, needs no cluster."),
    Verb("status", "How the fleet is, and which incidents are open."),
    Verb("explain", "What is going on with a node, why, what is next, how to overrule it."),
    Verb("hold", "Leave a node in whatever state it is in, until a human says otherwise."),
    Verb("quiesce", "Have the agent of a node let go of its GPUs, for a reset or a change of driver or MIG."),
    Verb("cancel", "End an incident and give its node back."),
    Verb(
        "xid",
        "Explain an NVIDIA Xid code or log line: what broke, what outlast does, what you should do.",
        True,
    ),
    Verb("sxid", "Explain an SXid code of an NVSwitch, or a line with one.", True),
    Verb("dcgm", "Explain an error code or a health watch of DCGM.", True),
    Verb("replay", "Judge recorded kernel logs: the faults in them, and what a policy would have done."),
    Verb("web", "The dashboard of a cluster."),
    Verb("agent", "Watch this node and publish its health (runs on every GPU node)."),
    Verb("controller", "Decide what is to be done about sick nodes, and do what policies allow."),
    Verb("act", "Change this machine; runs inside a repair Job only."),
)

_EXAMPLE: Final = "outlast xid 79"


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `outlast` command; never returns."""
    try:
        code = run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
    except BrokenPipeError:  # Whoever reads the output may stop early, as `head` does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_PIPE
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    first = arguments[0] if arguments else "--help"
    if first in ("--help", "-h", "help"):
        print(help_text(), end="")
        return EXIT_OK
    if first in ("--version", "-V"):
        print(f"outlast {outlast.__version__}")
        return EXIT_OK
    verb = next((verb for verb in VERBS if verb.name == first), None)
    if verb is None:
        print(f"outlast: there is no verb {first[:40]!r}; `outlast --help` lists them.", file=sys.stderr)
        return EXIT_USAGE
    return _call(verb, arguments)


def help_text() -> str:
    """What `outlast --help` prints."""
    width = max((len(verb.name) for verb in VERBS), default=0) + 2
    verbs = "".join(f"  {verb.name:<{width}}{verb.help}\n" for verb in VERBS)
    return (
        "Usage: outlast VERB [OPTIONS]\n\n"
        "GPU reliability for Kubernetes: see a sick GPU, keep new work away, move jobs, repair, return.\n\n"
        f"Verbs:\n{verbs}\n"
        "Options:\n  --help      Show this text; `outlast VERB --help` shows a verb's options.\n"
        "  --version   Show the version.\n\n"
        f"Example: {_EXAMPLE}\n"
    )


def _call(verb: Verb, arguments: Sequence[str]) -> int:
    module = import_module(verb.module)
    if verb.plain:
        try:
            code: int | None = module.plain(arguments[1:])
        except UserError as error:
            return _refused(verb, error)
        if code is not None:
            return code
    import cyclopts  # 70 ms, which only a verb with options has to pay

    app = cyclopts.App(
        name="outlast",
        version=outlast.__version__,
        result_action="return_value",
        default_parameter=cyclopts.Parameter(negative=()),
    )
    app.command(getattr(module, "app", None) or getattr(module, verb.name), name=verb.name)
    try:
        result = app(list(arguments), exit_on_error=False, print_error=False)
    except UserError as error:
        return _refused(verb, error)
    except cyclopts.CycloptsError as error:
        print(f"outlast {verb.name}: {_sentence(error)} See `outlast {verb.name} --help`.", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) and not isinstance(result, bool) else EXIT_OK


def _refused(verb: Verb, error: UserError) -> int:
    print(f"outlast {verb.name}: {error}", file=sys.stderr)
    return EXIT_USAGE


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())
