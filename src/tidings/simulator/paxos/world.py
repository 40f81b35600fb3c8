"""A world of replicas: virtual time, one source of randomness, nodes, their network, their clients and an operator."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidings.node.founding import FIRST_SLOT, founding
from tidings.protocols.multipaxos.values import Change, Command
from tidings.settings import JournalSettings, ReplicaSettings
from tidings.simulator.checkers import Violation
from tidings.simulator.paxos.checkers import Watch
from tidings.simulator.paxos.clients import Client
from tidings.simulator.paxos.faults import Damage, Fork, NodeEnd, Outage, PaxosPlan, draw_plan
from tidings.simulator.paxos.ledger import Ledger
from tidings.simulator.paxos.network import Network
from tidings.simulator.paxos.node import ForkedNode, Node
from tidings.simulator.paxos.operator import Operator
from tidings.simulator.planting import PROGRESS
from tidings.simulator.timeline import Timeline
from tidings.wire.codec import Frame

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
        self.plan: PaxosPlan = plan if plan is not None else draw_plan(random)
        self.replica_settings = settings if settings is not None else draw_replica(random)
        self.journal_settings = JournalSettings(segment_records_max=random.choice((6, 20, 100)))
        voters = tuple(range(1, self.plan.founders + 1))
        self.ledger = Ledger(FIRST_SLOT, voters, self.plan.window)
        self.watch = Watch(self, self.ledger)
        self.network = Network(self, self.plan)
        founded = founding(voters, self.plan.window)
        self.nodes = {number: Node(self, number, founded) for number in voters}
        self.forks: list[ForkedNode] = []
        """Processes on copies of folders, beside the nodes."""
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
        self._plan_faults()
        for node in self.nodes.values():
            node.start()
        for client in self.clients.values():
            client.start()

    def run(self) -> None:
        """Everything that happens, then one more command, then a last power cut and a look at all disks."""
        self.begin()
        self.pass_until(self._all_done, self.plan.calm_ms + PATIENCE_MS, "the clients and the operator")
        probe = self.clients["probe"] = Client(self, "probe", 1, 1, read_share=0.0)
        probe.start()
        self.pass_until(lambda: probe.finished, self.now_ms + PROBE_MS_MAX, "one more command")
        self.pass_until(self._all_have_all, self.now_ms + PROBE_MS_MAX, "every member")
        if self.plan.moved is not None and len(self.ledger.voters) >= 3:
            self._move_to_copy(self.plan.moved)
        self._check_at_last()

    def _move_to_copy(self, moved: Fork) -> None:
        """A voter's folder is exchanged for a copy of it: the node refuses, and another takes its place."""
        voters = self.ledger.voters
        node = self.nodes[voters[moved.victim % len(voters)]]
        node.move_to_copy(moved.older)
        self.pass_until(lambda: node.retired and self.operator.idle, self.now_ms + PROBE_MS_MAX, "replacing a copy")
        self.pass_until(self._all_have_all, self.now_ms + PROBE_MS_MAX, "every member beside a copy")

    def pass_until(self, done: Callable[[], bool], deadline_ms: int, who: str) -> None:
        """Lets things happen until something is the case, which has to be before the deadline."""
        while not done():
            next_ms = self.next_event_ms
            if next_ms is None or next_ms > deadline_ms or self.events >= EVENTS_MAX:
                raise Violation(PROGRESS, f"{who} did not come to an end within its time")
            self.step()

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
        self.pass_until(lambda: self.operator.idle, self.now_ms + PROBE_MS_MAX, "replacing what is damaged")
        self.pass_until(self._all_have_all, self.now_ms + PROBE_MS_MAX, "every member after a last restart")
        self.pass_until(self._all_in_place, self.now_ms + PROBE_MS_MAX, "fetching what is damaged")
        self.watch.on_end([self.nodes[number] for number in self.ledger.members])

    def _plan_faults(self) -> None:
        plan = self.plan
        for end in plan.ends:
            self.at(end.at_ms, lambda end=end: self._on_end(end))  # type: ignore[misc]
        for outage in plan.outages:
            self.at(outage.at_ms, lambda outage=outage: self._on_outage(outage))  # type: ignore[misc]
        for pause in plan.pauses:
            self.at(
                pause.at_ms,
                lambda pause=pause: self.nodes[self.pick(pause.victim)].on_pause(pause.for_ms),  # type: ignore[misc]
            )
        for partition in plan.partitions:
            self.at(partition.at_ms, lambda each=partition: self.network.on_partition(each))  # type: ignore[misc]
        for jump in plan.clock_jumps:
            self.at(
                jump.at_ms,
                lambda jump=jump: self.nodes[self.pick(jump.victim)].on_clock_jump(jump.by_ms),  # type: ignore[misc]
            )
        for damage in plan.damages:
            self.at(damage.at_ms, lambda damage=damage: self._on_damage(damage))  # type: ignore[misc]
        for fork in plan.forks:
            self.at(fork.at_ms, lambda fork=fork: self._on_fork(fork))  # type: ignore[misc]
        for at_ms in plan.copies:
            self.at(at_ms, self._on_copy)
        self.operator.planned = len(plan.works)
        for work in plan.works:
            self.at(work.at_ms, lambda work=work: self.operator.on_work(work))  # type: ignore[misc]
        self.at(plan.calm_ms, self._on_calm)

    def _on_end(self, end: NodeEnd) -> None:
        self.nodes[self.pick(end.victim)].on_end(end.how, end.steps, end.back_after_ms)

    def _on_outage(self, outage: Outage) -> None:
        self.note("world", "all lights go out")
        for node in self.nodes.values():
            node.on_end("power", None, self.random.randint(1, outage.back_after_ms))

    def _on_damage(self, damage: Damage) -> None:
        if self._damaged is None:
            self._damaged = self.pick(damage.victim)
        self.nodes[self._damaged].on_damage(damage.choice)

    def _on_fork(self, fork: Fork) -> None:
        node = self.nodes[self.pick(fork.victim)]
        if node.engine is not None and not node.outdated:
            self.note(node.name, "a copy of its folder is started beside it")
            self.forks.append(ForkedNode(self, node, fork.older))
            self.forks[-1].start()

    def _on_copy(self) -> None:
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

    def pick(self, choice: int) -> int:
        """A node that is not gone for good: the one that a number chooses, or the leader."""
        numbers = [number for number, node in self.nodes.items() if not node.retired]
        if choice < 0:
            numbers = self.leading or numbers
        return numbers[choice % len(numbers)]

    def add_node(self) -> int:
        """A new machine with an empty disk, under a number that was never used."""
        number = max(self.nodes) + 1
        self.nodes[number] = Node(self, number, None)
        self.nodes[number].start()
        return number

    def deliver(self, receiver: int, frames: list[Frame]) -> None:
        for node in (self.nodes[receiver], *self.forks):
            if node.number == receiver:
                node.receive(frames)

    # Clients.

    def new_token(self, client: Client) -> int:
        self._tokens += 1
        self._readers[self._tokens] = client
        return self._tokens

    def call(self, target: int, command: Command | None, token: int | None) -> None:
        """A client asks a node."""
        delay_ms = self.network.delay_of_call()
        if delay_ms is None:
            return
        node = self.nodes[target]
        if command is not None:
            self.after(delay_ms, lambda: node.propose(command))
        if token is not None:
            self.after(delay_ms, lambda: node.read(token))

    def call_change(self, change: Change) -> None:
        """The operator asks the leader, or anybody."""
        node = self.nodes[self.pick(-1)]
        delay_ms = self.network.delay_of_call()
        if delay_ms is not None:
            self.after(delay_ms, lambda: node.change(change))

    def answer_command(self, node: Node, command: Command, result: bytes | None) -> None:
        if result is None:
            return  # Refused as older than another of its client, who therefore waits for it no more.
        place = int(result)
        self.note(node.name, f"acknowledges {command.body.decode()} at {place}")
        self.watch.on_acknowledged(command, place)
        client = self.clients[command.client]
        self._reply(lambda: client.on_answered(command.sequence))

    def turn_away(self, command: Command, leader: int | None) -> None:
        client = self.clients[command.client]
        self._reply(lambda: client.on_rejected(command.sequence, leader))

    def answer_read(self, token: int, refused: bool, leader: int | None) -> None:
        client = self._readers[token]
        self._reply(lambda: client.on_read_answered(token, refused, leader))

    def _reply(self, what: Callable[[], None]) -> None:
        delay_ms = self.network.delay_of_call()
        if delay_ms is not None:
            self.after(delay_ms, what)


def draw_replica(random: Random) -> ReplicaSettings:
    """Tiny, so that snapshots, full batches and lost turns are met in nearly every run."""
    return ReplicaSettings(
        beat_ms=80,
        election_ms=random.choice((100, 200, 350)),
        unanswered_beats_max=random.choice((4, 8)),
        fetch_retry_ms=100,
        queue_max=random.choice((2, 100)),
        batch_values_max=random.choice((1, 3, 10)),
        batches_open_max=random.choice((1, 2, 4)),
        undecided_bytes_max=random.choice((100, 10_000)),
        piece_bytes_max=random.choice((300, 2_000)),
        witness_ms=random.choice((20, 100, 500)),
    )
