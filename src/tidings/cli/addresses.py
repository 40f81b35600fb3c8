"""Addresses and folders as people write them, and the file in which a server says its own address."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tidings.errors import InvalidRequest


def several(text: str) -> list[str]:
    """A list of addresses.

    >>> several("tcp://a:1, tcp://b:2")
    ['tcp://a:1', 'tcp://b:2']
    """
    return [each.strip() for each in text.split(",")]


def nodes(text: str) -> list[str]:
    """Nodes are known by their addresses as they stand, so there is one way to write one.

    >>> nodes("localhost:7500,tcp://127.0.0.1:7500")
    ['tcp://127.0.0.1:7500', 'tcp://127.0.0.1:7500']
    """
    whole = [each if "://" in each else f"tcp://{each}" for each in several(text)]
    return [each.replace("//localhost:", "//127.0.0.1:", 1) for each in whole]


def folder(text: str) -> Path:
    """A folder to keep a journal in. An empty name, of a variable that is not set say, would be the current one.

    >>> folder("data/").name
    'data'
    """
    if not text:
        raise argparse.ArgumentTypeError("the folder's name is empty: write . for the current folder")
    return Path(text)


def free_port(address: str | None) -> str | None:
    """ZeroMQ writes `*` for a port of its own choice; people also write 0.

    >>> free_port("tcp://127.0.0.1:0")
    'tcp://127.0.0.1:*'
    """
    if address is None:
        return None
    if "://" not in address:
        raise InvalidRequest(f"The address {address!r} has no protocol: write tcp://{address}.")
    if address.startswith("tcp://") and address.endswith(":0"):
        return address[:-1] + "*"
    return address


@contextlib.contextmanager
def ready_file(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Writes a server's address to a file, which is there only while the server answers; nothing without a path."""
    if path is None:
        yield lambda text: None
        return
    path.unlink(missing_ok=True)
    try:
        yield lambda text: _write_whole(path, text)
    finally:
        path.unlink(missing_ok=True)


def _write_whole(path: Path, text: str) -> None:
    """Anyone who waits for the file never reads half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
