"""Runs the blocks of README.md and of the pages in docs/, as a reader does who copies them into a terminal.

A page gets an empty folder. What readers have and a test has not is put in place of what is printed, and nothing else:

- An address stands for a free one on loopback, the same throughout the page: `127.0.0.1:7400`, `10.0.0.2:7400` and
  `spark.example:1` are three. `ALIASES` are other spellings of one machine.
- A server or a client without an address gets the one that stands for the default.
- `instead=` of a page, such as a smaller number of seeds, is in its test for everybody to see.

A line of a shell runs in bash with the variables that the lines before it have set. A server runs until the page ends,
as in a terminal of its own. A program runs one statement after another, with names that it takes for granted.

Lines below a `$ command` are what it prints: they are compared but for numbers and ids. So is the comment behind a
command that the test names in `prints=`, up to a semicolon, and the comment behind an expression if it is a text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tidings.admin.ports import free_address

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "console")
RUN = (*SHELLS, "python", "sql")
"""Languages of the blocks that do something. Blocks in none are figures, tables and files."""

ADDRESS = r"(?:127\.0\.0\.1|10\.0\.\d\.\d|0\.0\.0\.0|\*|\w+\.example|\b[abc]):\d{4,5}\b"
ALIASES = {"*": "10.0.0.5", "0.0.0.0": "127.0.0.1", "storage.example": "127.0.0.1"}
DEFAULTS = {"serve": "127.0.0.1:7400", "storage": "127.0.0.1:7410"}
SERVER = re.compile(r"tidings (serve|node|storage(?! (last|status)\b)|ring up(?!.*--detach))\b")
READY = re.compile(r"^tidings (serves|stores|node) |^tidings: (waiting for|asking) |^ *export TIDINGS_BUS=")
SECONDS_MAX = 120.0


class Enough(Exception):
    """Ends a loop of a page that would go on forever; its statement counts as run."""


class Block(NamedTuple):
    """A block of a page."""

    page: str
    line: int
    language: str
    text: str


def pages() -> list[str]:
    """All pages whose blocks run, as paths below the root."""
    return ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page that do something."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        Block(page, text[: found.start()].count("\n") + 1, found[1], found[2])
        for found in BLOCK.finditer(text)
        if found[1] in RUN
    ]


def comment_of(line: str) -> str:
    """What a line says that it prints.

    >>> comment_of("tidings get news   # hello; and never again")
    'hello'
    """
    return line.partition("  # ")[2].partition(";")[0].strip()


def shape(text: str) -> list[str]:
    """Its lines, sorted, without what differs from run to run: numbers, ids and how wide columns are.

    >>> shape("group ffd30d76, 3 members")
    ['group #, # members']
    """
    return sorted(
        re.sub(r"\d[\d.,]*", "#", re.sub(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b", "#", " ".join(line.split())))
        for line in text.splitlines()
        if line.strip()
    )


class Process:
    """What runs beside the lines of a page; everything that it says is kept."""

    def __init__(self, line: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._line = line
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.said: list[str] = []
        self._process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, pattern: re.Pattern[str]) -> None:
        """Waits until it says something that matches."""
        until = time.monotonic() + SECONDS_MAX
        while not (self.said and pattern.search(self.said[-1])):
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"{self._line!r} never said {pattern.pattern!r}: {''.join(self.said)}"
            self.said.append(line)

    def say(self, line: str) -> None:
        """A line for its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def wait(self) -> None:
        """Waits until it ends by itself, in good order."""
        assert self._process.wait(SECONDS_MAX) == 0, "".join(self.said)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """It and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        self._process.wait(SECONDS_MAX)
        self._reader.join(SECONDS_MAX)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class Page:
    """One page while its blocks run."""

    def __init__(self, name: str, folder: Path, *, instead: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._root = self.folder = folder
        self._stories = 0
        self.complaints = ""
        """What the last command wrote to its standard error."""
        self.blocks = blocks_of(name)
        self._left = list(self.blocks)
        self._instead = dict(instead or {})
        self._addresses: dict[str, str] = {}
        self._processes: list[tuple[str, Process]] = []
        self._starting: list[Process] = []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._first_environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PATH": path}
        self.names: dict[str, Any] = {"__name__": "page"}
        self.begin()

    @property
    def bus(self) -> str:
        """The address that stands for the default one of a broker."""
        return f"tcp://{self.address('127.0.0.1:7400')}"

    def address(self, printed: str) -> str:
        """What an address on the page stands for."""
        host, _, port = printed.rpartition(":")
        printed = f"{ALIASES.get(host, host)}:{port}"
        if printed not in self._addresses:
            self._addresses[printed] = free_address().removeprefix("tcp://")
        return self._addresses[printed]

    def put_in_place(self, text: str) -> str:
        """The text with what a test has in place of what readers have."""
        printed = "|".join([*map(re.escape, self._instead), ADDRESS])
        text = re.sub(
            printed,
            lambda found: self._instead[found[0]] if found[0] in self._instead else self.address(found[0]),
            text,
        )
        text = text.replace("TIDINGS_BUS=...", f"TIDINGS_BUS={self.environment['TIDINGS_BUS']}")
        text = re.sub(r"--http\b(?! [\d$])", f"--http {self._port('127.0.0.1:7480')}", text)
        return re.sub(
            r"(--sockets|-h 127\.0\.0\.1 -p|-s 127\.0\.0\.1 -p) (\d+)",
            lambda found: f"{found[1]} {self._port(f'127.0.0.1:{found[2]}')}",
            text,
        )

    def _port(self, printed: str) -> str:
        return self.address(printed).rpartition(":")[2]

    # Blocks.

    def take(self, *words: str) -> Block:
        """The next block that has these words; each block runs once."""
        for block in self._left:
            if all(word in block.text for word in words):
                self._left.remove(block)
                return block
        raise AssertionError(f"{self.name} has no block with {words} any more")

    def check_all_ran(self, elsewhere: Iterable[str]) -> None:
        """All blocks have run, but for those with the words given."""
        left = [block for block in self._left if not any(words in block.text for words in elsewhere)]
        assert not left, f"{self.name}, line {left[0].line}: this block has not run:\n{left[0].text}"

    # Shells.

    def shell(
        self,
        *words: str,
        prints: Iterable[str] = (),
        says: Mapping[str, str] | None = None,
        until: Mapping[str, str] | None = None,
        without: Iterable[str] = (),
        fails: Iterable[str] = (),
        again: Iterable[str] = (),
    ) -> dict[str, str]:
        """Runs the block with these words line by line; what each line printed, by the line without its comment.

        `prints` has parts of the lines whose comment is what they print, `says` what goes to the standard input of a
        line. A line in `until` runs until it has printed that, and is then stopped. Those in `without` do not run,
        those in `fails` have to end with 1, and those in `again` ask for what takes a moment: they run until they work.
        """
        block = self.take(*words)
        says, until = says or {}, until or {}
        unused = [*prints, *without, *says, *until, *fails, *again]

        def key_of(line: str, keys: Iterable[str]) -> str | None:
            key = next((key for key in keys if key in line), None)
            if key in unused:
                unused.remove(key)
            return key

        printed: dict[str, str] = {}
        for line, expected in self._lines(block):
            if key_of(line, without) is not None:
                continue
            stop, comment = key_of(line, until), key_of(line, prints)
            if stop is not None:
                self.launch(line).wait_for(re.compile(until[stop]))
                self._processes.pop()[1].end(signal.SIGTERM)
                continue
            if key_of(line, again) is not None:
                printed[line.partition("  #")[0].rstrip()] = self.run_until_it_works(line)
                continue
            code = int(key_of(line, fails) is not None)
            answer = printed[line.partition("  #")[0].rstrip()] = self.run(
                line, says.get(key_of(line, says) or "", ""), code
            )
            where = f"{self.name}, line {block.line}: {line}"
            if expected:
                said = [shape(answer), shape(answer + self.complaints)]
                assert shape(expected) in said, f"{where}: {answer}{self.complaints}"
            if comment is not None:
                assert answer.strip() == comment_of(line), where
        assert not unused, f"{self.name}, line {block.line} has no line with {unused}"
        return printed

    def _lines(self, block: Block) -> Iterator[tuple[str, str]]:
        """The commands of a block, and what the page shows below each."""
        shown: list[tuple[str, list[str]]] = []
        for line in block.text.splitlines():
            is_output = line.startswith("# ") if block.language == "sh" else not line.startswith("$ ")
            if is_output and shown:
                shown[-1][1].append(line.removeprefix("# ") if block.language == "sh" else line)
            elif line.strip() and not is_output:
                shown.append((line if block.language == "sh" else line.removeprefix("$ "), []))
        return iter((command, "\n".join(output)) for command, output in shown)

    def run(self, line: str, said: str = "", code: int = 0) -> str:
        """One line of a shell: what it printed. A server is left running, and answers nothing."""
        if SERVER.match(line.strip()):
            self.launch(line)
            return ""
        if not re.match(r"\$? ?(export )?\w+=\S*( +#.*)?$", line):
            self.wait_until_ready()
        ends = self.folder / ".environment"
        script = f"set -a\n{self.put_in_place(line)}\ncode=$?; env -0 >'{ends}'; exit $code\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            input=said,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == code, f"{self.name}: {line}\n{done.stdout}{done.stderr}"
        variables = ends.read_bytes().decode().split("\0")
        self.environment = dict(variable.split("=", 1) for variable in variables if "=" in variable)
        self._note_bus(done.stdout)
        self.complaints = done.stderr
        return done.stdout

    def run_until_it_works(self, line: str) -> str:
        """A line that asks for what takes a moment, again and again until its exit code is 0: what it printed."""
        until = time.monotonic() + SECONDS_MAX
        while True:
            try:
                return self.run(line)
            except AssertionError:
                if time.monotonic() > until:
                    raise

    def wait_until_ready(self) -> None:
        """Waits until all servers that were launched serve, or have said what they wait for."""
        for process in self._starting:
            process.wait_for(READY)
            self._note_bus(process.said[-1])
        self._starting.clear()

    def _note_bus(self, said: str) -> None:
        for found in re.finditer(r"^ *export (TIDINGS_BUS=\S+)$", said, re.MULTILINE):
            self.environment["TIDINGS_BUS"] = found[1].partition("=")[2]

    def launch(self, line: str) -> Process:
        """Leaves a line running until the page ends; the next command waits until it serves."""
        line = line.partition("  #")[0].strip().removesuffix("&").strip()
        command = self.put_in_place(line)
        found = SERVER.match(command)
        if found is not None and found[1] in DEFAULTS and "--bind" not in command:
            command += f" --bind tcp://{self.address(DEFAULTS[found[1]])}"
        process = Process(command, self.folder, self.environment)
        self._processes.append((line, process))
        if found is not None:
            self._starting.append(process)
        return process

    # Programs.

    def python(self, *words: str, prints: bool = False, **names: Any) -> dict[str, Any]:
        """Runs a program with names that the page takes for granted; all names that it has in the end.

        With `prints`, the comments behind its calls of `print` are what it prints.
        """
        block = self.take(*words)
        text = self.put_in_place(block.text)
        self.names |= names
        heard = io.StringIO()
        before, environment = os.getcwd(), dict(os.environ)
        os.chdir(self.folder)
        os.environ["TIDINGS_BUS"] = self.environment["TIDINGS_BUS"]
        try:
            for statement in ast.parse(text).body:
                line = text.splitlines()[(statement.end_lineno or 1) - 1]
                is_value = isinstance(statement, ast.Expr)
                tree: Any = (
                    ast.Expression(statement.value) if isinstance(statement, ast.Expr) else ast.Module([statement], [])
                )
                code = compile(
                    tree, f"{self.name}, from line {block.line + 1}", "eval" if is_value else "exec", dont_inherit=True
                )
                with contextlib.redirect_stdout(heard), contextlib.suppress(Enough):
                    value = eval(code, self.names)  # noqa: S307 - our own pages
                    if is_value and comment_of(line)[:1] in ("'", '"'):
                        assert repr(value) == comment_of(line), f"{self.name}, line {block.line}: {line}"
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)
        if prints:
            expected = [comment_of(line) for line in text.splitlines() if line.lstrip().startswith("print(")]
            assert heard.getvalue().splitlines() == expected, f"{self.name}, line {block.line}"
        return self.names

    def begin(self) -> None:
        """An empty folder, nothing that runs, and other addresses: where a page begins another story."""
        self.close()
        self._addresses.clear()
        self.folder = self._root / f"story{self._stories}"
        self.folder.mkdir()
        self._stories += 1
        self.environment = self._first_environment | {"TIDINGS_BUS": self.bus}

    def close(self) -> None:
        if (self.folder / "tidings-ring").exists():
            self.run("tidings ring down")
        for _, process in self._processes:
            process.end()
        self._processes.clear()
        self._starting.clear()


@contextlib.contextmanager
def reading(name: str, folder: Path, *, elsewhere: Iterable[str] = (), **options: Any) -> Iterator[Page]:
    """A page whose blocks all run before the end, but for those with the words in `elsewhere`."""
    page = Page(name, folder, **options)
    try:
        yield page
        page.check_all_ran(elsewhere)
    finally:
        page.close()
