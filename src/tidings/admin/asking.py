"""Questions and orders of an operator to single nodes of a group or a ring, which no client sends."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tidings.errors import InvalidRequest, TidingsError, Unavailable, from_number
from tidings.protocols.broker import messages, operators
from tidings.protocols.chord.identifiers import Key
from tidings.protocols.ring.key_ranges import WHOLE, KeyRange, joined
from tidings.protocols.ring.placing import draw_group
from tidings.transport.curve import ClientOptions, client_options
from tidings.transport.zeromq import DealerLink
from tidings.wire.codec import decode_answer, encode
from tidings.wire.replication import REPLICA_PEER_NAME

ANSWER_SECONDS = 1.0
RETRY_SECONDS = 0.2
LEADER_SECONDS = 5.0
LOOK_SECONDS = 20.0
AT_ONCE_MAX = 16

Wanted = TypeVar("Wanted", bound=messages.AnyAnswer)


def spelled(address: str) -> str:
    """An address as it is written in full.

    >>> spelled("127.0.0.1:7500"), spelled("tcp://127.0.0.1:7500")
    ('tcp://127.0.0.1:7500', 'tcp://127.0.0.1:7500')
    """
    return address if "://" in address else f"tcp://{address}"


class Asking:
    """Asks nodes one by one, of which some are known from the start."""

    def __init__(self, addresses: Iterable[str], curve: ClientOptions | None = None) -> None:
        self.addresses = [spelled(address.strip()) for address in addresses]
        self._curve = curve

    def ask(
        self, address: str, request: messages.AnyRequest, seconds: float = ANSWER_SECONDS
    ) -> messages.AnyAnswer | None:
        """What a node answers; None if it does not."""
        link = DealerLink(address, self._curve)
        try:
            link.send([encode(request)])
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                frames = link.receive(max(1, round(left * 1000)))
                if frames is not None:
                    return decode_answer(frames[0])
            return None
        finally:
            link.close()

    def ask_all(
        self, addresses: Sequence[str], request: messages.AnyRequest, kind: type[Wanted], seconds: float
    ) -> dict[str, Wanted | None]:
        """What each of several nodes answers, asked at the same time; None for one that answers something else."""

        def look(address: str) -> Wanted | None:
            answer = self.ask(address, request, seconds)
            return answer if isinstance(answer, kind) else None

        if not addresses:
            return {}
        with ThreadPoolExecutor(min(AT_ONCE_MAX, len(addresses))) as pool:
            return dict(zip(addresses, pool.map(look, addresses), strict=True))

    def first(self, request: messages.AnyRequest, kind: type[Wanted], seconds: float = ANSWER_SECONDS) -> Wanted:
        """What the first of the known nodes says that answers."""
        refused: TidingsError | None = None
        for address in self.addresses:
            answer = self.ask(address, request, seconds)
            if isinstance(answer, kind):
                return answer
            if isinstance(answer, messages.Failed):
                refused = from_number(answer.number, answer.text)
        if refused is not None:
            raise refused
        raise Unavailable(f"No member answers at {', '.join(self.addresses)}: are they running there?")

    def first_view(self) -> operators.Members:
        """The members of a group, as the first that answers knows them."""
        return self.first(operators.AskMembers(1), operators.Members)

    def views(self, first: operators.Members) -> Iterator[tuple[operators.MemberInfo, operators.Members | None]]:
        """Every member of a group, and what it says itself."""
        for member in first.members:
            answer = self.ask(member.address, operators.AskMembers(1))
            yield member, answer if isinstance(answer, operators.Members) else None

    def ask_leader(
        self,
        request: messages.AnyRequest,
        kind: type[Wanted],
        seconds: float,
        advice: str,
        patience: float = math.inf,
    ) -> Wanted:
        """Asks the leader, and again after a change of the leader: what is wanted can be wanted twice.

        Who is said to lead is asked again after `patience`, for orders whose asker it may forget meanwhile.
        """
        deadline = time.monotonic() + seconds
        addresses = list(self.addresses)
        while (left := deadline - time.monotonic()) > 0:
            address = addresses.pop(0)
            is_named = address not in self.addresses  # One that was named by another leads, and may take its time.
            match self.ask(address, request, min(left, patience if is_named else LEADER_SECONDS)):
                case messages.Failed(_, number, text):
                    raise from_number(number, text)
                case messages.NotLeader(_, leader, members):
                    addresses = [*([leader] if leader else []), *members, *self.addresses]
                    if not leader:
                        time.sleep(RETRY_SECONDS)
                case answer if isinstance(answer, kind):
                    return answer
            addresses = addresses or list(self.addresses)
        self.first_view()  # Says so if nobody is there at all.
        raise Unavailable(f"The change did not happen within {seconds:g} s: {advice}")


def held_at(points: Sequence[Key], own: str, addresses: Sequence[str], keys: str | None) -> Sequence[str]:
    """Topics that a ring has, or remembers, at some points. None if our `own` group is a part of it.

    Unavailable if one of its groups does not say.
    """
    asking = Asking(addresses, client_options(Path(keys), REPLICA_PEER_NAME) if keys is not None else None)
    deadline = time.monotonic() + LOOK_SECONDS
    while True:
        groups = _groups_of(asking)
        if own in groups:
            return ()
        owners = [group for group in groups.values() if group.ranges]
        if joined(KeyRange(*key_range) for group in owners for key_range in group.ranges) == (WHOLE,):
            leaders = [group.leader for group in owners if group.leader]
            question = operators.AskHeld(1, tuple(points))
            answers = asking.ask_all(leaders, question, operators.Held, ANSWER_SECONDS).values()
            held = [topic for answer in answers if answer is not None for topic in answer.topics]
            if held or (None not in answers and len(leaders) == len(owners)):
                return held
        if time.monotonic() >= deadline:
            raise Unavailable(f"Not all groups of the ring at {', '.join(addresses)} answer: try again when they do.")
        time.sleep(RETRY_SECONDS)


def drawn_group(addresses: Sequence[str], keys: str | None) -> bytes:
    """The id of a group that joins a ring, drawn such that all shares stay even; any, if the ring does not answer."""
    asking = Asking(addresses, client_options(Path(keys), REPLICA_PEER_NAME) if keys is not None else None)
    try:
        groups = _groups_of(asking)  # Each by its own word: one node need not know what all the others own.
    except (Unavailable, InvalidRequest):
        groups = {}
    owned = [(bytes.fromhex(name), KeyRange(*each)) for name, group in groups.items() for each in group.ranges]
    return draw_group(owned, lambda: os.urandom(16))


def _groups_of(asking: Asking) -> dict[str, operators.RingGroup]:
    """The groups of a ring by name, each as one of its own members knows it."""
    found: dict[str, operators.RingGroup] = {}
    waiting = {group.group: group for group in asking.first(operators.AskRing(1), operators.Ring).groups}
    while waiting:
        name, group = waiting.popitem()
        if group.left:
            continue
        for address in dict.fromkeys((*((group.leader,) if group.leader else ()), *group.members)):
            ring = asking.ask(address, operators.AskRing(1))
            if isinstance(ring, operators.Ring) and ring.group == name:
                rows = {each.group: each for each in ring.groups}
                found[name] = rows.pop(name, group)
                waiting.update({each: row for each, row in rows.items() if each not in found})
                break
    return found


def is_in_ring(
    addresses: Sequence[str], keys: str | None, seconds: float = math.inf, takes_alone: bool = False
) -> bool:
    """Whether the group of these nodes is in a ring; False if it is not, or if nobody has said so in this time.

    Waits for a node that answers. InvalidRequest if it stands alone, unless that will do.
    """
    asking = Asking(addresses, client_options(Path(keys), REPLICA_PEER_NAME) if keys is not None else None)
    deadline = time.monotonic() + seconds
    told = False
    while True:
        for address in asking.addresses:
            # A node that has no group yet answers neither, and one that is in a ring answers both.
            match asking.ask(address, operators.AskMembers(1)):
                case messages.Failed(_, number, text):
                    raise from_number(number, f"{address} cannot be joined. {text}")
                case operators.Members(_, group) if not (group or takes_alone):
                    raise InvalidRequest(
                        f"{address} is a single broker outside any ring: restart it with --ring, or use --into to make "
                        "a group of it."
                    )
                case operators.Members():
                    answer = asking.ask(address, operators.AskRing(1))
                    if answer is not None:
                        return isinstance(answer, operators.Ring)
        if time.monotonic() >= deadline:
            return False
        if not told:
            told = True
            print(f"tidings: waiting for an answer from {', '.join(addresses)}", file=sys.stderr, flush=True)
        time.sleep(RETRY_SECONDS)
