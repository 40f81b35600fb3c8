"""Your own handlers in a simulation: a publisher, a broker and a client for each handler, with crashes in between.

A handler is called with each message, as `bus.on` would call it, and the message is acknowledged when it has returned.
What the handler keeps outlives its client, like a database: when a crash comes between the handler and the
acknowledgement, the message comes again and is marked `redelivered`. And a process may work on beside its successor,
until it is fenced. A handler that raises ends the run, so that its assertions are invariants of yours beside those of
the simulator. A seed decides everything that happens.

>>> seen = []
>>> run_handlers(1, {"billing": lambda message: seen.append(message.text)}, ["order 1", "order 2"]).invariant is None
True
>>> sorted(set(seen))
['order 1', 'order 2']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from tidings.errors import InvalidRequest
from tidings.message import check_name
from tidings.settings import BrokerSettings
from tidings.simulator.checkers.ledger import SEPARATOR
from tidings.simulator.clients.client import Client
from tidings.simulator.clients.publishers import Script, resuming
from tidings.simulator.clients.subscribers import Handler, handling
from tidings.simulator.run import CALM_MS_MAX, CALM_MS_MIN, Result, live
from tidings.simulator.workloads.topics import SILENCE_MS, draw_client, draw_journal, make_lone_world
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.plans import draw_lone_plan

PUBLISHER = "publisher"
PACE_MS = 150
WORK_MS_MAX = 1_000
"""How long a handler may take: long enough that a crash comes before its acknowledgement in every fourth run."""


def run_handlers(
    seed: int, handlers: Mapping[str, Handler], texts: Sequence[str], topic: str = "news", trace: bool = False
) -> Result:
    """Publishes texts to a topic, calls the handler of each client with them, and runs until all have all.

    The publisher, the broker and the clients crash and come back, and the network delays, loses and reorders, until
    nothing goes wrong any more. `invariant` of the result is None, or the rule that was broken; with `trace` the
    result also has what happened, line by line.
    """
    _check(handlers, texts)
    random = Random(seed)
    names = [PUBLISHER, *(check_name(name) for name in handlers)]
    plan = draw_lone_plan(random, names, random.randint(CALM_MS_MIN, CALM_MS_MAX), SILENCE_MS)
    engines = Engines(BrokerSettings(session_silence_ms_max=SILENCE_MS), draw_journal(random))
    world = make_lone_world(random, plan, engines, draw_client(random))
    topics = (check_name(topic),)
    script = Script(PUBLISHER, [(topics, text) for text in texts], window=1, pace_ms=PACE_MS, padding_max=0)
    world.scripts.append(script)
    world.clients[PUBLISHER] = Client(world, PUBLISHER, [partial(resuming, script=script)], None)
    for name, handler in handlers.items():
        role = partial(handling, topics=topics, start="earliest", pace_ms=WORK_MS_MAX, handler=handler)
        world.clients[name] = Client(world, name, [role], None)
        world.watch.once.modes[name, topics] = "loop"
    return live(world, seed, trace, "handlers")


def _check(handlers: Mapping[str, Handler], texts: Sequence[str]) -> None:
    """The checkers tell messages apart by their texts."""
    if PUBLISHER in handlers:
        raise InvalidRequest(f"A client is called {PUBLISHER!r}, as the one that publishes: give it another name.")
    if len(set(texts)) < len(texts):
        raise InvalidRequest("Two texts are the same, and the checkers tell messages apart by them: number them.")
    strange = [text for text in texts if not text or SEPARATOR.decode() in text]
    if strange:
        raise InvalidRequest(f"The text {strange[0]!r} is empty or has a {SEPARATOR.decode()} in it: write another.")
