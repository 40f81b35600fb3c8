"""A world with clients in it: who they are, what they have to publish, and when all of it is done.

What the clients are connected to is not said here: one broker (`world.World`), or the nodes of a replica group
(`cluster.world.ClusterWorld`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from tidings.settings import ClientSettings
from tidings.simulator.client import Client, ClientProcess
from tidings.simulator.planting import PROGRESS
from tidings.simulator.publishers import Script
from tidings.simulator.timeline import Timeline
from tidings.simulator.watch import Watch
from tidings.wire.codec import Frame

QUIET_MS = 1_000
"""How long a broker may take over the last thing that the network had held back."""


class ClientNetwork(Protocol):
    """What clients need of a network."""

    def connect(self, process: ClientProcess) -> None:
        """A new connection for a process; the old one, if any, is gone."""

    def disconnect(self, process: ClientProcess) -> None:
        """The process has gone."""

    def send_to_broker(self, process: ClientProcess, frames: Sequence[Frame]) -> None:
        """Sends over the connection that the process has."""


class PopulatedWorld(Timeline):
    """The half of a world that its clients see."""

    watch: Watch

    def __init__(self, random: Random, client: ClientSettings, acked_ms: int) -> None:
        super().__init__(random)
        self.client_settings = client
        self.clients: dict[str, Client] = {}
        self.scripts: list[Script] = []
        self._quiet_ms = acked_ms + QUIET_MS

    @property
    def doors(self) -> ClientNetwork:
        """The network that leads to the node that serves the clients."""
        raise NotImplementedError

    def draw_address(self) -> str:
        """The address that a new process of a client is given."""
        return "the broker"

    def may_overlap(self, process: ClientProcess) -> bool:
        """Whether a process may live on beside the next one of its name."""
        return True

    def drained(self, client: str, topics: tuple[str, ...]) -> bool:
        """Whether everything has been published and a subscriber has been handed all of it."""
        return self.is_quiet and not self.watch.once.missing((client, topics))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing more will be published: even what the network held back longest has arrived."""
        return self.now_ms > self._quiet_ms and all(script.done for script in self.scripts)

    def check_progress(self) -> None:
        """All clients must have come to their end."""
        stuck = [name for name, client in self.clients.items() if not client.finished]
        if stuck:
            unpublished = [script.publisher for script in self.scripts if not script.done]
            waiting = {key: missing for key in self.watch.once.modes if (missing := self.watch.once.missing(key))}
            self.watch.violate(
                PROGRESS,
                f"{', '.join(stuck)} did not come to an end; publishing: {unpublished}; not handed out: {waiting}",
            )
