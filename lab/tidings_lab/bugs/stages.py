"""Planted bugs of stages and ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tidings.node import alone
from tidings.protocols.broker import bulk, ranges, retention, staging
from tidings.protocols.broker.bulk import Read
from tidings.protocols.broker.commands import Publish
from tidings.protocols.broker.commands import Stage as StageCommand
from tidings.protocols.broker.machine import Machine
from tidings.protocols.broker.staged import Stage, StagesState
from tidings.protocols.broker.stages import Stages
from tidings.protocols.effects import Forward, Send
from tidings.simulator.checkers.rules import ASSERTIONS, BATCHES, LOST, RANGES, RECOVERY, TWICE
from tidings.simulator.planting import mutant, patched

WORLD = "stages"


@mutant("forget-published", "the last batch of a query is not remembered", BATCHES, TWICE, world=WORLD)
def _forget_published() -> Iterator[None]:
    with patched(Stages, "is_published", lambda _: lambda self, query, batch, sink="": False):
        yield


@mutant("stage-twice", "a batch that is sent again to a stage is stored again", BATCHES, TWICE, world=WORLD)
def _stage_twice() -> Iterator[None]:
    def add(original: Any) -> Any:
        def planted(self: Stages, machine: Machine, command: StageCommand, time_ms: int, address: int) -> bool:
            stage = self.stages.get(command.stage)
            if stage is not None and command.number <= len(stage.batches):
                command = msgspec.structs.replace(command, number=len(stage.batches) + 1)
            published: bool = original(self, machine, command, time_ms, address)
            return published

        return planted

    def unchecked(original: Any) -> Any:
        def planted(self: Stages, machine: Machine, command: Publish) -> list[Stage]:
            return [self.stages[each.name] for each in command.stages if each.name in self.stages]

        return planted

    with patched(Stages, "add", add), patched(Stages, "_named", unchecked):
        yield


@mutant("publish-all-attempts", "a publish takes every stage of its batch", BATCHES, TWICE, world=WORLD)
def _publish_all_attempts() -> Iterator[None]:
    def make(original: Any) -> Any:
        def planted(self: Stages, machine: Machine, command: Publish) -> list[Stage]:
            return [each for each in self.stages.values() if (each.query, each.batch) == (command.query, command.batch)]

        return planted

    with patched(Stages, "_named", make):
        yield


@mutant("snapshot-without-stages", "a restart forgets what is staged and published", RECOVERY, world=WORLD)
def _snapshot_without_stages() -> Iterator[None]:
    with patched(Stages, "state", lambda _: lambda self: StagesState()):
        yield


@mutant("stages-are-not-kept", "retention removes segments with staged bodies", LOST, RANGES, ASSERTIONS, world=WORLD)
def _stages_are_not_kept() -> Iterator[None]:
    def make(original: Any) -> Any:
        def planted(machine: Machine, end_address: int) -> int:
            return min((each.lowest_address for each in machine.topics.values() if each.offsets), default=end_address)

        return planted

    with (
        patched(retention, "lowest_address", make),
        patched(alone, "lowest_address", make),
        patched(Stages, "places", lambda _: lambda self: ()),
    ):
        yield


@mutant("read-shuffled", "the bodies of a range come in another order than is said", RANGES, ASSERTIONS, world=WORLD)
def _read_shuffled() -> Iterator[None]:
    def make(original: Any) -> Any:
        def planted(machine: Machine, peer: Any, message: Read) -> Forward:
            found: Forward = original(machine, peer, message)
            if len(found.places) > 1:
                return msgspec.structs.replace(found, places=(*found.places[1:], found.places[0]))
            return found

        return planted

    with patched(ranges, "read", make):
        yield


@mutant("publish-before-durable", "a publish is answered before it is durable", BATCHES, world=WORLD)
def _publish_before_durable() -> Iterator[None]:
    def make(original: Any) -> Any:
        def planted(machine: Machine, peer: Any, message: Any, origin: Any) -> list[Any]:
            effects: list[Any] = original(machine, peer, message, origin)
            if isinstance(message, bulk.Publish):
                effects.append(Send(peer, bulk.PublishDone(message.request, False)))
            return effects

        return planted

    with patched(staging, "on_publish", make):
        yield
