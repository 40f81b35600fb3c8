"""What a node wants sent. An answer to a client at another node's door becomes a message to that node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

from tidings.wire.codec import Frame
from tidings.wire.ring import Guest


class Outgoing(list[tuple[Any, list[Frame]]]):
    """Frames and whom they go to, in order."""

    def __init__(self, answer: Callable[[Guest, list[Frame]], None]) -> None:
        super().__init__()
        self._answer = answer

    def append(self, item: tuple[Any, list[Frame]], /) -> None:
        """Adds one; those for guests go where their doors are."""
        if isinstance(item[0], Guest):
            self._answer(item[0], item[1])
        else:
            super().append(item)

    def insert(self, index: SupportsIndex, item: tuple[Any, list[Frame]], /) -> None:
        raise AssertionError("What is sent is sent in order.")
