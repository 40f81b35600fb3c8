"""Groups that are a ring: some join and some leave while everything goes wrong, and an operator tells them to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tidings.protocols.broker import messages, operators
from tidings.protocols.ring.policy import ring_of
from tidings.simulator.checkers.ring_cluster import RingJudge
from tidings.simulator.world.faults import End, NodeEnd
from tidings.simulator.world.node import NodeProcess
from tidings.simulator.world.populated import QUIET_MS
from tidings.simulator.world.world import World
from tidings.wire import codec
from tidings.wire.codec import Frame

ASK_AGAIN_MS = 700


class Joining(msgspec.Struct, frozen=True):
    """A group of some size starts; the first one of all founds the ring."""

    at_ms: int
    group: str
    size: int


class Leaving(msgspec.Struct, frozen=True):
    """A group is told to leave; when it has, its nodes are switched off after a while."""

    at_ms: int
    group: str
    off_after_ms: int


class RingPlan(msgspec.Struct, frozen=True):
    """Who comes and goes."""

    joins: tuple[Joining, ...]
    leaves: tuple[Leaving, ...]
    commit_ends: tuple[int, ...] = ()
    """At which steps of commits over several groups, counted over the run, the leader that has taken one dies."""


class Desk(NamedTuple):
    """The connection of an operator."""

    number: int


class Operator:
    """Asks the nodes of a group to leave the ring, until one says that this is done."""

    def __init__(self, ring: RingOfGroups, number: int, leaving: Leaving) -> None:
        self._ring = ring
        self._world = ring.world
        self._desk = Desk(number)
        self._leaving = leaving
        self._asked = 0
        self.done = False

    def ask(self) -> None:
        world = self._world
        if self.done:
            return
        world.after(ASK_AGAIN_MS, self.ask)
        if self._ring.somebody_would_be_lost():
            return
        self._asked += 1
        world.note("operator", f"asks {self._leaving.group} to leave")
        frames = [codec.encode(operators.LeaveRing(self._asked))]
        for node in world.groups.get(self._leaving.group, ()):
            world.after(1, lambda node=node: node.receive(self._desk, frames))  # type: ignore[misc]

    def on_answer(self, node: NodeProcess, answer: object) -> None:
        if not isinstance(answer, messages.NotLeader):
            self._world.note("operator", f"hears from {node.name}: {answer}")
        if isinstance(answer, operators.RingLeft) and not self.done:
            self.done = True
            self._world.after(self._leaving.off_after_ms, self._switch_off)

    def _switch_off(self) -> None:
        for node in self._world.groups[self._leaving.group]:
            node.switch_off()


class RingOfGroups:
    """The groups of a world that are a ring."""

    def __init__(self, world: World, judge: RingJudge, plan: RingPlan) -> None:
        contacts = world.engines.contacts
        assert contacts is not None
        self.world = world
        self.judge = judge
        self.plan = plan
        self._contacts = contacts
        self._waited_ms = 0
        """When something last waited at a door, or moved on the ring, of what the clients have left."""
        self._operators = [Operator(self, number, leaving) for number, leaving in enumerate(plan.leaves)]
        self._leavers = {leaving.group for leaving in plan.leaves}
        self._commit_steps = 0
        judge.on_commit_step = self._on_commit_step
        for joining in plan.joins:
            if joining.at_ms == 0:
                self._make_group(joining)

    def begin(self) -> None:
        later = [joining for joining in self.plan.joins if joining.at_ms]
        self.world.plan_all(later, {Joining: self._on_joining})
        for operator, leaving in zip(self._operators, self.plan.leaves, strict=True):
            self.world.at(leaving.at_ms, operator.ask)

    def _make_group(self, joining: Joining) -> list[NodeProcess]:
        """Anyone who joins knows a node of each group that was there at first, of which one stays, and perhaps
        others."""
        founder, *others = (each for each in self.plan.joins if each.at_ms == 0)
        first = [f"tcp://{each.group}1:7400" for each in (founder, *others) if each != joining]
        here, random = list(self.world.by_address), self.world.random
        some = random.sample(here, random.randint(0, min(2, len(here))))
        self._contacts[joining.group] = () if joining == founder else tuple(dict.fromkeys((*some, *first)))
        return self.world.add_group(joining.group, joining.size)

    def _on_joining(self, joining: Joining) -> None:
        nodes = self._make_group(joining)
        self.world.note("world", f"{joining.group} joins with {joining.size} by {self._contacts[joining.group]}")
        for node in nodes:
            node.start()

    def _on_commit_step(self, group: str) -> None:
        """A group has come one step further with a commit; its leader may die before anybody hears of that."""
        self._commit_steps += 1
        if self._commit_steps not in self.plan.commit_ends or self.world.calm:
            return
        back_after_ms = self.world.random.randint(1, 1_500)
        how: End = self.world.random.choice(("kill", "power"))

        def end() -> None:
            for node in self.world.groups[group]:
                if node.log is not None and node.log.serving and not self.world.calm:
                    node.on_end(NodeEnd(self.world.now_ms, 0, how, None, back_after_ms))

        self.world.after(0, end)

    def somebody_would_be_lost(self) -> bool:
        """Whether a group that has not come yet knows only groups that leave: these have to wait for it, or else it
        would never find the ring, and an operator would have to name it another node.
        """
        ledgers, nodes = self.judge.ring.of, self.world.by_address
        for group, contacts in self._contacts.items():
            ring = ring_of(ledgers[group].reference) if group in ledgers else None
            has_come = ring is not None and (ring.ranges or ring.taken_over)
            if contacts and not has_come and all(nodes[each].group in self._leavers for each in contacts):
                return True
        return False

    def on_answer(self, node: NodeProcess, peer: Any, frames: Sequence[Frame]) -> bool:
        if isinstance(peer, Desk):
            self._operators[peer.number].on_answer(node, codec.decode_answer(bytes(frames[0])))
        return isinstance(peer, Desk)

    def draw_address(self) -> str:
        """Some of the nodes; one of them belongs to a group that stays."""
        random, nodes = self.world.random, self.world.nodes
        stays = [node.address for node in nodes if node.group not in self._leavers]
        here = [node.address for node in nodes]
        chosen = random.sample(here, random.randint(1, min(4, len(here))))
        if not any(address in stays for address in chosen):
            chosen.append(random.choice(stays))
        return ",".join(chosen)

    # When it has come to its end.

    def has_arrived(self) -> bool:
        """Also what waited at a door until its owner was known has arrived, and has had time to be dealt with."""
        now_ms = self.world.now_ms
        if self.unfinished() or self._somebody_waits():
            self._waited_ms = now_ms
        return now_ms - self._waited_ms > QUIET_MS

    def _somebody_waits(self) -> bool:
        proxies = (node.engine.ring.proxy for node in self.world.nodes if node.engine is not None)
        return any(connection.held for proxy in proxies for connection in proxy.connections)

    def unfinished(self) -> str:
        ledgers = self.judge.ring.of
        for joining in self.plan.joins:
            group = joining.group
            ring = ring_of(ledgers[group].reference) if group in ledgers else None
            if ring is None:
                return f"{group} has not come"
            if ring.handing_off is not None or ring.taking_over is not None:
                return f"{group} gives {ring.handing_off} and takes {ring.taking_over}"
            if ring.commits.open or ring.commits.held:
                return f"{group} has open commits {ring.commits.open} and parts {ring.commits.held}"
            if bool(ring.ranges) == (group in self._leavers):
                return f"{group} owns {ring.ranges}"
        if not all(operator.done for operator in self._operators):
            return "an operator waits"
        return "" if self.judge.owners.is_whole() else "some points have no owner"
