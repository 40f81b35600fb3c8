"""`connect`, and the ZeroMQ link behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

import tidings
from tidings.client import connect
from tidings.client.route import is_address
from tidings.errors import InvalidRequest, Unavailable
from tidings.protocols.broker import messages as m
from tidings.transport.zeromq import DealerLink
from tidings.wire import codec


@pytest.fixture
def router() -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.rcvtimeo = 5_000
    socket.bind("tcp://127.0.0.1:*")
    yield socket
    socket.close()
    context.term()


def address_of(router: zmq.Socket[bytes]) -> str:
    return bytes(router.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


@pytest.mark.parametrize("address", ["localhost", "tcp://localhost", "http://x:80", "tcp://a b:1", "data/"])
def test_a_wrong_address_is_said_to_be_one(address: str) -> None:
    with pytest.raises(InvalidRequest, match="tcp://HOST:PORT"):
        connect(address)


@pytest.mark.parametrize("more", ["", "b:7400", "ipc:///tmp/x", "tcp://b:7400,tcp://*:7400"])
def test_a_wrong_address_among_several(more: str) -> None:
    with pytest.raises(InvalidRequest, match="tcp://HOST:PORT,"):
        connect(f"tcp://a:7400,{more}")


def test_wrong_settings() -> None:
    for wrong in ({"timeout": 0}, {"timeout": -1}, {"retries": 0}, {"colour": "red"}, {"client_id": "a\nb"}):
        with pytest.raises(InvalidRequest):
            connect("tcp://127.0.0.1:1", **wrong)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Z8."""
    monkeypatch.setenv("TIDINGS_BUS", "tcp://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"tcp://127\.0\.0\.1:9 after 2 tries of 0\.02 s"):
        connect(timeout=0.02, retries=2)


def test_a_name_is_made_up_for_who_has_none(router: zmq.Socket[bytes]) -> None:
    def answer() -> None:
        while not (heard and isinstance(heard[-1], m.Bye)):
            peer, header = router.recv_multipart()
            heard.append(codec.decode_request(header))
            number = heard[-1].request
            reply = m.Welcome(number, 1, 1, 1, 1, 1) if isinstance(heard[-1], m.Hello) else m.ByeDone(number)
            router.send_multipart([peer, codec.encode(reply)])

    heard: list[m.AnyRequest] = []
    thread = threading.Thread(target=answer)
    thread.start()
    with connect(address_of(router)) as bus:
        assert bus.client_id.startswith("anonymous-")
    thread.join(5)
    hello = heard[0]
    assert isinstance(hello, m.Hello)
    assert hello.anonymous
    assert hello.client == bus.client_id


def test_the_link_sends_receives_and_reopens(router: zmq.Socket[bytes]) -> None:
    link = DealerLink(address_of(router))
    assert link.receive(0) is None
    assert link.receive(1) is None
    link.send([b"header", b"body"])
    first, *frames = router.recv_multipart()
    assert frames == [b"header", b"body"]
    router.send_multipart([first, b"answer", b"x" * 100_000])
    assert link.receive(60_000) == [b"answer", b"x" * 100_000]
    router.send_multipart([first, b"lost with the connection"])
    link.reopen()
    link.send([b"again"])
    second, again = router.recv_multipart()
    assert (again, second != first) == (b"again", True)
    assert link.receive(1) is None
    link.close()


def test_the_link_leads_to_one_of_several_nodes_at_a_time(router: zmq.Socket[bytes]) -> None:
    """P6."""
    link = DealerLink(f"tcp://127.0.0.1:9,{address_of(router)}")
    assert (link.at, link.address) == ("tcp://127.0.0.1:9", f"tcp://127.0.0.1:9,{address_of(router)}")
    link.send([b"lost"])
    link.reopen(address_of(router))
    link.send([b"header"])
    first, header = router.recv_multipart()
    assert header == b"header"
    beside = link.sibling()
    beside.send([b"beside"])
    assert router.recv_multipart()[1] == b"beside"
    link.reopen()
    link.send([b"again"])
    second, header = router.recv_multipart()
    assert (header, second != first) == (b"again", True)
    beside.close()
    link.close()


@pytest.mark.parametrize("address", ["tcp://a-b.c_d.example:65535", "tcp://[fe80::1%eth0]:7400", "tcp://1a..b-:1"])
def test_zeromq_takes_every_address_that_is_followed(address: str) -> None:
    """So no redirect can leave a link without a socket."""
    assert is_address(address)
    DealerLink(address).close()


def test_a_waiting_receive_can_be_woken(router: zmq.Socket[bytes]) -> None:
    link = DealerLink(address_of(router))
    waker = threading.Timer(0.01, link.wake)
    waker.start()
    assert link.receive(60_000) is None
    waker.join()
    for _ in range(100_000):
        link.wake()  # However often: it never blocks.
    assert link.receive(1) is None
    link.close()
    link.wake()


def test_an_address_that_zeromq_does_not_take() -> None:
    with pytest.raises(InvalidRequest, match="cannot be used"):
        DealerLink("nonsense://somewhere")


def test_the_client_is_light() -> None:
    """Neither asyncio nor ZeroMQ is loaded before it is needed."""
    code = "import sys, tidings.client; print([name for name in ('asyncio', 'zmq') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(Path(tidings.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
