"""A publisher and a group in which members are cut off, slow, killed and cut from power (P7).

Whatever was acknowledged is on every member afterwards, each once, in the order of the publisher.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.node.members import Members, put
from tests.unit.node.test_group import values_of
from tidings.protocols.broker import messages
from tidings.settings import BrokerSettings, JournalSettings, ReplicaSettings

SEEDS = 12
STEPS = 600


class Publisher:
    """Sends one batch after another, each again and again under the same numbers until it is stored."""

    def __init__(self, group: Members, random: Random) -> None:
        self._group = group
        self._random = random
        self.sent: list[bytes] = []
        self.stored_count = 0
        self._epoch = 0

    def step(self) -> None:
        """Looks at what was answered, and asks anyone who serves."""
        group = self._group
        for node in group.nodes.values():
            for peer, answer, _ in node.heard:
                if peer == "ann":
                    self._hear(answer)
            node.heard.clear()
        serving = [group.nodes[number] for number in group.serving()]
        if not serving or self._random.random() < 0.7:
            return
        node = self._random.choice(serving)
        if not self._epoch:
            group.say(node, messages.Hello(1, messages.VERSION, "ann", b"token"), peer="ann")
            return
        if self.stored_count == len(self.sent):
            self.sent.append(b"%d" % len(self.sent))
        sequence = self.stored_count + 1
        group.say(node, *put("ann", self._epoch, sequence, self.sent[-1], request=sequence + 1), peer="ann")

    def _hear(self, answer: object) -> None:
        match answer:
            case messages.Welcome():
                self._epoch = answer.epoch
            case messages.PutDone() if answer.request == self.stored_count + 2:
                self.stored_count += 1
            case messages.Failed():
                raise AssertionError(answer.text)


def disturb(group: Members, random: Random) -> None:
    """Something goes wrong, or right again; at most one member at a time is cut off or has lost power."""
    node = random.choice(list(group.nodes.values()))
    match random.choice(("cut", "cut leader", "heal", "slow", "fast", "kill", "power")):
        case "cut":
            group.cut = {node.identity.number}
        case "cut leader":
            group.cut = set(group.serving()[:1])
        case "heal":
            group.cut = set()
        case "slow":
            node.disk_is_slow = True
        case "fast":
            node.disk_is_slow = False
        case "kill":
            node.restart(group.now_ms)
        case "power":
            node.restart(group.now_ms, power_cut=True)


def heal(group: Members) -> None:
    group.cut = set()
    for node in group.nodes.values():
        node.disk_is_slow = False


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_acknowledged_is_everywhere_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    group = Members(
        broker=BrokerSettings(retain_bytes=10**9),
        journal=JournalSettings(segment_records_max=random.choice((8, 30, 1_000))),
        replica=ReplicaSettings(batch_values_max=random.choice((2, 256)), piece_bytes_max=500),
    )
    publisher = Publisher(group, random)
    for _ in range(STEPS):
        if random.random() < 0.08:
            disturb(group, random)
        publisher.step()
        group.step()
    heal(group)
    count = publisher.stored_count

    def goes_on() -> bool:
        publisher.step()
        return publisher.stored_count >= count + 3

    group.wait(goes_on, "it goes on")
    group.pass_ms(1_000)
    acknowledged = publisher.sent[: publisher.stored_count]
    for node in group.nodes.values():
        stored = values_of(node)
        assert stored[: len(acknowledged)] == acknowledged
        assert stored in (acknowledged, publisher.sent)
        assert node.engine.staged_bytes == 0
    for node in group.nodes.values():
        before = values_of(node)
        node.restart(group.now_ms)
        assert values_of(node) == before[: len(values_of(node))]
