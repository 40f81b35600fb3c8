"""Beats beside the work, so that a handler that takes long does not cost a member its lease.

A small thread with a connection of its own tells the broker every `beat_ms` that the client is there, while it has
work of a group open. It touches nothing of the session but its epoch. It says nothing about how the work gets on: a
batch on which nothing happens is sent again by the broker all the same (see `extend`).

In a replica group the thread looks for the leader by itself, since the session stands still while a handler works.

On an event loop none of this is needed: there the session's own beats go out while handlers wait.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from tidings.client.link import Link
from tidings.client.route import Route
from tidings.client.session import Session
from tidings.errors import TidingsError
from tidings.protocols.broker.messages import Beat, NotLeader
from tidings.wire.codec import decode_answer, encode


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
    every_seconds, route = session.beat_ms / 1000, Route(session.route.known)
    route.at = session.route.at
    del session
    link = connect()
    asked = False
    try:
        while not stopped.wait(every_seconds):
            session = known()
            if session is None:
                return
            every_seconds = session.beat_ms / 1000
            if session.route.grouped:
                route.learn(session.route.known)
            look_after(link, route, asked)
            who = session.main
            asked = who.epoch > 0 and who.fenced is None and bool(session.members.numbers())
            if asked:
                link.send([encode(Beat(1, who.name, who.epoch, ()))])
            del session, who
    except TidingsError:
        pass  # The broker in this process has failed; every call says so.
    finally:
        link.close()


def look_after(link: Link, route: Route, asked: bool) -> None:
    """Takes in what the last beat led to. Of a group's members it says which one to beat to next."""
    now_ms = time.monotonic_ns() // 1_000_000
    heard = moved = False
    while (frames := link.receive(0)) is not None:
        heard = True
        if route.grouped and not moved:  # Whatever else an answer says, the session itself will find out.
            answer = decode_answer(frames[0])
            if isinstance(answer, NotLeader):
                moved = route.on_not_leader(now_ms, answer.leader, answer.members)
            else:
                route.on_answer(now_ms, now_ms)
    if route.grouped and not moved and (route.pause_ends_ms is not None or (asked and not heard)):
        route.move_on(now_ms)
        moved = True
    if moved:
        link.reopen(route.at)
