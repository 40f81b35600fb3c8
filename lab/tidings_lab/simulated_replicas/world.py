"""A world of replicas: virtual time, one source of randomness, nodes, their network, their clients and an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tidings.node.founding import FIRST_SLOT, founding
from tidings.protocols.multipaxos.values import Change, Command
from tidings.settings import JournalSettings, ReplicaSettings
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.checkers.rules import PROGRESS
from tidings.simulator.workloads.cluster import draw_replica
from tidings.simulator.world.faults import ClockJump, NodeEnd, NodePause, Outage, Partition
from tidings.simulator.world.network import Links
from tidings.simulator.world.timeline import Timeline
from tidings_lab.simulated_replicas.checkers import Watch
from tidings_lab.simulated_replicas.clients import Client
from tidings_lab.simulated_replicas.faults import Damage, FolderCopies, Fork, PaxosPlan, Work, draw_plan
from tidings_lab.simulated_replicas.forked_node import ForkedNode
from tidings_lab.simulated_replicas.ledger import Ledger
from tidings_lab.simulated_replicas.node import Node
from tidings_lab.simulated_replicas.operator import Operator

PATIENCE_MS = 30_000
"""How long everything may take to come to its end once nothing goes wrong any more."""
PROBE_MS_MAX = 5_000
"""How long one more command may take then, and how long until everybody has it."""
EVENTS_MAX = 200_000
COMMANDS_MAX = 60
"""Of one client, reads included."""


class PaxosWorld(Timeline):
    """All processes of a run and the time they share."""

    def __init__(self, random: Random, plan: PaxosPlan | None = None, settings: ReplicaSettings | None = None) -> None:
        super().__init__(random)
        paxos_plan = plan if plan is not None else draw_plan(random)
        self.plan = paxos_plan.faults
        self.piece_ends = paxos_plan.piece_ends
        self._moved = paxos_plan.moved
        self.replica_settings = settings if settings is not None else draw_replica(random)
        self.journal_settings = JournalSettings(segment_records_max=random.choice((6, 20, 100)))
        voters = tuple(range(1, paxos_plan.founders + 1))
        self.ledger = Ledger(FIRST_SLOT, voters, paxos_plan.window)
        self.watch = Watch(self, self.ledger)
        self.links = Links(self, self.plan)
        founded = founding(voters, paxos_plan.window)
        self.nodes = {number: Node(self, number, founded) for number in voters}
        self.operator = Operator(self)
        pause_ms_max = random.choice((30, 150, 600))
        self.clients = {
            name: Client(self, name, COMMANDS_MAX, pause_ms_max) for name in "abcdefgh"[: random.randint(2, 8)]
        }
        self._readers: dict[int, Client] = {}
        self._tokens = 0
        self._damaged: int | None = None
        """The one node whose disk flips bits."""

    @property
    def lives(self) -> int:
        return sum(node.life for node in self.nodes.values())

    # The run.

    def begin(self) -> None:
        self.operator.planned = len(self.plan.of(Work))
        self.plan_all(self.plan.faults, self._handlers())
        self.at(self.plan.calm_ms, self._on_calm)
        for node in self.nodes.values():
            node.start()
        for client in self.clients.values():
            client.start()

    def run(self) -> None:
        """Everything that happens, then one more command, then a last power cut and a look at all disks."""
        self.begin()
        self.pass_or_break(self._all_done, self.plan.calm_ms + PATIENCE_MS, "the clients and the operator")
        probe = self.clients["probe"] = Client(self, "probe", 1, 1, read_share=0.0)
        probe.start()
        self.pass_or_break(lambda: probe.finished, self.now_ms + PROBE_MS_MAX, "one more command")
        self.pass_or_break(self._all_have_all, self.now_ms + PROBE_MS_MAX, "every member")
        if self._moved is not None and len(self.ledger.voters) >= 3:
            self._move_to_copy(self._moved)
        self._check_at_last()

    def _move_to_copy(self, moved: Fork) -> None:
        """A voter's folder is exchanged for a copy of it: the node refuses, and another takes its place."""
        voters = self.ledger.voters
        node = self.nodes[voters[moved.victim % len(voters)]]
        node.move_to_copy(moved.older)
        self.pass_or_break(lambda: node.retired and self.operator.idle, self.now_ms + PROBE_MS_MAX, "replacing a copy")
        self.pass_or_break(self._all_have_all, self.now_ms + PROBE_MS_MAX, "every member beside a copy")

    def pass_or_break(self, done: Callable[[], bool], deadline_ms: int, who: str) -> None:
        """Lets things happen until something is the case, which has to be before the deadline."""
        if not self.pass_until(done, deadline_ms, EVENTS_MAX):
            raise Violation(PROGRESS, f"{who} did not come to an end within its time")

    def _all_done(self) -> bool:
        return self.calm and self.operator.idle and all(client.finished for client in self.clients.values())

    def _all_have_all(self) -> bool:
        nodes = [self.nodes[number] for number in self.ledger.members]
        return all(node.engine is not None and node.engine.applied == self.ledger.next_slot for node in nodes)

    def _all_in_place(self) -> bool:
        """What lies in the journals is whole, but for what nobody else keeps, because nobody needs it."""
        members = [self.nodes[number] for number in self.ledger.members]
        return all(
            node.engine is not None
            and not node.row.misplaced()
            and not any(other.has_whole(slot) for slot in node.broken_slots() for other in members)
            for node in members
        )

    def _check_at_last(self) -> None:
        members = [self.nodes[number] for number in self.ledger.members]
        for node in members:
            node.end("power")
        for node in members:
            while node.engine is None and not node.retired:  # A sync that was still to fail may fail now.
                node.start()
        self.watch.on_last_restart([node for node in members if not node.retired])
        self.pass_or_break(lambda: self.operator.idle, self.now_ms + PROBE_MS_MAX, "replacing what is damaged")
        self.pass_or_break(self._all_have_all, self.now_ms + PROBE_MS_MAX, "every member after a last restart")
        self.pass_or_break(self._all_in_place, self.now_ms + PROBE_MS_MAX, "fetching what is damaged")
        self.watch.on_end([self.nodes[number] for number in self.ledger.members])

    def _handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            NodeEnd: lambda fault: self.pick(fault.victim).on_end(fault),
            Outage: self._on_outage,
            NodePause: lambda fault: self.pick(fault.victim).on_pause(fault.for_ms),
            ClockJump: lambda fault: self.pick(fault.victim).on_clock_jump(fault),
            Partition: self.links.on_partition,
            Damage: self._on_damage,
            Fork: self._on_fork,
            FolderCopies: self._on_copies,
            Work: self.operator.on_work,
        }

    def _on_outage(self, fault: Outage) -> None:
        self.note("world", "all lights go out")
        for node in self.nodes.values():
            node.on_outage(self.random.randint(1, fault.back_after_ms))

    def _on_damage(self, damage: Damage) -> None:
        if self._damaged is None:
            self._damaged = self.pick(damage.victim).number
        self.nodes[self._damaged].on_damage(damage.choice)

    def _on_fork(self, fork: Fork) -> None:
        node = self.pick(fork.victim)
        if node.engine is not None and not node.outdated:
            self.note(node.name, "a copy of its folder is started beside it")
            node.forks.append(ForkedNode(self, node, fork.older))
            node.forks[-1].start()

    def _on_copies(self, fault: FolderCopies) -> None:
        self.note("world", "all folders are copied")
        for node in self.nodes.values():
            node.copy_folder()

    def _on_calm(self) -> None:
        self.note("world", "from now on nothing goes wrong")
        self.calm = True
        for node in self.nodes.values():
            node.on_calm()

    # Nodes.

    @property
    def leading(self) -> list[int]:
        """The nodes that take themselves for leaders."""
        return [number for number, node in self.nodes.items() if node.engine is not None and node.engine.replica.leads]

    def members_beside(self, node: Node) -> list[Node]:
        """The other members of the group."""
        return [self.nodes[number] for number in self.ledger.members if number != node.number]

    def may_put_back(self, number: int) -> bool:
        """Whether the copy of a node's folder may take the place of the folder: everybody remembers that it said more.

        Everybody: who has ever voted and is not gone, and has it on disk. Anyone who remembers does not count what the
        node says. If there were one who did not, and who reached the node before the others do, the two could come to
        a majority: no protocol that goes on without some of its members can tell that from a healthy group.
        """
        began = self.nodes[number].extent_of_copy()
        voters = {voter for _, voters, _ in self.ledger.terms for voter in voters if voter != number}
        others = [voter for voter in sorted(voters) if not self.nodes[voter].retired]
        return began is not None and not any(began.covers(self.watch.testimony(other, number)) for other in others)

    def pick(self, choice: int) -> Node:
        """A node that is not gone for good: the one that a number chooses, or the leader."""
        numbers = [number for number, node in self.nodes.items() if not node.retired]
        if choice < 0:
            numbers = self.leading or numbers
        return self.nodes[numbers[choice % len(numbers)]]

    def add_node(self) -> int:
        """A new machine with an empty disk, under a number that was never used."""
        number = max(self.nodes) + 1
        self.nodes[number] = Node(self, number, None)
        self.nodes[number].start()
        return number

    # Clients.

    def new_token(self, client: Client) -> int:
        self._tokens += 1
        self._readers[self._tokens] = client
        return self._tokens

    def call(self, target: int, command: Command | None, token: int | None) -> None:
        """A client asks a node."""
        node = self.nodes[target]
        if command is not None:
            self._say(lambda: node.propose(command))
        if token is not None:
            self._say(lambda: node.read(token))

    def call_change(self, change: Change) -> None:
        """The operator asks the leader, or anybody."""
        node = self.pick(-1)
        self._say(lambda: node.change(change))

    def answer_command(self, node: Node, command: Command, result: bytes | None) -> None:
        if result is None:
            return  # Refused as older than another of its client, who therefore waits for it no more.
        place = int(result)
        self.note(node.name, f"acknowledges {command.body.decode()} at {place}")
        self.watch.on_acknowledged(command, place)
        client = self.clients[command.client]
        self._say(lambda: client.on_answered(command.sequence))

    def turn_away(self, command: Command, leader: int | None) -> None:
        client = self.clients[command.client]
        self._say(lambda: client.on_rejected(command.sequence, leader))

    def answer_read(self, token: int, refused: bool, leader: int | None) -> None:
        client = self._readers[token]
        self._say(lambda: client.on_read_answered(token, refused, leader))

    def _say(self, what: Callable[[], None]) -> None:
        """A question of a client, or the answer to it, takes its time, and may get lost."""
        for delay_ms in self.links.delays(self.plan.repetition)[:1]:
            self.after(delay_ms, what)
