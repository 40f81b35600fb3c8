"""A fork copies a client's numbers, sockets and files, and two processes must not both use them.

Both would give the same sequence numbers, write into the same file and read from the same socket. So whatever belongs
to one process is named here, and in the child of a fork it is abandoned before any other code runs: it ends without a
word to the broker and without touching a file, and its parent does not notice. Copies of open files are closed, so that
a lock ends with the process that took it, whatever children that process has left behind.

A child that does not use what it inherited notices nothing either.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

INHERITED = (
    "This bus belongs to the process that this one was forked from: open a bus in this process, "
    "or start processes by multiprocessing's spawn method."
)


class Owned(Protocol):
    """Something that belongs to the process that made it."""

    def abandon(self) -> None:
        """This is the child of a fork: ends without sending, writing, or waiting for a lock."""


_owned: weakref.WeakSet[Owned] = weakref.WeakSet()


def own(thing: Owned) -> None:
    """This belongs to the present process, and to none that is forked from it."""
    _owned.add(thing)


def _abandon_all() -> None:
    for thing in list(_owned):
        thing.abandon()
    _owned.clear()


if hasattr(os, "register_at_fork"):  # Windows has no forks.
    os.register_at_fork(after_in_child=_abandon_all)
