"""Retention by age on real processes: a small topic beside a busy one expires wherever it is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import BrokerProcess
from tests.integration.replica_group import ReplicaGroup, wait_for
from tidings.admin.trial import Trial

SETTINGS = {"TIDINGS_RETAIN_AGE_MS": "1000"}
PATIENT = {"timeout": 5.0, "retries": 12}


@contextlib.contextmanager
def serving(kind: str, folder: Path) -> Iterator[str]:
    """A bus that keeps messages for a second; its addresses."""
    if kind == "alone":
        with BrokerProcess(folder, settings=SETTINGS) as broker:
            yield broker.address
    elif kind == "group":
        with ReplicaGroup(folder, settings=SETTINGS) as group:
            yield group.address
    else:
        with Trial(folder, settings=SETTINGS) as trial:
            trial.up(2, 1)
            yield trial.bus


@pytest.mark.parametrize("kind", ["alone", "group", "ring"])
def test_a_small_topic_expires_beside_a_busy_one(tmp_path: Path, kind: str) -> None:
    """Its messages lie in the file that is written to, which is as young as can be; the last of a topic always stays.

    The tag gives both topics one owner, so that they are in one journal on a ring too.
    """
    small, busy = "{a}small", "{a}busy"
    with serving(kind, tmp_path / "data") as address, tidings.connect(address, "ann", **PATIENT) as bus:
        for number in range(3):
            bus.put(small, b"%d" % number)

        def is_gone() -> bool:
            bus.put(busy, b"busy")
            return bus.topic(small).first_offset == 2

        wait_for("what is old to go", is_gone)
        assert [value for batch in bus.read(small) for value in batch.values] == [b"2"]
        assert bus.put(small, b"3").offset == 3
