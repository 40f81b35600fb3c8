"""A second process on a copy of a node's folder."""

from __future__ import annotations

from random import Random

from tidings.simulator.world.process import RETRY_MS
from tidings_lab.simulated_replicas.node import REFUSALS_MAX, Host, Node


class ForkedNode(Node):
    """A process on a copy of a node's folder, under the same number, beside the node itself."""

    def __init__(self, world: Host, node: Node, older: bool) -> None:
        super().__init__(world, node.number, node._founded)
        self.name = f"fork of {node.name}"
        self.on_copy = True
        self._random = Random(node.number)  # What it draws is no part of what else happens.
        self.disk = node.copied(older)

    def on_refused_copy(self) -> None:
        self._refusals += 1
        if self._refusals < REFUSALS_MAX:  # Then the one who started it has read what it says.
            self._world.after(RETRY_MS, self.start)

    def check(self) -> None:
        """It is not there long enough."""
