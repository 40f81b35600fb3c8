"""One message, followed on its way over a ring: each step with where it happened and how long it took.

    trace = trace_put(Asking(["tcp://127.0.0.1:7501"]), tidings.connect, "news", "hello")

The questions of an operator tell what the node knows (the topic's point, its owner, the members of that group). The
message itself goes the way of every message: a client says hello at the node and puts, and a durable subscriber of the
trace's own, at a node of another group where there is one, waits for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from time import perf_counter

import msgspec

from tidings.admin.asking import Asking
from tidings.client.bus import Bus
from tidings.errors import TidingsError, Unavailable
from tidings.message import check_topic
from tidings.protocols.broker import operators
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.key_ranges import KeyRange, home_of, point_of, tag_of

FIND_SECONDS_MAX = 30.0
FIND_AGAIN_SECONDS = 0.05
ANSWER_SECONDS = 5.0
DELIVERY_SECONDS_MAX = 60.0

Connect = Callable[[str, str], Bus]
"""Makes a bus to an address for a name."""


class Step(msgspec.Struct, frozen=True):
    """A step of the way. Its time is None where nothing had to be waited for."""

    name: str
    at: str
    """The node that was asked, or the group; "here" is the client."""
    what: str
    ms: float | None = None


class Trace(msgspec.Struct, frozen=True):
    """What was published, and the steps of its way."""

    topic: str
    point: str
    owner: str
    offset: int | None
    steps: tuple[Step, ...]


def trace_put(asking: Asking, connect: Connect, topic: str, text: str) -> Trace:
    """Puts one message, and says how it went."""
    check_topic(topic)
    return _Tracer(asking, connect, topic).run(text)


class _Tracer:
    def __init__(self, asking: Asking, connect: Connect, topic: str) -> None:
        self._asking = asking
        self._connect = connect
        self._topic = topic
        self._door = asking.addresses[0]
        self._name = f"trace-{os.urandom(4).hex()}"
        self._steps: list[Step] = []

    def run(self, text: str) -> Trace:
        point = point_of(self._topic)
        tag = tag_of(self._topic)
        what = "SHA-256 of the name" if tag == self._topic else f"SHA-256 of the tag {tag!r}"
        self._note("point", "here", f"{point.hex()[:16]}..., {what}")
        owner = self._find()
        ring = self._look()
        self._look_at_owner(owner)
        reader_at = self._not_leader(ring, owner.group)
        receipt = self._put(ring, reader_at, text)
        return Trace(self._topic, point.hex(), owner.group, receipt, tuple(self._steps))

    def _note(self, name: str, at: str, what: str, began: float | None = None, ended: float | None = None) -> None:
        ms = None if began is None else ((perf_counter() if ended is None else ended) - began) * 1000
        self._steps.append(Step(name, at, what, ms))

    # What the ring knows.

    def _find(self) -> operators.Owner:
        """FIND-ROOT: the node knows who owns the topic, or has it looked for."""
        began, asked = perf_counter(), 0
        while perf_counter() - began < FIND_SECONDS_MAX:
            asked += 1
            found = self._asking.first(operators.AskOwner(1, self._topic), operators.Owner, ANSWER_SECONDS)
            if found.group:
                how = "known to the node" if asked == 1 else f"looked for on the ring, asked {asked} times"
                self._note("find-root", self._door, f"group {found.group[:8]}, {how}", began)
                return found
            time.sleep(FIND_AGAIN_SECONDS)
        raise Unavailable(
            f"No owner of {self._topic!r} was found in {FIND_SECONDS_MAX:.0f} s: see `tidings ring status`."
        )

    def _look(self) -> operators.Ring:
        return self._asking.first(operators.AskRing(1), operators.Ring, ANSWER_SECONDS)

    def _look_at_owner(self, owner: operators.Owner) -> None:
        began = perf_counter()
        leader = owner.leader or owner.members[0]
        answer = self._asking.ask(leader, operators.AskMembers(1), ANSWER_SECONDS)
        self._note("owner", leader, f"leads the group {owner.group[:8]} of {len(owner.members)}", began)
        if isinstance(answer, operators.Members):
            for member in answer.members:
                if not member.leads:
                    self._note("replica", member.address, member.role)

    def _not_leader(self, ring: operators.Ring, owner: str) -> str:
        """A node of a group that is neither the owner nor the door's; of one of these if there is no third."""
        groups = [group for group in ring.groups if not group.left and group.members]
        groups.sort(key=lambda group: (group.group in (owner, ring.group), group.group == ring.group))
        nodes = [group.leader or group.members[0] for group in groups]
        return next((node for node in nodes if node != self._door), self._door)

    def _home(self, ring: operators.Ring, client: str) -> str:
        """The group that gives a client its epoch."""
        point: Key = home_of(client)
        for group in ring.groups:
            if any(point in KeyRange(start, end) for start, end in group.ranges):
                return f"by its home, the group {group.group[:8]}"
        return "by its home"

    # The message.

    def _put(self, ring: operators.Ring, reader_at: str, text: str) -> int | None:
        reader_name, publisher_name = f"{self._name}-reader", f"{self._name}-publisher"
        with self._connect(reader_at, reader_name) as reader:
            began = perf_counter()
            reader.subscribe(self._topic)
            self._note("subscribe", reader_at, "a durable subscriber of this trace", began)
            try:
                came = _Waiting(reader, self._topic)
                began = perf_counter()
                with self._connect(self._door, publisher_name) as publisher:
                    self._note("hello", self._door, f"epoch given {self._home(ring, publisher.client_id)}", began)
                    came.publisher = publisher.client_id
                    came.ready.wait(DELIVERY_SECONDS_MAX)
                    began = perf_counter()
                    receipt = publisher.put(self._topic, text)
                    self._note("agreement", self._door, "stored by a majority of the owner, acknowledged", began)
                    arrived = came.result()
                    self._note("delivery", reader_at, "reached the subscriber, counted from the put", began, arrived)
            finally:
                reader.unsubscribe(self._topic)
        return receipt.offset


class _Waiting:
    """A subscriber that waits in a thread of its own for a message of one publisher."""

    def __init__(self, bus: Bus, topic: str) -> None:
        self._bus, self._topic = bus, topic
        self.publisher = ""
        self.ready = threading.Event()
        self._at: float | None = None
        self._fault: TidingsError | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self._bus.get(self._topic)  # Opens the way, so that only the message itself is timed.
            self.ready.set()
            until = perf_counter() + DELIVERY_SECONDS_MAX
            while (left := until - perf_counter()) > 0:
                message = self._bus.get(self._topic, timeout=left)
                if message is not None and message.publisher == self.publisher:
                    self._at = perf_counter()
                    return
        except TidingsError as error:
            self._fault = error
        finally:
            self.ready.set()

    def result(self) -> float:
        """When it came."""
        self._thread.join(DELIVERY_SECONDS_MAX)
        if self._fault is not None:
            raise self._fault
        if self._at is None:
            raise Unavailable(
                f"The message was stored, but not delivered in {DELIVERY_SECONDS_MAX:.0f} s: see `tidings ring status`."
            )
        return self._at
