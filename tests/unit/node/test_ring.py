"""Nodes of a ring (P7, P8, P12): any node serves any client, and the owner of a topic has the last word."""

from __future__ import annotations

import pytest

from tests.unit.node.rings import Rings, topic_in
from tidings.message import Columns
from tidings.protocols.broker import messages


@pytest.mark.parametrize("size", [1, 3])
def test_every_node_of_one_group_serves(size: int) -> None:
    """P8: a put that comes in anywhere is stored by whoever leads the owner."""
    ring = Rings(1, size)
    for number, node in enumerate(ring.nodes.values()):
        epoch = ring.hello(node, f"ann{number}")
        assert isinstance(ring.put(node, f"ann{number}", epoch, "news", b"hello"), messages.PutDone)
    assert ring.values("news") == [b"hello"] * size
