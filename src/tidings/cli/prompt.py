"""What the prompts have in common: lines that are commands, help, history, and errors after which it goes on.

On a terminal prompt_toolkit reads the lines; elsewhere they are read plainly, so that a script can be piped in.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.errors import TidingsError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

Forms = Mapping[str, tuple[str, str]]
"""Commands: what is written behind each, and what it does."""

_WORD = re.compile(r'\s*("(?P<quoted>[^"]*)"|(?P<plain>\S+))')


class Quit(Exception):
    """Somebody typed quit."""


class Usage(TidingsError):
    """A line that is no command; its text says how the command is written."""


class Prompt:
    """Runs lines as commands. `failures` counts those that led to an error."""

    def __init__(self, forms: Forms, commands: Mapping[str, Callable[[str], None]]) -> None:
        self.failures = 0
        self._forms = forms
        self._commands = {**commands, "help": self._help, "quit": self._quit, "exit": self._quit}

    def serve_all(self, prompted: Callable[[], Iterator[str]], greeting: str) -> int:
        """Serves a terminal, or whatever else the input is; the exit code."""
        if sys.stdin.isatty():
            print(f"{greeting}; help lists the commands, quit leaves.")
            self.serve(prompted())
            return 0
        self.serve(line.rstrip("\n") for line in sys.stdin)
        return 1 if self.failures else 0

    def serve(self, lines: Iterator[str]) -> None:
        """Runs line after line until they end or one says quit."""
        for line in lines:
            try:
                self.run(line)
            except Quit:
                return
            except TidingsError as error:
                self.failures += 1
                print(" ".join(str(error).split()), file=sys.stderr, flush=True)

    def run(self, line: str) -> None:
        """Runs one line; an empty one and one that begins with # do nothing."""
        name, rest = word(line)
        if name is None or name.startswith("#"):
            return
        command = self._commands.get(name.lower())
        if command is None:
            raise Usage(f"There is no command {name!r}: help lists them.")
        command(rest)

    def usage(self, name: str) -> Usage:
        """How a command is written, to be raised."""
        return Usage(f"It is written: {name} {self._forms[name][0]}.")

    def topic(self, name: str, rest: str) -> str:
        """The one word behind a command."""
        topic, rest = word(rest)
        if topic is None or rest.strip():
            raise self.usage(name)
        return topic

    def _help(self, _rest: str) -> None:
        width = max(len(f"{name} {form}") for name, (form, _) in self._forms.items())
        for name, (form, what) in self._forms.items():
            print(f"  {f'{name} {form}':{width}}  {what}")
        print('A topic with spaces is written in quotes: subscribe "my topic".', flush=True)

    def _quit(self, _rest: str) -> None:
        raise Quit


def word(text: str) -> tuple[str | None, str]:
    """The first word, which may be quoted, and what follows it.

    >>> word('"my topic" it\\'s here')
    ('my topic', " it's here")
    """
    match = _WORD.match(text)
    if match is None:
        return None, ""
    return match["plain"] if match["quoted"] is None else match["quoted"], text[match.end() :]


def history_file() -> Path | None:
    """Where the history is kept, for its owner only; None when there is no such place."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(state) / "tidings" / "history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError:
        return None
    return path


def prompted_lines(mark: str, completer: Completer, before: Callable[[], object] = lambda: None) -> Iterator[str]:
    """Lines from the prompt, `before` each of which something is done; Ctrl-C throws the line away, Ctrl-D ends."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = history_file()
    history: History = InMemoryHistory() if path is None else FileHistory(str(path))
    session: PromptSession[str] = PromptSession(history=history, completer=completer, complete_while_typing=False)
    while True:
        try:
            before()
            yield session.prompt(mark)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
