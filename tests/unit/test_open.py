"""The front door of the package: what `tidings.open` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidings


def test_an_address_is_not_taken_for_a_folder() -> None:
    with pytest.raises(tidings.InvalidRequest, match=r"tidings\.connect"):
        tidings.open("tcp://127.0.0.1:7400")


def test_the_inbox_of_another_bus_is_refused_where_that_can_be_seen(tmp_path: Path) -> None:
    """Z10: what it says was handed out is more than there is; to acknowledge that would skip what is to come."""
    for folder, count in (("one", 5), ("two", 2)):
        with tidings.open(tmp_path / folder, "alice") as bus:
            bus.subscribe("news")
            bus.put_many("news", [str(number) for number in range(count)])
    with tidings.open(tmp_path / "one", "alice", inbox=tmp_path / "inbox") as bus:
        assert len(list(bus.subscribe("news").messages(timeout=0))) == 5
    with tidings.open(tmp_path / "two", "alice", inbox=tmp_path / "inbox") as bus:
        for _ in range(2):
            with pytest.raises(tidings.InvalidRequest, match="inbox was used with another broker"):
                bus.get("news")
