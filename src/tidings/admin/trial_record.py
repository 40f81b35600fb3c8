"""What is written down about a ring that runs on this machine: `ring.json` in its folder.

The file is replaced as a whole, under a lock that no command holds while it waits for anything. It says which processes
were started, and not which of them live: a process that was killed stays in it and is found to be dead by looking.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

import msgspec

from tidings.errors import InvalidRequest

RECORD_NAME = "ring.json"
LOCK_NAME = ".ring.lock"
LOOKS_MAX, LOOK_SECONDS = 200, 0.005


class NodeRecord(msgspec.Struct, frozen=True):
    """A process of the ring."""

    name: str
    """The letters of its group and its number in it: a1, a2, ..."""
    group: str
    address: str
    folder: str
    """Where its journal is; its log and the file that says that it is ready lie beside it."""
    command: tuple[str, ...]
    """What it is started with, after `tidings`."""
    pid: int = 0

    @property
    def log(self) -> Path:
        return Path(f"{self.folder}.log")

    @property
    def ready_file(self) -> Path:
        return Path(f"{self.folder}.address")

    @property
    def running(self) -> bool:
        """Whether its process lives. A number that the system has given to another process is not it."""
        return self.pid > 0 and _is_process_of(self.pid, self.folder)


class RingRecord(msgspec.Struct, frozen=True):
    """All processes of a ring, in the order in which they were started."""

    replicas: int
    dissemination: str
    nodes: tuple[NodeRecord, ...] = ()
    groups_made: int = 0
    """How many groups there have ever been, so that a new one gets new letters."""
    keys: str = ""
    """The folder with the keys of the nodes; "" if they have none."""
    operator: str = ""
    """Whose key of that folder these commands use."""

    @property
    def groups(self) -> dict[str, list[NodeRecord]]:
        """The nodes of each group, by its letters."""
        found: dict[str, list[NodeRecord]] = {}
        for node in self.nodes:
            found.setdefault(node.group, []).append(node)
        return found

    def node(self, name: str) -> NodeRecord:
        """A node by its name or its address; InvalidRequest if there is none."""
        for node in self.nodes:
            if name in (node.name, node.address):
                return node
        raise InvalidRequest(f"The ring has no node {name!r}, only {', '.join(node.name for node in self.nodes)}.")

    def group(self, name: str) -> list[NodeRecord]:
        """The nodes of a group; InvalidRequest if there is none."""
        nodes = self.groups.get(name)
        if nodes is None:
            raise InvalidRequest(f"The ring has no group {name!r}, only {', '.join(self.groups)}.")
        return nodes

    def name_of(self, address: str) -> str:
        """What a node at an address is called."""
        return next((node.name for node in self.nodes if node.address == address), address)


def letters(number: int) -> str:
    """The name of a group by its number, from 0.

    >>> letters(0), letters(25), letters(26), letters(27)
    ('a', 'z', 'aa', 'ab')
    """
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, len(ascii_lowercase))
        text = ascii_lowercase[rest] + text
    return text


def read(folder: Path) -> RingRecord | None:
    """What is written down in a folder; None if nothing is."""
    try:
        return msgspec.json.decode((folder / RECORD_NAME).read_bytes(), type=RingRecord)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise InvalidRequest(
            f"{folder / RECORD_NAME} cannot be read ({error}): remove it, or name another --dir."
        ) from error


def write(folder: Path, record: RingRecord) -> None:
    """Replaces what is written down. Anyone who changes what it has read holds the lock meanwhile."""
    path = folder / RECORD_NAME
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    draft.replace(path)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else changes the record meanwhile."""
    with (folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_process_of(pid: int, folder: str) -> bool:
    """Whether a process lives that was started for a folder; one that has ended and waits to be noticed does not."""
    if not Path("/proc/self").exists():
        found = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
        return folder in found.stdout
    try:
        for _ in range(LOOKS_MAX):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if command or state in "ZX":
                return folder in command.split("\0")
            time.sleep(LOOK_SECONDS)  # It has only just begun, or is about to end: the system knows no command then.
    except OSError:
        pass  # There is no such process, or there is none any more.
    return False
