"""A scenario is data: the nodes, the network, and what happens step by step. It can be read from a TOML file.

    [[steps]]
    do = "crash"
    share = 0.8

The files that come with it lie in the folder `scenarios` beside this module.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from tidings.errors import InvalidRequest
from tidings.settings import GossipSettings, HeartbeatSettings, HyParViewSettings
from tidings_lab.simulated_overlay.world import NetworkModel

T = TypeVar("T")

FOLDER = Path(__file__).with_name("scenarios")


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do"):
    """One thing after another; a step says how long it takes."""


class Wait(Step, frozen=True, tag="wait"):
    """Let time pass."""

    ms: int


class Publish(Step, frozen=True, tag="publish"):
    """Messages, one every `every_ms`, then `drain_ms` for them to arrive. Makes a row of figures."""

    label: str
    count: int = 10
    every_ms: int = 200
    drain_ms: int = 3_000
    warm_up: int = 0
    """Messages before those that are counted: they shape the tree."""
    payloads_max: float | None = None
    """How often a message may be sent in full for each delivery; 1.0 is a perfect tree."""


class Crash(Step, frozen=True, tag="crash"):
    """A share of the live nodes, drawn by lot, fails at once."""

    share: float


class Restart(Step, frozen=True, tag="restart"):
    """A share of the nodes that are down come up again, under their names, with empty memories."""

    share: float


class Cut(Step, frozen=True, tag="cut"):
    """A share of the nodes is cut off from the others, until a heal."""

    share: float


class Heal(Step, frozen=True, tag="heal"):
    """The network is whole again."""


class Churn(Step, frozen=True, tag="churn"):
    """For a time, beside the steps that follow, nodes crash and new ones join."""

    for_ms: int
    crash_every_ms: int
    join_every_ms: int


class CheckViews(Step, frozen=True, tag="check-views"):
    """The views must be mutual, connected and within their bounds by now.

    A link may be one-sided for `grace_ms`: by default, a little longer than the failure detector takes.
    """

    grace_ms: int | None = None


class CheckDelivery(Step, frozen=True, tag="check-delivery"):
    """Every message must have come to every node that it is owed to by now."""


AnyStep = Wait | Publish | Crash | Restart | Cut | Heal | Churn | CheckViews | CheckDelivery


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A world and what happens in it."""

    name: str
    about: str = ""
    nodes: int = 100
    join_every_us: int = 1_000
    """One node starts after another."""
    contacts: int = 3
    """Nodes, drawn from those that are up, by which a node joins."""
    topics: int = 3
    detector: Literal["world", "heartbeat"] = "world"
    """Who notices failures: the world, which costs nothing, or real heartbeats."""
    network: NetworkModel = NetworkModel()
    hyparview: HyParViewSettings = HyParViewSettings()
    gossip: GossipSettings = GossipSettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    steps: tuple[AnyStep, ...] = ()


def load(name: str) -> Scenario:
    """A scenario that comes with the lab, by its name.

    >>> load("calm").nodes
    100
    """
    return read(FOLDER / f"{name}.toml")


def read(path: str | Path) -> Scenario:
    """A scenario from a file."""
    return read_as(Scenario, Path(path), FOLDER)


def read_as(kind: type[T], path: Path, folder: Path) -> T:
    """A scenario of any kind from a file; `folder` has those that come with the lab, to be named if there is none."""
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise InvalidRequest(f"There is no scenario {path.stem}: choose one of {known}.")
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), kind)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InvalidRequest(f"{path.name} is not a scenario ({error}): mend it.") from error
