"""A world with clients in it: who they are, what they have to publish, and when all of it is done.

What the clients are connected to is not said here: the nodes of `world.World`, or those of `ring.service`.
"""

from __future__ import annotations

from random import Random

from tidings.settings import ClientSettings
from tidings.simulator.checkers.rules import PROGRESS
from tidings.simulator.checkers.watch import Watch
from tidings.simulator.clients.client import Client, ClientNetwork, ClientProcess
from tidings.simulator.clients.publishers import Script
from tidings.simulator.world.timeline import Timeline

QUIET_MS = 1_000
"""How long a broker may take over the last thing that the network had held back."""


class PopulatedWorld(Timeline):
    """The half of a world that its clients see."""

    watch: Watch

    def __init__(self, random: Random, client: ClientSettings, acked_ms: int) -> None:
        super().__init__(random)
        self.client_settings = client
        self.clients: dict[str, Client] = {}
        self.scripts: list[Script] = []
        self._quiet_ms = acked_ms + QUIET_MS
        self.idle_ms = 0
        """How long a topic that is no longer used may take to go, if such topics do."""

    @property
    def doors(self) -> ClientNetwork:
        raise NotImplementedError

    def draw_address(self) -> str:
        raise NotImplementedError

    def may_overlap(self, process: ClientProcess) -> bool:
        return True

    def drained(self, client: str, topics: tuple[str, ...]) -> bool:
        return self.is_quiet and not self.watch.once.missing((client, topics))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing more will be published: even what the network held back longest has arrived."""
        return self.now_ms > self._quiet_ms and all(script.is_over for script in self.scripts)

    def check_progress(self) -> None:
        """All clients must have come to their end."""
        stuck = [name for name, client in self.clients.items() if not client.finished]
        if stuck:
            unpublished = [script.publisher for script in self.scripts if not script.is_over]
            waiting = {key: missing for key in self.watch.once.modes if (missing := self.watch.once.missing(key))}
            self.watch.violate(
                PROGRESS,
                f"{', '.join(stuck)} did not come to an end; publishing: {unpublished}; not handed out: {waiting}",
            )
