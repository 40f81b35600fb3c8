"""What a delivery must not be fooled by. E1."""

from __future__ import annotations

import socket

import pytest

from tidings.gateways.allowlist import Allowlist
from tidings.gateways.delivery import Address, address_of, refuse_oneself
from tidings.settings.broker import SOCKETS_NAME


def test_a_connection_to_oneself_is_a_refusal() -> None:
    """TCP lets a socket connect to itself when nobody listens at its own port; those bytes reach nobody."""
    with socket.socket() as alone:
        alone.bind(("127.0.0.1", 0))
        alone.connect(alone.getsockname())
        alone.sendall(b"hello")
        assert alone.recv(5) == b"hello"
        with pytest.raises(ConnectionRefusedError):
            refuse_oneself(alone)


def test_a_connection_to_somebody_is_none() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connection,
    ):
        refuse_oneself(connection)


@pytest.mark.parametrize(
    "name",
    [
        *("", "nobody", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1: 80"),
        *("192.0.2.1:80", "0.0.0.0:80", "localhost:80", "::1:80", "127.0.0.1:٤٢٠٠", "127.0.0.1:0080"),
    ],
)
def test_names_that_are_no_subscribers(name: str) -> None:
    assert address_of(f"tidings.sockets/{name}", SOCKETS_NAME, Allowlist("sockets", ["10.0.0.0/24"])) is None


@pytest.mark.parametrize(
    "address",
    [Address("127.0.0.1", 4201), Address("127.5.6.7", 1), Address("127.0.0.1", 65_535), Address("10.0.0.255", 1)],
)
@pytest.mark.parametrize("gateway", [SOCKETS_NAME, f"{SOCKETS_NAME}/tcp://127.0.0.1:7401"])
def test_a_name_leads_back_to_its_address(address: Address, gateway: str) -> None:
    """And only for the gateway that gave it, only where subscribers may be."""
    allowed = Allowlist("sockets", ["10.0.0.0/24"])
    assert address_of(address.client_id(gateway), gateway, allowed) == address
    assert address_of(address.client_id(gateway), f"{SOCKETS_NAME}/tcp://127.0.0.1:7402", allowed) is None
    if address.ip.startswith("10."):
        assert address_of(address.client_id(gateway), gateway, Allowlist("sockets", ["10.0.1.0/24"])) is None
