"""Keys, the allow-list and the ZAP handler, over real sockets on loopback."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from tidings.errors import InvalidRequest, Unauthorized
from tidings.transport import curve

WAIT_MS = 60_000
REFUSALS = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
)


class Door:
    """A ROUTER with keys, and what happens to anyone who knocks."""

    def __init__(self, folder: Path, enforced: bool = True) -> None:
        self.folder = folder
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        curve.configure_server(self.socket, folder)
        if not enforced:
            self.socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 0)
        self.events = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | sum(REFUSALS))
        self.address = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    def knock(self, options: curve.ClientOptions | None) -> str | None:
        """The name that the door knows the caller by, "" for a caller without one, None for one refused."""
        caller = self.context.socket(zmq.DEALER)
        caller.reconnect_ivl = -1
        if options is not None:
            options.apply(caller)
        try:
            caller.connect(self.address)
            with contextlib.suppress(zmq.Again):  # A caller that has been refused by now has nobody to send to.
                caller.send(b"hello", zmq.NOBLOCK)
            assert self.events.poll(WAIT_MS), "neither let in nor refused"
            if recv_monitor_message(self.events)["event"] in REFUSALS:
                return None
            assert self.socket.poll(WAIT_MS), "let in but not heard"
            return curve.sender(self.socket.recv_multipart(copy=False)[-1]) or ""
        finally:
            caller.close(linger=0)

    def close(self) -> None:
        self.socket.disable_monitor()
        self.events.close(linger=0)
        self.socket.close(linger=0)
        self.context.term()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys = tmp_path / "keys"
    curve.create_server_keys(keys)
    curve.create_client_keys(keys, "alice")
    return keys


@pytest.fixture
def door(folder: Path) -> Iterator[Door]:
    opened = Door(folder)
    try:
        with curve.Authenticator(opened.context, folder):
            yield opened
    finally:
        opened.close()


def stranger(folder: Path) -> curve.ClientOptions:
    return curve.ClientOptions(curve.generate(), curve.server_keys(folder).public)


def test_a_known_key_passes_under_its_name(door: Door, folder: Path) -> None:
    assert door.knock(curve.client_options(folder, "alice")) == "alice"


def test_an_unknown_key_is_refused(door: Door, folder: Path) -> None:
    assert door.knock(stranger(folder)) is None


def test_a_client_without_curve_is_refused(door: Door) -> None:
    assert door.knock(None) is None


def test_a_client_with_the_wrong_server_key_is_refused(door: Door, folder: Path) -> None:
    keys = curve.client_options(folder, "alice").keys
    assert door.knock(curve.ClientOptions(keys, curve.generate().public)) is None


def test_without_a_handler_an_enforced_domain_refuses_even_known_keys(folder: Path) -> None:
    door = Door(folder)
    try:
        assert door.knock(curve.client_options(folder, "alice")) is None
    finally:
        door.close()


def test_planted_fault_without_handler_and_enforcement_any_key_gets_in(folder: Path) -> None:
    """CURVE alone encrypts and lets in every key: this is what the handler and the domain are for."""
    door = Door(folder, enforced=False)
    try:
        assert door.knock(stranger(folder)) == ""
    finally:
        door.close()


def test_the_allow_list_is_read_again_when_it_changes(door: Door, folder: Path) -> None:
    curve.create_client_keys(folder, "bob")
    assert door.knock(curve.client_options(folder, "bob")) == "bob"
    (folder / "clients" / "bob.pub").unlink()
    assert door.knock(curve.client_options(folder, "bob")) is None
    assert door.knock(curve.client_options(folder, "alice")) == "alice"


def test_a_bad_file_on_the_list_keeps_nobody_else_out(
    door: Door, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "clients" / "broken.pub").write_text("not a key")
    assert door.knock(curve.client_options(folder, "alice")) == "alice"
    assert "broken.pub" in caplog.text


@pytest.mark.parametrize("name", ["../alice", "..", ".hidden", "a/b", "späti 24/7", "100%", "%2E"])
def test_any_name_stays_inside_the_folder_and_comes_back(door: Door, folder: Path, name: str) -> None:
    before = set(folder.parent.iterdir())
    curve.create_client_keys(folder, name)
    assert set(folder.parent.iterdir()) == before
    assert door.knock(curve.client_options(folder, name)) == name
    assert name in curve.allowed(folder).values()


def test_a_second_authenticator_in_one_context_is_refused(door: Door, folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="has an authenticator already"):
        curve.Authenticator(door.context, folder)


def test_a_frame_of_a_connection_without_keys_has_no_sender() -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as left, context.socket(zmq.PAIR) as right:
        left.bind("inproc://plain")
        right.connect("inproc://plain")
        right.send(b"hello")
        assert curve.sender(left.recv(copy=False)) is None


def test_secret_keys_are_for_their_owner_only(folder: Path) -> None:
    for name in ("server.key", "alice.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        assert len((folder / name).read_text().splitlines()) == 1
    assert not [path for path in folder.rglob(".*") if path.is_file()]


def test_a_secret_key_that_others_may_read_is_refused(folder: Path) -> None:
    os.chmod(folder / "alice.key", 0o644)
    with pytest.raises(Unauthorized, match="chmod 600"):
        curve.client_options(folder, "alice")


def test_keys_are_never_overwritten(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(InvalidRequest, match="not overwritten"):
        curve.create_server_keys(folder)
    with pytest.raises(InvalidRequest, match="not overwritten"):
        curve.create_client_keys(folder, "alice")
    with pytest.raises(InvalidRequest, match="not overwritten"):
        curve.allow(folder, "alice", curve.generate().public)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_one_key_has_one_name(folder: Path) -> None:
    public = curve.client_options(folder, "alice").keys.public
    with pytest.raises(InvalidRequest, match="'alice'"):
        curve.allow(folder, "bob", public)
    (folder / "clients" / "bob.pub").write_bytes(public)
    with pytest.raises(InvalidRequest, match="same key"):
        curve.allowed(folder)


@pytest.mark.parametrize("name", ["", "server", "x" * 300])
def test_a_name_that_cannot_be_a_file_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="choose another"):
        curve.create_client_keys(folder, name)


def test_the_server_key_can_be_given_as_text_or_as_a_file(folder: Path, tmp_path: Path) -> None:
    public = curve.server_keys(folder).public
    copied = tmp_path / "copied.pub"
    copied.write_bytes(public + b"\n")
    (folder / "server.pub").unlink()
    assert curve.client_options(folder, "alice", public.decode()).server_public == public
    assert curve.client_options(folder, "alice", str(copied)).server_public == public
    with pytest.raises(InvalidRequest, match="--server-key"):
        curve.client_options(folder, "alice")
    copied.write_text("short")
    with pytest.raises(InvalidRequest, match="not a CURVE key"):
        curve.client_options(folder, "alice", str(copied))


def test_a_public_key_never_looks_like_a_flag() -> None:
    assert all(curve.generate().public[:1].isalnum() for _ in range(50))


def test_missing_keys_say_how_to_make_them(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="tidings keys"):
        curve.client_options(folder, "bob")
    with pytest.raises(InvalidRequest, match="tidings keys"):
        curve.server_keys(tmp_path)


def test_secrets_do_not_show_in_texts(folder: Path) -> None:
    options = curve.client_options(folder, "alice")
    secret = options.keys.secret.decode()
    assert secret not in repr(options)
    assert secret not in str(options)
    assert secret not in f"{options.keys}"


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:7400",
        "tcp://127.8.9.10:*",
        "tcp://[::1]:7400",
        "tcp://[::ffff:127.0.0.1]:7400",
        "tcp://localhost:7400",
        "ipc:///tmp/bus",
        "inproc://bus",
    ],
)
def test_loopback_needs_no_keys(address: str) -> None:
    assert curve.is_loopback(address)
    curve.check_bind(address, None)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://*:7400",
        "tcp://0.0.0.0:7400",
        "tcp://[::]:7400",
        "tcp://10.0.0.1:7400",
        "tcp://eth0:7400",
        "tcp://localhost.example.org:7400",
        "tcp://127.0.0.1.example.org:7400",
        "tcp://[::ffff:10.0.0.1]:7400",
        "tcp://127.0.0.1:1;10.0.0.1:7400",
        "ws://127.0.0.1:7400",
        "udp://127.0.0.1:7400",
        "127.0.0.1:7400",
        "",
    ],
)
def test_anything_else_is_bound_only_with_keys(address: str, folder: Path) -> None:
    assert not curve.is_loopback(address)
    with pytest.raises(InvalidRequest, match="tidings keys DIR"):
        curve.check_bind(address, None)
    curve.check_bind(address, folder)
