"""What tests of programs on tidings need: a broker that is there in milliseconds, and a clock that they move.

`tidings.testing.plugin` has both as fixtures of pytest.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidings.errors import InvalidRequest
from tidings.node.clock import ManualClock

if TYPE_CHECKING:
    from tidings.client.bus import Bus
    from tidings.client.opening import Opening

__all__ = ["Broker", "ManualClock"]


class Broker:
    """A broker in a thread of this process: real sockets, real files, and a folder that is its own.

    `settings` are those of the broker and the journal by their names. With a `clock` it takes the time from there; a
    `ManualClock` makes it do what is due at once.

    >>> import tempfile
    >>> with Broker(tempfile.mkdtemp()) as broker, broker.connect("alice") as alice:
    ...     alice.put("news", "hello").offset
    0
    """

    def __init__(self, folder: str | os.PathLike[str], clock: Callable[[], int] | None = None, **settings: Any) -> None:
        from tidings.client.arguments import check_folder
        from tidings.node.embedded import take_settings
        from tidings.node.thread import BrokerThread

        broker, journal, _ = take_settings(settings)
        if settings:
            raise InvalidRequest(f"A broker has no setting {', '.join(settings)}: leave that out.")
        self._thread = BrokerThread(check_folder(folder), broker, journal, clock)
        self._closed = False
        if isinstance(clock, ManualClock):
            clock.watch(self._pass_time)

    @property
    def address(self) -> str:
        """Where it listens, on loopback."""
        return self._thread.address

    def connect(self, client_id: str | None = None, **options: Any) -> Bus:
        """A bus to it; the options are those of `tidings.connect`."""
        import tidings

        return tidings.connect(self.address, client_id, **options)

    def aconnect(self, client_id: str | None = None, **options: Any) -> Opening:
        """The same for asyncio: `async with broker.aconnect("alice") as bus`."""
        import tidings

        return tidings.aconnect(self.address, client_id, **options)

    def close(self) -> None:
        """Ends it; buses that are still open find nobody there."""
        self._closed = True
        self._thread.close()

    def _pass_time(self) -> None:
        """A client that comes and goes: what it says is written behind all that was due when it came."""
        if not self._closed:
            self.connect().close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
