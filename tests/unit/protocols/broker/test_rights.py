"""Every kind of request has a right, and what changes the cluster takes an administrator's key."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.unit.node.members import Members
from tests.unit.node.rings import Rings
from tidings.errors import Unauthorized
from tidings.protocols.broker import messages, operators
from tidings.protocols.broker.rights import DEEDS, RIGHTS, Right, check_right
from tidings.settings import BrokerSettings
from tidings.wire import codec

KINDS = tuple(get_args(messages.AnyRequest))
ROOT = BrokerSettings(admins=("root",))


def test_every_kind_of_request_is_in_the_table() -> None:
    assert set(RIGHTS) == set(KINDS)
    assert set(DEEDS) == {kind for kind, right in RIGHTS.items() if right is Right.ADMIN}


@pytest.mark.parametrize("kind", KINDS)
def test_what_names_a_client_is_that_client_s_or_an_administrator_s(kind: type) -> None:
    names_client = "client" in kind.__struct_fields__  # type: ignore[attr-defined]
    assert RIGHTS[kind] is not Right.CLIENT or names_client
    assert not (RIGHTS[kind] is Right.ANYBODY and names_client)


@pytest.mark.parametrize(
    "message",
    [
        operators.AddMember(7, "x"),
        operators.RemoveMember(7, "2"),
        operators.LeaveRing(7),
        messages.LimitTopic(7, "news", 2),
    ],
)
def test_a_cluster_is_changed_by_its_administrators(message: messages.AnyRequest) -> None:
    with pytest.raises(Unauthorized, match=r"'ann' may not (take|limit) .*: serve it with --admin ann"):
        check_right(ROOT.admins, "ann", message)
    check_right(ROOT.admins, "root", message)
    check_right(ROOT.admins, None, message)


def test_the_key_of_a_client_does_not_shrink_a_group() -> None:
    group = Members(broker=ROOT)
    leader, victim = group.leader(), group.followers()[0]
    request = operators.RemoveMember(7, victim.address)
    for node in (leader, victim):
        node.engine.receive(group.now_ms, "operator", [codec.encode(request)], "ann")
        group.pass_ms(1_000)
        assert len(leader.engine.log.voters) == 3, "any client's key shrinks the group"
        [refused] = [each for peer, each, _ in node.heard if peer == "operator"]
        assert refused.number == Unauthorized.number
    leader.engine.receive(group.now_ms, "operator", [codec.encode(request)], "root")
    group.wait(lambda: len(leader.engine.log.voters) == 2, "an administrator's word counts")


def test_the_key_of_a_client_does_not_take_a_group_out_of_its_ring() -> None:
    ring = Rings(groups=2, settings=ROOT)
    leaver = ring.groups[1][0]
    leaver.engine.receive(ring.now_ms, b"operator", [codec.encode(operators.LeaveRing(6))], "ann")
    ring.pass_ms(5_000)
    assert ring.owns(ring.groups[1]), "any client's key takes a group out of its ring"
    assert ring.answer(leaver, b"operator", 6).number == Unauthorized.number
    leaver.engine.receive(ring.now_ms, b"root", [codec.encode(operators.LeaveRing(7))], "root")
    ring.wait(lambda: ring.answer(leaver, b"root", 7) is not None, "an administrator's word counts")
    assert isinstance(ring.answer(leaver, b"root", 7), operators.RingLeft)
