"""Waking a loop from anywhere, also one that has just ended."""

from __future__ import annotations

import os
import select

import pytest

from tidings.settings import BrokerSettings, NodeSettings
from tidings.transport.bell import Bell
from tidings.transport.router import Router


def is_heard(bell: Bell) -> bool:
    poll = select.poll()
    poll.register(bell.ear, select.POLLIN)
    return bool(poll.poll(0))


def test_it_is_heard_until_it_is_hushed_however_often_it_was_rung() -> None:
    bell = Bell()
    for _ in range(100_000):  # More than a pipe holds.
        bell.ring()
    while is_heard(bell):
        bell.hush()
    bell.hush()
    bell.ring()
    assert is_heard(bell)
    bell.close()


def test_ringing_after_the_end_touches_nobody_elses_descriptor() -> None:
    bell = Bell()
    bell.close()
    bell.close()
    innocent = os.pipe()  # They get the numbers that were free.
    os.set_blocking(innocent[0], False)
    try:
        bell.ring()
        with pytest.raises(BlockingIOError):
            os.read(innocent[0], 1)
    finally:
        for descriptor in innocent:
            os.close(descriptor)


def test_a_router_that_has_been_closed_may_be_woken() -> None:
    """A loop may end by itself between the wish to stop it and the wake."""
    router = Router(NodeSettings(bind="tcp://127.0.0.1:*"), BrokerSettings().batch_bytes_max)
    router.close(0)
    router.wake()
