"""Beats beside the work, so that a handler that takes long does not cost a member its lease.

A small thread with a connection of its own tells the broker every `beat_ms` that the client is there, while it has
work of a group open. It touches nothing of the session but its epoch. It says nothing about how the work gets on: a
parcel on which nothing happens is sent again by the broker all the same (see `extend`).

On an event loop none of this is needed: there the session's own beats go out while handlers wait.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from tidings.client.link import Link
from tidings.client.session import Session
from tidings.errors import TidingsError
from tidings.protocols.broker.messages import Beat
from tidings.wire.codec import encode


class Heartbeat:
    """The thread; it ends with `stop`, or when nobody has the session any more."""

    def __init__(self, connect: Callable[[], Link], session: Session) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_beat, args=(connect, weakref.ref(session), self._stopped), name="tidings-heartbeat", daemon=True
        )
        self._thread.start()

    @classmethod
    def beside(cls, link: Link, session: Session) -> Heartbeat | None:
        """Beats for the session over a second connection; None if the link offers none."""
        connect: Callable[[], Link] | None = getattr(link, "sibling", None)
        return None if connect is None else cls(connect, session)

    def stop(self) -> None:
        """Ends the beats."""
        self._stopped.set()
        self._thread.join()


def _beat(connect: Callable[[], Link], known: weakref.ref[Session], stopped: threading.Event) -> None:
    session = known()
    if session is None:
        return
    every_seconds = session.settings.beat_ms / 1000
    del session
    link = connect()
    try:
        while not stopped.wait(every_seconds):
            session = known()
            if session is None:
                return
            who = session.main
            if who.epoch and who.fenced is None and session.members.numbers():
                link.send([encode(Beat(1, who.name, who.epoch, ()))])
            del session, who
            while link.receive(0) is not None:
                pass  # Whatever the answer says, the session itself will find out.
    except TidingsError:
        pass  # The broker in this process has failed; every call says so.
    finally:
        link.close()
