"""Churn: nodes join a ring, die and come back, as a schedule drawn from a seed.

The assumption under which the corrected rules are right is kept by the one who draws the victims, and by nothing else:
no failure leaves a list, at a member or under way in a message, without a live member, and r + 1 principals always
remain.
"""

from __future__ import annotations

from random import Random

import msgspec

from tidings.protocols.chord import Chord, ChordSettings, NeighboursChanged, stable_links
from tidings.protocols.chord.messages import Place, TellLinks
from tidings.protocols.chord.ring import Ring
from tidings.protocols.stack import NodeId, Stack
from tidings_lab.simulated_overlay.chord.checkers import Violation, check_always, check_ideal, members, principals
from tidings_lab.simulated_overlay.latency import Constant, Latency, LongTail, Uniform
from tidings_lab.simulated_overlay.world import NetworkModel, Node, World

CALM_MS_MAX = 120_000
STEP_MS = 500


class ChurnPlan(msgspec.Struct, frozen=True):
    """What happens to a ring, drawn from a seed."""

    seed: int
    settings: ChordSettings
    founders: int
    latency: Latency
    jitter_ms: float
    loss: float
    changes: tuple[tuple[int, str], ...]
    """(when in milliseconds, "join" | "crash" | "return")"""


class ChurnResult(msgspec.Struct, frozen=True):
    """How a run ended; `rule` is the invariant that did not hold, if any."""

    seed: int
    rule: str | None
    text: str
    joins: int
    crashes: int
    returns: int
    members: int
    ideal_after_ms: int
    """How long after the last change the ring was ideal."""
    messages: int
    trace_hash: str


def draw_plan(seed: int, loss: float = 0.0) -> ChurnPlan:
    """A schedule of 20 to 60 changes, often several at once. A loss is for liveness only: it looks like death."""
    rng = Random(seed)
    length = rng.choice((2, 3, 4))
    latency = rng.choice((Constant(20.0), Uniform(1.0, 100.0), LongTail(20.0, 120.0)))
    jitter_ms = rng.choice((1.0, 30.0, 100.0))
    settings = ChordSettings(successors_max=length, stabilise_ms=rng.choice((200, 500, 1000)), query_ms=2_000)
    at_ms, changes = 100, []
    for _ in range(rng.randint(20, 60)):
        at_ms += rng.choice((0, 0, 1, 5, 30, 100, 300, 1000, 3000))
        changes.append((at_ms, rng.choice(("join", "join", "crash", "crash", "return"))))
    return ChurnPlan(seed, settings, length + 1 + rng.choice((0, 0, 1, 3, 8)), latency, jitter_ms, loss, tuple(changes))


class Churn:
    """A world in which a plan is carried out and the invariants are watched."""

    def __init__(self, plan: ChurnPlan, ring: type[Ring] = Ring, trace: bool = False, is_watched: bool = True) -> None:
        self.plan = plan
        self.world = World(
            plan.seed, NetworkModel(plan.latency, plan.jitter_ms, plan.loss, encode=plan.seed % 16 == 0), trace=trace
        )
        self.random = Random(plan.seed + 1)
        self.counts = {"join": 0, "crash": 0, "return": 0}
        self._ring = ring
        self._violation: Violation | None = None
        self._gone: list[NodeId] = []
        names = [f"node-{index}" for index in range(plan.founders)]
        for name, links in stable_links(names, plan.settings).items():
            stack = Stack([Chord(name, plan.settings, self._rng(), links=links, ring=ring)])
            self.world.start(name, stack)
        # A lost answer is taken for a death, and the rules promise nothing at every moment then.
        self._is_watched = is_watched and plan.loss == 0.0
        if self._is_watched:
            self.world.observe(NeighboursChanged, self._watch)

    def run(self) -> ChurnResult:
        ideal_after_ms = -1
        try:
            for at_ms, what in self.plan.changes:
                self._run_until(at_ms)
                self._change(what)
            calm_from_ms = self.world.now_ms
            ideal_after_ms = self._wait_until_ideal(calm_from_ms)
            rule, text = None, ""
        except Violation as violation:
            rule, text = violation.rule, f"{violation} (at {self.world.now_ms} ms)"
        return ChurnResult(
            self.plan.seed,
            rule,
            text,
            self.counts["join"],
            self.counts["crash"],
            self.counts["return"],
            len(members(self.world)),
            ideal_after_ms,
            self.world.delivered,
            self.world.trace.hash if self.world.trace is not None else "",
        )

    def _wait_until_ideal(self, calm_from_ms: int) -> int:
        """Lets the ring come to rest, with everybody in it."""
        while True:
            self._run_until(self.world.now_ms + STEP_MS)
            try:
                ring = members(self.world)
                if len(ring) == len(self.world.live):
                    check_ideal(ring)
                    return self.world.now_ms - calm_from_ms
                raise Violation("every joiner gets in", f"{sorted(set(self.world.live) - set(ring))} are outside")
            except Violation:
                if self.world.now_ms - calm_from_ms > CALM_MS_MAX:
                    raise

    def _run_until(self, until_ms: int) -> None:
        self.world.run_until(until_ms)
        if self._violation is not None:
            raise self._violation

    def _watch(self, _now_us: int, _node: Node, _news: NeighboursChanged) -> None:
        """After every change of a neighbour the invariants must hold."""
        if self._violation is None:
            try:
                check_always(members(self.world))
            except Violation as violation:
                self._violation = violation

    def _change(self, what: str) -> None:
        if what == "join":
            self.join(f"node-{len(self.world.nodes)}")
        elif what == "crash":
            self._crash()
        elif self._gone:
            self.join(self._gone.pop(self.random.randrange(len(self._gone))))
        else:
            return
        self.counts[what] += what != "crash"

    def join(self, name: NodeId, contacts_max: int = 100) -> None:
        """A node comes up that knows some members: enough for one of them to be alive when it is asked."""
        known = list(members(self.world))
        contacts = tuple(self.random.sample(known, min(contacts_max, len(known))))
        chord = Chord(name, self.plan.settings, self._rng(), contacts=contacts, ring=self._ring)
        self.world.start(name, Stack([chord]))

    def _crash(self) -> None:
        victim = self.random.choice(self.world.live)
        if self._may_fail(victim):
            self.world.crash(victim)
            self._gone.append(victim)
            self.counts["crash"] += 1
            if self._is_watched:
                check_always(members(self.world))

    def _may_fail(self, victim: NodeId) -> bool:
        left = {name: ring for name, ring in members(self.world).items() if name != victim}
        lists = [ring.successors for ring in left.values()]
        length = self.plan.settings.successors_max
        # Who gets one of these answers adopts it, and must find somebody alive in what it keeps of it.
        lists += [place.successors for _, place in self.world.in_flight(Place)]
        lists += [(sender, *links.successors)[:length] for sender, links in self.world.in_flight(TellLinks)]
        if any(not any(name in left for name in successors) for successors in lists):
            return False
        return len(principals(left)) > length

    def _rng(self) -> Random:
        return Random(self.random.getrandbits(64))


def run_churn(seed: int, ring: type[Ring] = Ring, loss: float = 0.0, trace: bool = False) -> ChurnResult:
    """Draws a schedule, carries it out and says whether the ring survived it.

    >>> run_churn(1).rule is None
    True
    """
    return Churn(draw_plan(seed, loss), ring, trace).run()


def run_large_churn(nodes: int, joins: int, crashes: int, seed: int = 0) -> ChurnResult:
    """Many nodes die and many come at once in a large ring at rest; it has to become ideal again.

    Only the end is judged: to look at every member after every change would take too long here.

    >>> run_large_churn(50, joins=5, crashes=5).rule is None
    True
    """
    upkeep_ms = 500 if nodes <= 1_000 else 2_000
    settings = ChordSettings(successors_max=16, stabilise_ms=upkeep_ms, fix_fingers_ms=10 * upkeep_ms)
    churn = Churn(ChurnPlan(seed, settings, nodes, Uniform(), 5.0, 0.0, ()), is_watched=False)
    for victim in churn.random.sample(churn.world.live, crashes):
        churn.world.crash(victim)
    for index in range(joins):
        churn.join(f"late-{index}", contacts_max=8)
    churn.counts.update({"join": joins, "crash": crashes})
    return churn.run()
