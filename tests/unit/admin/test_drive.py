"""The automated client finds what is planted: something lost, doubled, out of order or never owed."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.admin.drive import ClientAccount, Driver, drive


class Faulty:
    """A bus that keeps everything in memory, and goes wrong in one way."""

    queues: dict[tuple[str, str], list[str]]

    def __init__(self, queues: dict[tuple[str, str], list[str]], name: str, fault: str) -> None:
        self._queues, self._name, self._fault = queues, name, fault

    def subscribe(self, topic: str) -> None:
        self._queues.setdefault((self._name, topic), [])

    def unsubscribe(self, topic: str) -> None:
        del self._queues[self._name, topic]

    def put(self, topic: str, text: str) -> None:
        for (_, other), queue in self._queues.items():
            if other == topic:
                if self._fault == "reorder" and queue:
                    queue.insert(0, text)
                elif not (self._fault == "lose" and text.endswith("7")):
                    queue.append(text)
                    queue += [text] if self._fault == "double" else ["stranger"] if self._fault == "invent" else []

    def get(self, topic: str, timeout: float) -> Any:
        queue = self._queues[self._name, topic]
        return Said(queue.pop(0)) if queue else None

    def close(self) -> None:
        return


class Said:
    def __init__(self, text: str) -> None:
        self.text = text


def run(fault: str) -> list[ClientAccount]:
    queues: dict[tuple[str, str], list[str]] = {}

    def connect(nodes: str, name: str, **_: Any) -> Any:
        return Faulty(queues, name, fault)

    return drive(["tcp://a:1", "tcp://b:1"], clients=3, commands=300, topics=2, seed=1, connect=connect)


def test_nothing_is_wrong_where_nothing_is() -> None:
    accounts = run("none")
    assert all(account.right for account in accounts)
    assert sum(account.delivered for account in accounts) > 50
    assert [account.node for account in accounts] == ["tcp://a:1", "tcp://b:1", "tcp://a:1"]


@pytest.mark.parametrize(
    ("fault", "column"), [("lose", "lost"), ("double", "doubled"), ("reorder", "lost"), ("invent", "strange")]
)
def test_what_is_planted_is_found(fault: str, column: str) -> None:
    accounts = run(fault)
    assert not all(account.right for account in accounts)
    assert sum(getattr(account, column) for account in accounts) > 0


def test_what_comes_after_the_last_that_is_owed_is_seen() -> None:
    queues: dict[tuple[str, str], list[str]] = {}
    with Driver(["tcp://a:1"], 1, 1, lambda nodes, name, **_: Faulty(queues, name, "double")) as driver:  # type: ignore[arg-type,return-value]
        driver.subscribe(0, driver.topics[0])
        driver.put(0, driver.topics[0])
        driver.drain()
    assert (driver.accounts[0].delivered, driver.accounts[0].doubled) == (1, 1)
