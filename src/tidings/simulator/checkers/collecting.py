"""A topic goes with its messages only if nobody uses it and nobody can miss them.

Clocks are set back, and the journal keeps the order: what was stored before something else is at least as old.
"""

from __future__ import annotations

from tidings.protocols.broker import commands
from tidings.protocols.broker.subscriptions import SubscriptionKey
from tidings.simulator.checkers.checker import Checker
from tidings.simulator.checkers.ledger import Existing, Ledger


class OnlyUnusedGo(Checker):
    RULE = "only unused topics go"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._starts: dict[SubscriptionKey, dict[str, int]] = {}
        self._acked: dict[str, set[int]] = {}
        """topic -> the offsets that a reader has acknowledged for which they were meant."""
        self._times: dict[str, list[int]] = {}
        """topic -> when each of its messages was stored."""
        self._untouched_ms: dict[str, int] = {}
        """topic -> since when nothing has been put to it: the earliest time that a clock has said since."""
        self._ids_at_ms: dict[str, int] = {}
        """topic -> when an id was last put to it."""
        self._firsts: dict[str, int] = {}
        """topic -> the first offset that retention has left."""

    def on_existing(self, existing: Existing) -> None:
        if existing.error is not None:
            return
        command = existing.command
        self._untouched_ms = {topic: min(at_ms, existing.time_ms) for topic, at_ms in self._untouched_ms.items()}
        for topic, _, _ in existing.stored:
            self._times.setdefault(topic, []).append(existing.time_ms)
            self._untouched_ms[topic] = existing.time_ms
        if isinstance(command, commands.Write):
            self._on_write(existing, command)
        elif isinstance(command, commands.Subscribe):
            assert isinstance(existing.result, tuple)
            positions, created = existing.result
            if created:
                self._starts[command.client, command.topics] = {each.topic: each.offset for each in positions}
        elif isinstance(command, commands.Trim):
            self._firsts |= {each.topic: self.ledger.first_kept(each.topic) for each in command.positions}
        elif isinstance(command, commands.Collect):
            for position in command.unused:
                if position.topic not in self.ledger.reference.topics:
                    self._check(position.topic, existing.time_ms)

    def _on_write(self, existing: Existing, command: commands.Write) -> None:
        for acknowledgement in command.acknowledgements:
            starts = self._starts[command.client, acknowledgement.topics]
            for position in acknowledgement.positions:
                acked = self._acked.setdefault(position.topic, set())
                acked.update(range(starts[position.topic], position.offset))
        if any(batch.ids is not None for batch in command.batches):
            self._ids_at_ms |= {topic: existing.time_ms for topic, _, _ in existing.stored}

    def _check(self, topic: str, now_ms: int) -> None:
        machine = self.ledger.reference
        settings = machine.settings
        times, acked = self._times.get(topic, []), self._acked.get(topic, set())
        if machine.readers.get(topic) or machine.groups_of.get(topic):
            self.broken(f"{topic} has readers and is gone")
        if machine.retired.get(topic, 0) != len(times):
            self.broken(f"{topic} is gone, and its next offset is {machine.retired.get(topic, 0)}, not {len(times)}")
        since_ms = now_ms - times[-1] if times else None  # Below 0: the clock was set back since, and says nothing.
        if settings.topic_idle_ms is None or (since_ms is not None and 0 <= since_ms <= settings.topic_idle_ms):
            self.broken(f"{topic} is gone {since_ms} ms after the last put to it")
        if topic in self._ids_at_ms and now_ms - self._ids_at_ms[topic] <= settings.ids_age_ms:
            self.broken(f"{topic} is gone with ids that may come again")
        least_ms = now_ms
        for offset in reversed(range(self._firsts.get(topic, 0), len(times))):
            least_ms = min(least_ms, times[offset])
            expired = settings.retain_age_ms is not None and least_ms < now_ms - settings.retain_age_ms
            if offset not in acked and not expired:
                self.broken(f"{topic} is gone, and nobody ever acknowledged what was at {offset}")
