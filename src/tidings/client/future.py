"""An answer that is still to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Future(Generic[T]):
    """What a request will have led to: `done`, and then either a result or an error.

    >>> future: Future[int] = Future()
    >>> future.finish(3)
    >>> future.done, future.outcome()
    (True, 3)
    """

    __slots__ = ("_callbacks", "_result", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: BaseException | None = None
        self._result: T | None = None
        self._callbacks: list[Callable[[Future[T]], None]] | None = None

    def finish(self, result: T) -> None:
        """Ends it with a result; only the first end counts."""
        if not self.done:
            self._result = result
            self._resolve()

    def fail(self, error: BaseException) -> None:
        """Ends it with an error; only the first end counts."""
        if not self.done:
            self.error = error
            self._resolve()

    def outcome(self) -> T:
        """The result, or the error raised. Only for a Future that is done."""
        assert self.done, "The outcome is asked for before the answer came."
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def then(self, callback: Callable[[Future[T]], None]) -> None:
        """Calls back once this is done, at once if it is already."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def _resolve(self) -> None:
        self.done = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)


def failed(error: BaseException) -> Future[T]:
    """A Future that has failed from the beginning."""
    future: Future[T] = Future()
    future.fail(error)
    return future
