"""The command line: `tidings COMMAND`, a module for each command.

A command's module offers `HELP` (what it does), `EXAMPLES` (lines that end its --help),
`add_arguments(parser)` and `run(arguments) -> int`, the exit code; `SHORT_HELP = False` if its -h means something
else than --help; `TAKES_COMMAND = True` if the command of another program may follow after `--`; `moved(words)` if some
of its words are another command now, which it returns after a hint.

Only the module of the command that was asked for is imported, so that `tidings put` does not pay for the shell.

Exit codes: 0 done, 1 an error (one sentence on stderr), 2 wrong usage, 3 `get` found nothing, 130 Ctrl-C,
141 the reader of our output has gone.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import keyword
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from tidings import __version__
from tidings.errors import TidingsError

COMMANDS = {
    "serve": "run a broker: single, in a replica group or in a ring",
    "storage": "run a storage server for a broker, or query one",
    "stop": "stop a broker",
    "put": "publish messages",
    "get": "take the next message of a subscription",
    "work": "work on a topic's messages as a member of a group",
    "subscribe": "create a durable subscription",
    "unsubscribe": "end a subscription",
    "topics": "list the topics",
    "groups": "list consumer groups, their members and their lanes",
    "cluster": "show a replica group, add and remove its members",
    "shell": "all of these at a prompt",
    "node": "run a node of a bare overlay, which stores nothing",
    "nodes": "inspect the nodes of a bare overlay, and talk to them",
    "ring": "run a whole ring of replica groups on this machine, and inspect it",
    "trace": "follow one message over a ring",
    "spell": "spell out the numbers in a text",
    "editor": "publish a text over a plain socket",
    "subscriber": "subscribe over a plain socket, at a prompt",
    "demo": "show publishers, subscribers, a crash and a recovery (needs tidings-lab)",
    "doctor": "check this machine and say what to fix",
    "keys": "create keys for brokers and clients",
    "bench": "measure tidings beside the limits of this machine (needs tidings-lab)",
    "pipeline": "write every message into a lake, with Spark",
    "simulate": "run the whole system in simulations",
    "experiment": "measure overlays and rings in simulations (needs tidings-lab)",
    "export": "write a topic to a file",
    "import": "publish the rows of a file, each once",
    "audit": "prove with Spark that nothing was lost, doubled or reordered",
}

IN_THE_LAB = ("bench", "demo", "experiment")
"""Commands that are not part of tidings, but of tidings-lab."""

RENAMED = {"group": "cluster"}
"""Commands by the names that they had before; they go in the next release."""

INTERRUPTED = 130
READER_GONE = 141

FIRST_STEPS = """\
first steps:
  tidings serve --data data/            # a broker, in a terminal of its own
  tidings subscribe news
  tidings put news "hello"
  tidings get news

  tidings --help lists the commands, tidings COMMAND --help explains one
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse ends so, after --help and after wrong usage.
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except TidingsError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return READER_GONE
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        return _fail(f"The operating system refused: {what}.")


def _run(argv: list[str]) -> int:
    if not argv:
        print(_overview(), file=sys.stderr)
        return 2
    name, rest = argv[0], argv[1:]
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if name in ("-V", "--version"):
        print(f"tidings {__version__}")
        return 0
    if name in RENAMED:
        old, name = name, RENAMED[name]
        hint = f"`tidings {old}` is `tidings {name}` now; the old name will be removed in the next release."
        print(f"tidings: {hint}", file=sys.stderr, flush=True)
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        advice = f"did you mean {close[0]!r}?" if close else "tidings --help lists them."
        print(f"There is no command {name!r}: {advice}", file=sys.stderr)
        return 2
    module = _module(name)
    if hasattr(module, "moved") and (moved := module.moved(rest)) is not None:
        return _run(moved)
    parser = _Parser(
        prog=f"tidings {name}",
        description=module.HELP,
        epilog=f"examples:\n{module.EXAMPLES.rstrip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    short_help = ("-h",) if getattr(module, "SHORT_HELP", True) else ()
    parser.add_argument(*short_help, "--help", action="help", help="show this help message and exit")
    module.add_arguments(parser)
    parser.set_defaults(usage_error=parser.error)
    if getattr(module, "TAKES_COMMAND", False):
        end = rest.index("--") if "--" in rest else len(rest)
        parser.set_defaults(command=rest[end + 1 :])
        rest = rest[:end]
    return int(module.run(parser.parse_args(rest)))


def _module(name: str) -> Any:
    """The module of a command."""
    if name in IN_THE_LAB:
        from tidings.cli import lab

        return lab.load(name, f"tidings {name}")
    module_name = f"tidings.cli.{name}{'_' if keyword.iskeyword(name) else ''}"
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise TidingsError(f"The command {name!r} is not part of this installation: reinstall tidings.") from error


class _Parser(argparse.ArgumentParser):
    """argparse, with the whole complaint on one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help explains it)\n")


def _overview() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {what}" for name, what in COMMANDS.items())
    return f"usage: tidings COMMAND ...\n\ncommands:\n{commands}\n\n{FIRST_STEPS.rstrip()}"


def _fail(sentence: str) -> int:
    print(" ".join(sentence.split()), file=sys.stderr)
    return 1


def _discard_output() -> None:
    """What is still buffered has no reader; without this Python would complain about it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    finally:
        os.close(nowhere)
