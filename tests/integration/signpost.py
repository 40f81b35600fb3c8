"""A member of a replica group that does not lead, and a broker that moves: what clients see of a failover."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Self

import zmq

from tests.integration.broker_process import BrokerProcess
from tidings.protocols.broker.messages import NotLeader
from tidings.transport import curve
from tidings.wire import codec


class Signpost:
    """Answers every request with Elsewhere, and takes none."""

    def __init__(self, keys: Path | None = None) -> None:
        self.leader = ""
        self.asked: Counter[str] = Counter()
        """How often each kind of request has come."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = None if keys is None else curve.Authenticator(self._context, keys)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        if keys is not None:
            curve.configure_server(self._socket, keys)
        self.address = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._socket.poll(50):
                peer, header, *_ = self._socket.recv_multipart()
                request = codec.decode_request(header)
                self.asked[type(request).__name__] += 1
                leader = self.leader
                members = (self.address, leader) if leader else (self.address,)
                self._socket.send_multipart([peer, codec.encode(NotLeader(request.request, leader, members))])

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()
        if self._authenticator is not None:
            self._authenticator.close()
        self._context.term()


class MovingBroker:
    """A broker whose every life has another port, and signposts that know where it is, sooner or later."""

    def __init__(self, data: Path, *arguments: str, signposts: int = 2, keys: Path | None = None) -> None:
        self._data = data
        self._arguments = arguments if keys is None else (*arguments, "--keys", str(keys))
        self.signposts = [Signpost(keys) for _ in range(signposts)]
        self.address = ",".join(signpost.address for signpost in self.signposts)
        self.broker = BrokerProcess(data, *self._arguments)

    def kill(self) -> None:
        self.broker.kill()

    def move(self, noticed: bool = True) -> None:
        """Kills the broker and starts it elsewhere; until then the signposts say nobody leads, or still the old one."""
        self.broker.kill()
        if noticed:
            self._point_to("")
        self.start()

    def start(self) -> None:
        self.broker = BrokerProcess(self._data, *self._arguments).start()
        self._point_to(self.broker.address)

    def _point_to(self, leader: str) -> None:
        for signpost in self.signposts:
            signpost.leader = leader

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.broker.kill()
        for signpost in self.signposts:
            signpost.close()
