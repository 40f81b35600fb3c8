"""Planted bugs in what is said to copies of a member's folder (`journal.folder`, `node.identity`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tidings.journal.folder import FolderNote
from tidings.node.identity import Home
from tidings.simulator.planting import mutant, patched
from tidings_lab.bugs.paxos import ONE, ORDER, PROMISES
from tidings_lab.simulated_replicas import node
from tidings_lab.simulated_replicas.checkers import CopiesAreRefused

COPIES = CopiesAreRefused.RULE

_mutant = partial(mutant, world="paxos")


@_mutant("fork-votes", "a copy of a folder is not noticed, and votes beside its original", COPIES, PROMISES, ORDER, ONE)
def _fork_votes() -> Iterator[None]:
    with patched(FolderNote, "is_of", lambda _: lambda self, birth: True):
        yield


@_mutant("copy-in-its-place", "a copy of a folder is refused only while the original is there", COPIES, PROMISES)
def _copy_in_its_place() -> Iterator[None]:
    def make(check_original: Any) -> Any:
        def planted(home: Home, number: int, voters: tuple[int, ...], folder: str) -> None:
            check_original(home, number, voters, folder, trusts_copy=not folder.startswith("fork"))

        return planted

    with patched(node, "check_original", make):
        yield


@_mutant("refused-once", "a copy that was refused counts as the original when it is started again", COPIES, PROMISES)
def _refused_once() -> Iterator[None]:
    def make(check_original: Any) -> Any:
        def planted(home: Home, number: int, voters: tuple[int, ...], folder: str) -> None:
            try:
                check_original(home, number, voters, folder)
            finally:
                home.adopt()

        return planted

    with patched(node, "check_original", make):
        yield
