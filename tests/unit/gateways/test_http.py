"""E6: the web service on real sockets: slow, greedy, broken and hasty clients, each of them bounded."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tidings.errors import Unavailable
from tidings.gateways.http import Limits, WebService
from tidings.gateways.spelling import BODY_BYTES_MAX

PATIENCE_SECONDS = 60
"""When a test gives up on something that should have happened long ago."""
HASTE = Limits(request_seconds=0.2, answer_seconds=0.2, drain_seconds=0.2, stop_seconds=0.2, connections_max=3)


@pytest.fixture
def serve() -> Iterator[Callable[..., WebService]]:
    with contextlib.ExitStack() as services:

        def serve(limits: Limits | None = None) -> WebService:
            web = services.enter_context(WebService(0, limits))
            web.start()
            return web

        yield serve


class Client:
    """A client that sends whatever bytes it likes."""

    def __init__(self, web: WebService) -> None:
        host, _, port = web.address.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        body = self._file.read(int(headers.get("content-length", 0))) if method != "HEAD" else b""
        return status, headers, body

    def rest(self) -> bytes:
        """Everything until the service closes the connection."""
        return self._file.read()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self.socket.close()


def status_of_health(web: WebService) -> int:
    with Client(web) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return client.answer()[0]


def wait_until_healthy(web: WebService) -> None:
    """Until there is room for one more connection, and it is answered."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionError, IndexError):  # A crowded service may close before it has read.
            if status_of_health(web) == 200:
                return
        time.sleep(0.01)
    raise AssertionError("The service has not answered again.")


def test_several_requests_share_a_connection(serve: Callable[..., WebService]) -> None:
    host, _, port = serve().address.removeprefix("http://").partition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
    with contextlib.closing(client):
        for number, word in ((1, "one"), (2, "two"), (3, "three")):
            body = json.dumps({"text": str(number)})
            client.request("POST", "/spell", body, {"Content-Type": "application/json"})
            reply = client.getresponse()
            assert json.load(reply) == {"text": word, "lang": "en"}
            assert reply.getheader("content-type") == "application/json"
            client.request("GET", f"/spell?text={number}")
            assert json.load(client.getresponse())["text"] == word


def test_requests_may_come_all_at_once(serve: Callable[..., WebService]) -> None:
    with Client(serve()) as client:
        client.send(b"GET /spell?text=1 HTTP/1.1\r\nHost: x\r\n\r\nGET /spell?text=2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [json.loads(client.answer()[2])["text"] for _ in range(2)] == ["one", "two"]


def test_a_request_may_come_in_pieces(serve: Callable[..., WebService]) -> None:
    with Client(serve()) as client:
        for byte in b"GET /spell?text=1 HTTP/1.1\r\nHost: x\r\n\r\n":
            client.send(bytes([byte]))
        assert client.answer()[0] == 200


def test_old_http_is_answered_once(serve: Callable[..., WebService]) -> None:
    with Client(serve()) as client:
        client.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert client.answer()[0] == 200
        assert client.rest() == b""


def test_head_is_get_without_a_body(serve: Callable[..., WebService]) -> None:
    with Client(serve()) as client:
        for path, status in (("/health", 200), ("/nowhere", 404)):
            client.send(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answered, headers, _ = client.answer("HEAD")
            assert (answered, int(headers["content-length"]) > 0) == (status, True)
        client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.answer()[2] == b'{"status":"ok"}'


def test_a_client_that_asks_before_it_sends_its_body_is_told_to(serve: Callable[..., WebService]) -> None:
    head = b"POST /spell HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    with Client(serve()) as client:
        client.send(head + b"Content-Length: 13\r\n\r\n")
        assert client.answer()[0] == 100
        client.send(b'{"text": "2"}')
        assert json.loads(client.answer()[2])["text"] == "two"
        client.send(head + f"Content-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode())
        assert client.answer()[0] == 413


def post_head(more: str) -> bytes:
    return f"POST /spell HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}\r\n\r\n".encode()


TOO_MUCH = [
    pytest.param(post_head(f"Content-Length: {BODY_BYTES_MAX + 1}") + b"x" * (BODY_BYTES_MAX // 2), 413, id="declared"),
    pytest.param(post_head("Transfer-Encoding: chunked") + b"40000\r\n" + (b"x" * 0x40000 + b"\r\n40000\r\n") * 5, 413),
    pytest.param(post_head("Transfer-Encoding: chunked") + b"1\r\nx\r\n" * (BODY_BYTES_MAX // 4), 413, id="crumbs"),
    pytest.param(b"GET /spell?text=" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, id="address"),
    pytest.param(b"GET /health HTTP/1.1\r\nHost: x\r\nMore: " + b"x" * 100_000, 431, id="header"),
    pytest.param(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000, 431, id="headers"),
]
BROKEN = [
    b"hello\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # TLS
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /spell?text=\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    post_head("Content-Length: many"),
    post_head("Content-Length: -1"),
    post_head("Content-Length: 1\r\nContent-Length: 2"),
    post_head("Content-Length: " + "9" * 5000),
    post_head("Transfer-Encoding: gzip"),
    post_head("Transfer-Encoding: chunked") + b"zz\r\n",
]


@pytest.mark.parametrize(("sent", "status"), TOO_MUCH)
def test_too_much_is_refused_with_a_reason_and_the_end(
    serve: Callable[..., WebService], sent: bytes, status: int
) -> None:
    web = serve(Limits(request_seconds=PATIENCE_SECONDS))  # What is too much is what counts, and not how long it took.
    with Client(web) as client:
        client.send(sent)
        answered, headers, body = client.answer()
        assert (answered, headers["connection"]) == (status, "close")
        assert json.loads(body)["error"]
        assert client.rest() == b""
    assert status_of_health(web) == 200


@pytest.mark.parametrize("sent", BROKEN)
def test_what_is_not_http_is_the_clients_fault(serve: Callable[..., WebService], sent: bytes) -> None:
    web = serve()
    with Client(web) as client:
        client.send(sent)
        status, headers, body = client.answer()
        assert (400 <= status < 500, headers["connection"]) == (True, "close")
        assert json.loads(body)["error"]
        assert client.rest() == b""
    assert status_of_health(web) == 200


def test_a_client_that_says_nothing_is_let_go(serve: Callable[..., WebService]) -> None:
    with Client(serve(HASTE)) as client:
        assert client.rest() == b""


@pytest.mark.parametrize("half", [b"G", b"GET /health HTTP/1.1\r\nHost:", post_head("Content-Length: 9") + b"{"])
def test_half_a_request_is_given_up(serve: Callable[..., WebService], half: bytes) -> None:
    web = serve(HASTE)
    with Client(web) as client:
        client.send(half)
        assert client.answer()[0] == 408
        assert client.rest() == b""
    assert status_of_health(web) == 200


def test_a_client_that_leaves_in_the_middle_is_forgotten(serve: Callable[..., WebService]) -> None:
    web = serve(Limits(connections_max=1))
    for half in (b"", b"G", post_head("Content-Length: 9") + b"{"):
        with Client(web) as client:
            client.send(half)
        wait_until_healthy(web)


def test_dripping_bytes_does_not_buy_time(serve: Callable[..., WebService]) -> None:
    """The time is for the whole request: a byte now and then does not begin it again."""
    web = serve(HASTE)
    with Client(web) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: x\r\nDrip: ")
        client.socket.settimeout(0.01)
        deadline = time.monotonic() + PATIENCE_SECONDS
        answered = b""
        while not answered and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                client.send(b"x")
                answered = client.socket.recv(1000)
        assert answered.startswith(b"HTTP/1.1 408 ")


def test_a_client_that_does_not_take_its_answer_is_dropped(serve: Callable[..., WebService]) -> None:
    web = serve(Limits(answer_seconds=0.2, connections_max=1))
    body = json.dumps({"text": "7 " * 32_000}).encode()
    with Client(web) as client:
        request = post_head(f"Content-Length: {len(body)}") + body
        with contextlib.suppress(ConnectionError):
            for _ in range(500):  # 96 MB of answers: more than any buffer between us holds.
                client.send(request)
        wait_until_healthy(web)


def test_a_connection_too_many_is_told_so_and_there_is_room_again_later(serve: Callable[..., WebService]) -> None:
    web = serve(Limits(connections_max=3))
    with contextlib.ExitStack() as crowd:
        for _ in range(3):
            client = crowd.enter_context(Client(web))
            client.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.answer()[0] == 200
        with Client(web) as late:
            status, _, body = late.answer()
            assert (status, json.loads(body)["error"][:30]) == (429, "There are too many connections")
            assert late.rest() == b""
    wait_until_healthy(web)


def test_closing_answers_what_has_come_and_waits_for_nothing_else() -> None:
    with WebService(0, Limits(request_seconds=PATIENCE_SECONDS, stop_seconds=0.2)) as web:
        web.start()
        clients = [Client(web) for _ in range(3)]
        _idle, halfway, done = clients
        halfway.send(b"GET /health HTTP/1.1\r\n")
        done.send(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert done.answer()[0] == 200
        began = time.monotonic()
        web.close()
        assert time.monotonic() - began < PATIENCE_SECONDS / 2
        for client in clients:
            with client, contextlib.suppress(ConnectionError):
                assert client.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        Client(web)


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with WebService(0) as web:
        port = int(web.address.rpartition(":")[2])
        with pytest.raises(Unavailable, match=f"Port {port} of 127.0.0.1 is already in use: .* another"):
            WebService(port)


def test_it_listens_on_loopback_only(serve: Callable[..., WebService]) -> None:
    assert serve().address.startswith("http://127.0.0.1:")
    assert serve()._socket.getsockname()[0] == "127.0.0.1"
