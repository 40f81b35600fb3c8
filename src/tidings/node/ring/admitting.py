"""What a leader does before it takes a request: the epoch that it names has to be in the journal of the group.

The home of a name gives it its epochs. Any other group that meets the name asks the home for the newest one
(`AskEpoch`). The home writes down that this group is to hear of newer ones (it *notes* it), and answers; the group
writes down that epoch, and that it has been noted. Only then does it take the request. So a hello has to be told to
the groups that have been noted, and to no other: one that has not been noted takes nothing without asking first. That
holds wherever topics move, for what a group takes over from another one says nothing of having been noted.

All that comes from a name while its home is asked waits here, in the order in which it came. What has waited for too
long is sent away, and comes again. Names that are made up for one session have no older session, and nobody asks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tidings.node.ring.commits import Adopted
from tidings.node.ring.roles import RingNode
from tidings.protocols.broker import bulk, messages
from tidings.protocols.broker.commands import Adopt
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.origins import Adopting, Reporting
from tidings.protocols.effects import Persist, Report, Send
from tidings.protocols.events import Received
from tidings.protocols.ring.commit_attempts import send_away
from tidings.protocols.ring.key_ranges import home_of
from tidings.protocols.ring.messages import AskEpoch, AskWord, HomeEpoch, Word
from tidings.protocols.ring.policy import ring_of
from tidings.protocols.ring.transfer import AtHome, is_anonymous

WAITING_MAX = 10_000
"""Requests that wait for homes to answer; one more is sent away, and comes again."""
WAITING_BYTES_MAX = 256 * 1024 * 1024
WAITING_MS_MAX = 3_000
ASK_AGAIN_MS = 300


class Noting(NamedTuple):
    """A group that has asked us as the home of a name wants to hear that it has been noted."""

    sender: str
    client: str
    number: int


class Asking:
    """A name whose home is asked, and what waits for that."""

    def __init__(self, number: int, now_ms: int) -> None:
        self.number = number
        self.since_ms = now_ms
        self.asked_at_ms = now_ms
        self.waiting: list[Received] = []


class Writing:
    """A name whose epoch is being written down."""

    def __init__(self, home: AtHome) -> None:
        self.count = 0
        """For how many requests."""
        self.home = home


UNKNOWN = AtHome(0, False)


class Admitting:
    """Takes requests of one leader, each once its epoch is known."""

    def __init__(self, node: RingNode, first_number: int) -> None:
        self._node = node
        self._number = first_number
        self._asking: dict[str, Asking] = {}
        self._writing: dict[str, Writing] = {}
        self._waiting_count = 0
        self._waiting_bytes = 0

    @property
    def _machine(self) -> Machine:
        return self._node.group.state.machine

    def admit(self, received: Received, home: AtHome | None = None) -> None:
        """Takes a request that no commit holds back; `home` is what its client's home has just said."""
        message, machine = received.message, self._machine
        client, epoch = getattr(message, "client", None), getattr(message, "epoch", None)
        ring = ring_of(machine)
        assert ring is not None
        if client is None or epoch is None or ring.owns_home(client):
            self._take(received)
            return
        known = machine.clients.get(client)
        writing = self._writing.get(client)
        is_under_way = writing is not None or client in self._asking
        said = home or (writing.home if writing is not None else UNKNOWN)
        is_noted = said.is_noted or (known is not None and known.is_noted)
        has_to_ask = home is None and not is_noted and must_be_noted(message)
        if known is not None and not is_under_way:
            if known.epoch >= max(epoch, said.epoch) and not has_to_ask and known.is_noted >= said.is_noted:
                self._take(received)
                return
            if isinstance(message, messages.AskSubscriptions):
                # What is owned now is asked for, and not what is owned once something has been written down.
                message = msgspec.structs.replace(message, epoch=known.epoch)
                self._node.group.take(msgspec.structs.replace(received, message=message))
                return
        if known is None and not is_under_way and self._knows_nothing(received):
            return
        if isinstance(message, messages.Beat) or not (has_to_ask or (home is None and client in self._asking)):
            self._write_down(received, AtHome(max(epoch, said.epoch), said.is_noted))
        else:
            self._wait(received)

    def _take(self, received: Received) -> None:
        if not self._node.publishes(received):
            self._node.group.take(received)

    def _knows_nothing(self, received: Received) -> bool:
        """Answers what may be asked about a name that is not known: there is nothing, and nothing to write down."""
        match received.message:
            case messages.Beat(request, _, _, streams):
                answer: Any = messages.BeatDone(request, streams)
            case messages.Bye(request):
                answer = messages.ByeDone(request)
            case messages.AskSubscriptions(request):
                answer = messages.Subscriptions(request, ())
            case _:
                return False
        # Who asks may be about to tell a new session that the older one is fenced: we have to lead still.
        self._node.group.waiting.confirm(received, [Send(received.peer, answer)])
        return True

    def _write_down(self, received: Received, home: AtHome) -> None:
        client = received.message.client
        adopt = Adopt(client, home.epoch, home.is_noted)
        if isinstance(received.message, bulk.Publish):
            self._node.engine.run([Persist(adopt, origin=Reporting(Adopted(received)))])
            return
        writing = self._writing.setdefault(client, Writing(home))
        writing.count += 1
        if home.is_noted:
            writing.home = AtHome(max(home.epoch, writing.home.epoch), True)
        self._node.engine.run([Persist(adopt, (), Adopting(received))])

    def on_written(self, persist: Persist) -> None:
        """One request less waits for its epoch: it has been taken, or refused."""
        if isinstance(persist.origin, Adopting):
            client = persist.origin.message.client
            writing = self._writing.get(client)
            if writing is not None:
                writing.count -= 1
                if writing.count <= 0:
                    del self._writing[client]

    # Asking homes.

    def _wait(self, received: Received) -> None:
        client, size = received.message.client, sum(map(len, received.bodies))
        if self._waiting_count >= WAITING_MAX or self._waiting_bytes + size > WAITING_BYTES_MAX:
            self._send_away([received])
            return
        self._waiting_count += 1
        self._waiting_bytes += size
        asking = self._asking.get(client)
        if asking is None:
            self._number += 1
            asking = self._asking[client] = Asking(self._number, received.now_ms)
        asking.waiting.append(received)
        if len(asking.waiting) == 1:
            self._ask(received.now_ms, client, asking)

    def _ask(self, now_ms: int, client: str, asking: Asking, again: bool = False) -> None:
        node = self._node
        asking.asked_at_ms = now_ms
        point, own = home_of(client), node.descriptor().group
        home = node.directory.find(point)
        if home is None or not home.leader:
            node.seek(now_ms, point)
        elif home.group != own:
            if again:
                node.suspect(home.group)
            node.send_node(home.leader, AskEpoch(own, client, asking.number))
            if not home.asks_homes:
                node.send_node(home.leader, AskWord(home.group))

    def on_word(self, sender: str, word: Word) -> None:
        """A leader of an older release tells every hello to all groups, and does not answer what we ask.

        One of this release may speak of itself as a leader that it is no longer: under the number of an earlier life.
        """
        own = word.descriptor
        if not self._asking or own.leader != sender or own.asks_homes is not None:
            return
        for client in list(self._asking):
            home = self._node.directory.find(home_of(client))
            if home is not None and home.group == own.group and home.leader == sender:
                self._go_on(client, UNKNOWN)

    def on_answer(self, answer: HomeEpoch) -> None:
        """What the home of a name has said."""
        asking = self._asking.get(answer.client)
        if asking is not None and asking.number == answer.number:
            self._go_on(answer.client, AtHome(answer.epoch, answer.is_noted))

    def _go_on(self, client: str, home: AtHome) -> None:
        for each in self._done(client):
            self._node.admit(msgspec.structs.replace(each, now_ms=self._node.engine.now_ms), home)

    def _done(self, client: str) -> list[Received]:
        waiting = self._asking.pop(client).waiting
        self._waiting_count -= len(waiting)
        self._waiting_bytes -= sum(sum(map(len, each.bodies)) for each in waiting)
        return waiting

    def tick(self, now_ms: int) -> None:
        """Asks again, and sends away what has waited for too long."""
        for client, asking in list(self._asking.items()):
            if now_ms - asking.since_ms > WAITING_MS_MAX:
                self._send_away(self._done(client))
            elif now_ms - asking.asked_at_ms >= ASK_AGAIN_MS:
                self._ask(now_ms, client, asking, again=True)

    def reset(self) -> None:
        """We lead no longer, or what is owned has changed: everybody asks again."""
        self._writing.clear()
        for client in list(self._asking):
            self._send_away(self._done(client))

    def _send_away(self, received: list[Received]) -> None:
        for each in received:
            self._node.engine.reply(each.peer, send_away(each.message.request))

    # At the home.

    def on_asked(self, sender: str, asked: AskEpoch) -> None:
        """Another group has met a name whose home may be here."""
        origin = Reporting(Noting(sender, asked.client, asked.number))
        self._node.engine.run([Persist(Adopt(asked.client, 0, False, asked.group), (), origin)])

    def on_report(self, report: Report) -> bool:
        """A group has been noted, or not; False if it is about something else."""
        if not isinstance(report.about, Noting):
            return False
        sender, client, number = report.about
        if isinstance(report.result, AtHome) and report.error is None:
            home = report.result
            self._node.send_node(sender, HomeEpoch(client, number, home.epoch, home.is_noted))
        elif report.error is not None:
            self._node.send_node(sender, self._node.word())
        return True


def must_be_noted(message: Any) -> bool:
    """Whether a group takes a request only if its client's home knows of it."""
    return not isinstance(message, messages.Beat | messages.AskSubscriptions) and not is_anonymous(message.client)
