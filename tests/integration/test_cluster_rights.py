"""A group and a ring of real processes are changed by the key of an administrator, and by no client's (P6, P9)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import NodeProcess
from tests.integration.replica_group import Node, free_address, wait_for
from tidings.admin.asking import Asking
from tidings.admin.survey import look
from tidings.protocols.broker import operators
from tidings.transport.curve import client_options, create_client_keys, create_server_keys

PATIENT = {"timeout": 5.0, "retries": 12}
CHANGE_SECONDS = 60.0


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Keys of the members, of a client and of an administrator."""
    folder = tmp_path / "keys"
    create_server_keys(folder)
    for name in ("replica", "alice", "root"):
        create_client_keys(folder, name)
    return folder


def test_a_client_does_not_shrink_a_group(tmp_path: Path, keys: Path) -> None:
    """Three members stay three, whichever of them is asked; an administrator takes one out."""
    addresses = [free_address() for _ in range(3)]
    arguments = ("--group", ",".join(addresses), "--keys", str(keys), "--admin", "root")
    nodes = [Node(tmp_path / f"node{number}", each, *arguments) for number, each in enumerate(addresses)]
    alice, root = (Asking(addresses, client_options(keys, name)) for name in ("alice", "root"))
    try:
        for node in nodes:
            node.launch()
        with tidings.connect(",".join(addresses), "alice", keys=keys, **PATIENT) as bus:
            bus.put("news", "one")
            refusals = []
            for address in addresses[1:]:
                try:
                    alice.ask_leader(operators.RemoveMember(1, address), operators.Members, CHANGE_SECONDS, "")
                except tidings.Unauthorized as error:
                    refusals.append(str(error))
            assert [member.role for member in root.first_view().members] == ["voter"] * 3
            assert len(refusals) == 2
            assert all("'alice' may not take members out of this group" in text for text in refusals)
            with pytest.raises(tidings.Unauthorized, match="'alice' may not take members into this group"):
                alice.ask_leader(
                    operators.AddMember(1, free_address()), operators.Members, CHANGE_SECONDS, "try again."
                )
            left = root.ask_leader(operators.RemoveMember(1, "3"), operators.Members, CHANGE_SECONDS, "try again.")
            assert [member.number for member in left.members] == [1, 2]
            assert bus.put("news", "two").offset == 1
    finally:
        for node in nodes:
            node.kill()


def test_a_client_does_not_take_a_group_out_of_its_ring(tmp_path: Path, keys: Path) -> None:
    """Two groups of one node; what the second owns stays its own until an administrator says otherwise."""
    addresses = [free_address() for _ in range(2)]
    nodes = []
    for number, address in enumerate(addresses):
        joining = ("--join", addresses[0]) if number else ()
        arguments = ("--group", address, *joining, "--keys", str(keys), "--admin", "root")
        node = NodeProcess(tmp_path / f"node{number}", *arguments)
        node._bind = address
        nodes.append(node)
    alice, root = (Asking(addresses[1:], client_options(keys, name)) for name in ("alice", "root"))
    everywhere = Asking(addresses, client_options(keys, "root"))

    def shares() -> dict[str, bool]:
        """The groups that there are, by their one node, and whether each owns something."""
        with contextlib.suppress(tidings.Unavailable):  # Nobody answers yet.
            return {group.members[0]: bool(group.ranges) for group in look(everywhere).groups}
        return {}

    try:
        for node in nodes:
            node.launch()
        wait_for("both groups to own something", lambda: shares() == dict.fromkeys(addresses, True))
        answer = alice.ask(addresses[1], operators.LeaveRing(1), CHANGE_SECONDS)
        assert not isinstance(answer, operators.RingLeft), "any client's key takes a group out"
        with pytest.raises(tidings.Unauthorized, match="'alice' may not take this group out of the ring"):
            alice.ask_leader(operators.LeaveRing(1), operators.RingLeft, CHANGE_SECONDS, "try again.")
        assert shares() == dict.fromkeys(addresses, True)
        root.ask_leader(operators.LeaveRing(1), operators.RingLeft, CHANGE_SECONDS, "try again.")
        wait_for("one group to own everything", lambda: shares() == {addresses[0]: True})
    finally:
        for node in nodes:
            node.kill()
