"""Frames in and out of a socket, with nothing but pyzmq's compiled core between us and libzmq.

`Socket.send_multipart` and `recv_multipart` look at every flag as an enum and take two to three times as
long: 7.6 us against 2.6 us for a message of two frames there and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq
from zmq.backend import Socket as Core

Frame = bytes | memoryview

NOT_NOW = int(zmq.DONTWAIT)
MORE_NOT_NOW = NOT_NOW | int(zmq.SNDMORE)

_EVENTS = int(zmq.EVENTS)
_READABLE = int(zmq.POLLIN)
_send = Core.send
_receive = Core.recv


def send(socket: zmq.Socket[Any], frames: Sequence[Frame | zmq.Frame]) -> None:
    """Sends one message without waiting; zmq.Again if its queue is full."""
    last = len(frames) - 1
    for index in range(last):
        _send(socket, frames[index], MORE_NOT_NOW)
    _send(socket, frames[last], NOT_NOW)


def is_readable(socket: zmq.Socket[Any]) -> bool:
    """Whether a message is there. Half the price of an attempt to receive that fails."""
    return bool(int(socket.get(_EVENTS)) & _READABLE)


def receive(socket: zmq.Socket[Any]) -> list[zmq.Frame]:
    """The next message, its frames not copied; zmq.Again if there is none."""
    frame = _receive(socket, NOT_NOW, False)
    frames = [frame]
    while frame.more:
        frame = _receive(socket, NOT_NOW, False)
        frames.append(frame)
    return frames


def receive_copy(socket: zmq.Socket[Any]) -> list[bytes]:
    """The next message, its frames copied; zmq.Again if there is none."""
    frame = _receive(socket, NOT_NOW, False)
    frames = [frame.bytes]
    while frame.more:
        frame = _receive(socket, NOT_NOW, False)
        frames.append(frame.bytes)
    return frames


def receive_from(socket: zmq.Socket[Any]) -> tuple[bytes, list[zmq.Frame]]:
    """A ROUTER's next message: who sent it, and its frames, not copied; zmq.Again if there is none.

    The sender stands before every message, so that there is no need to look whether anything follows: 2.3 instead of
    2.9 us for a put with all that the router does.
    """
    sender: bytes = _receive(socket, NOT_NOW)
    return sender, receive(socket)
