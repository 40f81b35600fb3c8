"""What subscriptions, publishers, transactions and stages need from the bus that made them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from tidings.client.operations import Operation

T = TypeVar("T")


class BlockingShell(Protocol):
    """A bus whose calls wait."""

    @property
    def lost(self) -> bool:
        """Whether nothing can be done with it but to close it."""

    def perform(self, operation: Operation[T]) -> T:
        """Runs an operation to its end."""

    def apply_change(self, change: Callable[[], None]) -> None:
        """Makes a change that waits for nothing, and sends what it leads to."""

    def wake(self) -> None:
        """Makes anyone who waits look again."""


class AwaitingShell(Protocol):
    """A bus whose calls are awaited."""

    @property
    def lost(self) -> bool:
        """Whether nothing can be done with it but to close it."""

    def perform(self, operation: Operation[T]) -> Awaitable[T]:
        """Runs an operation to its end."""

    def apply_change(self, change: Callable[[], None]) -> None:
        """Makes a change that waits for nothing, and sends what it leads to."""

    def wake(self) -> None:
        """Makes anyone who waits look again."""
