"""A replica group of real processes, whose members are killed, stopped, cut off and exchanged one by one."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

from tests.integration.broker_process import ServerProcess
from tests.integration.cuttable import CuttableNetwork
from tidings.admin.ports import free_address
from tidings.protocols.broker.messages import AnyAnswer, AnyRequest, AskTopics, NotLeader, Topics
from tidings.protocols.broker.operators import AddMember, AskMembers, Members, RemoveMember
from tidings.transport.zeromq import DealerLink
from tidings.wire.codec import decode_answer, encode

T = TypeVar("T")

WAIT_SECONDS_MAX = 60.0
ASK_MS_MAX = 1_000


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def wait_for(what: str, look: Callable[[], T | None], tell: Callable[[], str] = str) -> T:
    """The first thing that `look` finds; a condition that is never met ends the test, with what `tell` says then."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited in vain for {what}\n{tell()}"
        time.sleep(0.02)


def ask(address: str, request: AnyRequest, timeout_ms: int = ASK_MS_MAX) -> AnyAnswer | None:
    """What a member answers, whatever it is; None if it is silent."""
    link = DealerLink(address)
    try:
        link.send([encode(request)])
        frames = link.receive(timeout_ms)
        return decode_answer(frames[0]) if frames else None
    finally:
        link.close()


class Node(ServerProcess):
    """One member, on a folder and an address that stay its own."""

    def __init__(
        self,
        data: Path,
        address: str,
        *arguments: str,
        public: str | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        advertised = ("--advertise", public) if public is not None else ()
        super().__init__("serve", "--data", str(data), *arguments, *advertised, settings=settings)
        self._bind = address
        self.data = data
        self.public = public or address
        """Where others reach it, which is somewhere else if a proxy stands before it."""

    @property
    def port(self) -> int:
        return port_of(self.address)

    @property
    def running(self) -> bool:
        return self._process is not None

    def freeze(self) -> None:
        """SIGSTOP: it stands still, and nothing tells the others."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def hear(self) -> str:
        """The next line that it says."""
        assert self._process is not None and self._process.stderr is not None
        return self._process.stderr.readline()

    def lose_disk(self) -> None:
        assert not self.running
        shutil.rmtree(self.data)

    @property
    def number(self) -> int:
        return wait_for("a member", self.members).number

    def members(self) -> Members | None:
        """The group as this member knows it."""
        answer = ask(self.address, AskMembers(1))
        return answer if isinstance(answer, Members) else None

    def serves(self) -> bool:
        """Whether it answers for the group, which only a leader does that a majority has confirmed."""
        return isinstance(ask(self.address, AskTopics(1)), Topics)


class ReplicaGroup:
    """The members of one group. Everything that was started is ended."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        settings: dict[str, str] | None = None,
        network: CuttableNetwork | None = None,
    ) -> None:
        self._folder = folder
        self._settings = settings
        addresses = [free_address() for _ in range(size)]
        publics = addresses if network is None else [free_address() for _ in range(size)]
        self.nodes = [
            self._make(address, public, "--group", ",".join(publics))
            for address, public in zip(addresses, publics, strict=True)
        ]
        self._network = network
        for node in self.nodes if network is not None else ():
            network.place(node.public, node.port)

    def cut_off(self, lonely: Node, way: str) -> None:
        """Cuts a member off from the others: isolated, mute (they do not hear it) or deaf (it does not hear them)."""
        assert self._network is not None
        for other in self.nodes:
            if other is not lonely and way != "deaf":
                self._network.cut((lonely.number, other.public))
            if other is not lonely and way != "mute":
                self._network.cut((other.number, lonely.public))

    def _make(self, address: str, public: str, *arguments: str) -> Node:
        folder = self._folder / f"node{port_of(address)}"
        return Node(folder, address, *arguments, public=public, settings=self._settings)

    @property
    def address(self) -> str:
        """All of them, for a client."""
        return ",".join(node.public for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.wait_until_ready()
            self.leader()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes:
            node.kill()

    def _running(self) -> Iterator[Node]:
        return (node for node in self.nodes if node.running)

    def leader(self, among: Callable[[Node], bool] = lambda node: True) -> Node:
        """The member that leads; waits until one does."""
        return wait_for(
            "a leader", lambda: next((node for node in self._running() if among(node) and node.serves()), None)
        )

    def followers(self) -> list[Node]:
        leader = self.leader()
        return [node for node in self._running() if node is not leader]

    def wait_until_level(self) -> None:
        """Until all members that run have applied the same log."""

        def look() -> bool:
            found = [node.members() for node in self._running()]
            return None not in found and len({each.applied for each in found if each is not None}) == 1

        wait_for("all members to catch up", look)

    def wait_for_voters(self, count: int) -> Members:
        """Until every member that runs knows so many voters, and nobody else."""

        def look() -> Members | None:
            found = [node.members() for node in self._running()]
            for each in found:
                if each is None or [member.role for member in each.members] != ["voter"] * count:
                    return None
            return found[0]

        return wait_for(f"{count} voters", look, self._tell)

    def _tell(self) -> str:
        """What each member says, and what it said when it ended."""
        said = [(node, node.members()) for node in self.nodes]
        return "\n".join(f"{node.public}: {members or node.last_words()}" for node, members in said)

    # Members come and go.

    def join(self) -> Node:
        """Starts a node that asks to be taken in, and has it taken in; it votes when this returns."""
        address = free_address()
        node = self._make(address, address, "--into", self.address)
        node.launch()
        self.nodes.append(node)
        self._change(AddMember(1, node.public))
        node.wait_until_ready()
        return node

    def remove(self, node: Node) -> None:
        """Takes a member out, and ends it in good order."""
        self._change(RemoveMember(1, node.public))
        assert node.stop() == 0, node.log
        self.nodes.remove(node)

    def _change(self, request: AddMember | RemoveMember) -> None:
        """Asks the leader, again and again: only the end of a change is answered by `Members`."""

        def look() -> bool:
            answer = ask(self.leader().address, request, 10_000)
            return isinstance(answer, Members)

        wait_for(f"{request}", look)


def is_rejected(answer: AnyAnswer | None) -> bool:
    """Whether a member said that somebody else has to be asked, or nothing at all."""
    return answer is None or isinstance(answer, NotLeader)
