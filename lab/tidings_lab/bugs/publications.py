"""Planted bugs of stages on a ring: what is counted, remembered and moved when several groups publish a batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tidings.node.ring import commits as node_commits
from tidings.protocols.ring import committing
from tidings.protocols.ring.commit_attempts import Publication
from tidings.protocols.ring.commit_coordinator import CommitCoordinator
from tidings.protocols.ring.facts import Fact, Published, Staged
from tidings.protocols.ring.transfer_facts import Transfer
from tidings.simulator.checkers.ring_cluster import NothingLeftBehind
from tidings.simulator.checkers.rules import BATCHES, PROGRESS, TWICE
from tidings.simulator.planting import mutant, patched

BEHIND = NothingLeftBehind.RULE

_mutant = partial(mutant, world="ring-cluster")


def _without(kind: type) -> Any:
    """The facts of a topic, but for those of one kind."""

    def make(facts_of_topic: Any) -> Any:
        def planted(self: Transfer, name: str) -> Iterator[Fact]:
            return (fact for fact in facts_of_topic(self, name) if not isinstance(fact, kind))

        return planted

    return make


@_mutant("stages-stay-behind", "what is staged does not move with its topic", BEHIND)
def _stages_stay_behind() -> Iterator[None]:
    with patched(Transfer, "facts_of_topic", _without(Staged)):
        yield


@_mutant("queries-stay-behind", "what was published for a query does not move with its home", BEHIND, BATCHES, TWICE)
def _queries_stay_behind() -> Iterator[None]:
    with patched(Transfer, "facts_of_topic", _without(Published)):
        yield


@_mutant("publish-uncounted", "a batch is published with what the owners have of it, which may not be all", BATCHES)
def _publish_uncounted() -> Iterator[None]:
    with patched(Publication, "check_held", lambda _: lambda self, shares: None):
        yield


@_mutant(
    "decide-and-forget",
    "the home of a query decides, and does not remember the batch",
    BEHIND,
    BATCHES,
    TWICE,
    PROGRESS,
)
def _decide_and_forget() -> Iterator[None]:
    def make(on_decide: Any) -> Any:
        def planted(machine: Any, ring: Any, command: Any, time_ms: int) -> Any:
            before = dict(machine.stages.queries)
            happens = on_decide(machine, ring, command, time_ms)
            machine.stages.queries = before
            return happens

        return planted

    with patched(committing, "_on_decide", make):
        yield


@_mutant("repeated-too-early", "who repeats a publish is answered before all owners have carried it out", BATCHES)
def _repeated_too_early() -> Iterator[None]:
    with patched(CommitCoordinator, "has_begun", lambda _: lambda self, client: False):
        yield


@_mutant(
    "one-record-for-all", "a group publishes what it has by one record, and not what others have", BATCHES, PROGRESS
)
def _one_record_for_all() -> Iterator[None]:
    with patched(node_commits, "publishes_alone", lambda _: lambda ring, client, stages: True):
        yield
