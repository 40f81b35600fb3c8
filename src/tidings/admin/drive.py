"""The automated client: several clients at several nodes, commands drawn by lot, and an account of what came of them.

One thread issues one command after another, each through the bus of a client of its own. So it is known at every moment
what each subscription is owed: what was put since it was made and has not been taken, in that order. A `get` that does
not give the first of these finds something lost, doubled or strange.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

import tidings
from tidings.client.bus import Bus

SUBSCRIBE, UNSUBSCRIBE, PUT, GET = range(4)
WEIGHTS = (3, 1, 8, 8)
"""How often each command is drawn, in this order."""
TRY_SECONDS, TRIES = 1.0, 60
"""How long a command is tried: nodes may be killed and moved meanwhile."""
WAIT_SECONDS = 10.0
"""How long something that is owed may take to come."""


class ClientAccount(msgspec.Struct):
    """What one client did, and what came of it."""

    client: str
    node: str
    """Where it connected first."""
    subscribed: int = 0
    unsubscribed: int = 0
    published: int = 0
    delivered: int = 0
    lost: int = 0
    """Messages that were owed and did not come, or came after one that was put later."""
    doubled: int = 0
    """Messages that came a second time."""
    strange: int = 0
    """Messages that were never owed."""
    longest_ms: int = 0
    """The longest that a command took."""

    @property
    def right(self) -> bool:
        return not (self.lost or self.doubled or self.strange)


class Driver:
    """Some clients, and what each of their subscriptions is owed."""

    def __init__(
        self, addresses: Sequence[str], clients: int, topics: int, connect: Callable[..., Bus] = tidings.connect
    ) -> None:
        token = f"{time.time_ns():x}"
        """Tells the names of this driver from those of others, which may be at work on the same ring."""
        self.topics = [f"drive-{token}-{number}" for number in range(topics)]
        self.accounts: list[ClientAccount] = []
        self._buses: list[Bus] = []
        self._owed: list[dict[str, deque[str]]] = []
        self._taken: list[dict[str, dict[str, None]]] = []
        self._published = 0
        try:
            for number in range(clients):
                place = number % len(addresses)
                nodes = [*addresses[place:], *addresses[:place]][:16]
                name = f"drive-{token}-client-{number}"
                self._buses.append(connect(",".join(nodes), name, timeout=TRY_SECONDS, retries=TRIES))
                self.accounts.append(ClientAccount(name, nodes[0]))
                self._owed.append({})
                self._taken.append({})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for bus in self._buses:
            bus.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Commands.

    def command(self, rng: random.Random) -> None:
        """One command by lot, of a client by lot."""
        client, topic = rng.randrange(len(self._buses)), rng.choice(self.topics)
        kind = rng.choices((SUBSCRIBE, UNSUBSCRIBE, PUT, GET), WEIGHTS)[0]
        began = time.monotonic()
        if kind == PUT:
            self.put(client, topic)
        elif kind == SUBSCRIBE:
            self.subscribe(client, topic)
        elif not self._owed[client]:
            return
        elif kind == UNSUBSCRIBE:
            self.unsubscribe(client, rng.choice(list(self._owed[client])))
        else:
            self.get(client, rng.choice(list(self._owed[client])))
        account = self.accounts[client]
        account.longest_ms = max(account.longest_ms, round((time.monotonic() - began) * 1000))

    def subscribe(self, client: int, topic: str) -> None:
        self._buses[client].subscribe(topic)
        if topic not in self._owed[client]:  # Once more changes nothing.
            self._owed[client][topic], self._taken[client][topic] = deque(), {}
        self.accounts[client].subscribed += 1

    def unsubscribe(self, client: int, topic: str) -> None:
        self._buses[client].unsubscribe(topic)
        del self._owed[client][topic]
        self.accounts[client].unsubscribed += 1

    def put(self, client: int, topic: str) -> None:
        text = str(self._published)
        self._published += 1
        self._buses[client].put(topic, text)
        self.accounts[client].published += 1
        for owed in self._owed:
            if topic in owed:
                owed[topic].append(text)

    def get(self, client: int, topic: str) -> None:
        """Takes one message, which has to be the first that is owed; nothing if nothing is."""
        owed = self._owed[client][topic]
        message = self._buses[client].get(topic, timeout=WAIT_SECONDS if owed else 0.0)
        self.note(client, topic, None if message is None else message.text)

    def note(self, client: int, topic: str, text: str | None) -> None:
        """Judges what a `get` gave."""
        account, owed, taken = self.accounts[client], self._owed[client][topic], self._taken[client][topic]
        if text is None:
            account.lost += len(owed)
            owed.clear()
            return
        if text in owed:
            while (passed := owed.popleft()) != text:
                account.lost += 1
                taken[passed] = None
            account.delivered += 1
        elif text in taken:
            account.doubled += 1
        else:
            account.strange += 1
        taken[text] = None

    def drain(self) -> None:
        """Takes all that is owed, and looks once more for what is not; then ends every subscription."""
        for client, owed in enumerate(self._owed):
            for topic in list(owed):
                while owed[topic]:
                    self.get(client, topic)
                self.get(client, topic)
                self.unsubscribe(client, topic)


def drive(
    addresses: Sequence[str],
    clients: int,
    commands: int,
    topics: int,
    seed: int,
    on_command: Callable[[int], Any] = lambda number: None,
    connect: Callable[..., Bus] = tidings.connect,
) -> list[ClientAccount]:
    """Issues random commands, takes what is owed in the end, and returns the account of each client."""
    rng = random.Random(seed)
    with Driver(addresses, clients, topics, connect) as driver:
        for number in range(commands):
            driver.command(rng)
            on_command(number + 1)
        driver.drain()
        return driver.accounts
