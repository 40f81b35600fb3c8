"""What the clients of a run do and with which settings, drawn from the seed.

Settings are small, so that segments, snapshots, batches, credit and retention come to their limits in nearly
every run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from tidings.client.operations import Operation
from tidings.protocols.broker.messages import Start
from tidings.protocols.ring.key_ranges import tag_of
from tidings.settings import BrokerSettings, ClientSettings, JournalSettings
from tidings.simulator.checkers.lone import LoneJudge
from tidings.simulator.clients.client import Client, MemoryInbox, Role
from tidings.simulator.clients.publishers import Item, Script, careless, keyed, resuming
from tidings.simulator.clients.subscribers import (
    batching,
    coming_and_going,
    getting,
    getting_all,
    looping,
    transacting,
    waiting,
)
from tidings.simulator.world.engines import Engines
from tidings.simulator.world.faults import FaultPlan
from tidings.simulator.world.node import NodeProcess
from tidings.simulator.world.plans import draw_lone_plan
from tidings.simulator.world.populated import PopulatedWorld
from tidings.simulator.world.world import World

SILENCE_MS = 2_500
NAMES = ["ann", "bob", "eve", "kim", "zoe"]

APART_SHARE = 0.75
"""How often what happens at once concerns topics that lie apart, where some do."""
SPREAD_SHARE = 0.4
"""How often one subscription is to topics that lie apart, where some do."""

Reading = Callable[..., Operation[None]]
"""A role that reads, still without its topics."""


def draw_broker(random: Random) -> BrokerSettings:
    return BrokerSettings(
        session_silence_ms_max=SILENCE_MS,
        drop_acknowledged=random.random() < 0.4,
        retain_bytes=random.choice((None, None, random.randint(200, 3_000))),
        credit_messages_max=random.choice((5, 1_000, 1_000, 1_000)),
        retain_age_ms=random.choice((None, None, random.randint(1_000, 60_000))),
        topic_idle_ms=draw_idle(random),
    )


def draw_idle(random: Random) -> int | None:
    """After how long unused topics go."""
    aside = drawn_aside(random)
    return aside.randint(100, 3_000) if aside.random() < 0.3 else None


def drawn_aside(random: Random) -> Random:
    """Another source of randomness for the same seed, which takes nothing from it: known seeds keep what follows."""
    aside = Random()
    aside.setstate(random.getstate())
    return Random(aside.getrandbits(64))


def draw_journal(random: Random) -> JournalSettings:
    return JournalSettings(
        segment_bytes_max=random.choice((1_500, 4_000, 12_000)),
        segment_records_max=random.choice((6, 20, 60)),
        mapped_segments_max=random.choice((1, 2)),
        recent_bytes_max=random.choice((1, 500, 20_000)),
    )


def draw_client(random: Random) -> ClientSettings:
    return ClientSettings(
        timeout_ms=random.choice((150, 400)),
        retries=random.randint(1, 4),
        batch_bytes=random.choice((150, 600)),
        batch_messages=random.randint(1, 6),
        in_flight_max=random.randint(1, 4),
        credit_messages=random.randint(1, 20),
        credit_bytes=random.choice((100, 1_000, 5_000)),
        beat_ms=random.choice((200, 600)),
    )


Ending = Callable[[World, LoneJudge, NodeProcess], object]
"""Arranges what happens to a broker when all clients have come to their end."""


def make_lone_world(
    random: Random, plan: FaultPlan, engines: Engines, client: ClientSettings, ending: Ending | None = None
) -> World:
    """A world of one broker, without clients."""
    world = World(random, plan, engines, client, lambda world: LoneJudge(world, engines.broker))
    broker = world.add_broker()
    if ending is not None:
        assert isinstance(world.judge, LoneJudge)
        ending(world, world.judge, broker)
    return world


def make_topic_world(random: Random, names_count: int, calm_ms: int, ending: Ending | None = None) -> World:
    """A world of publishers and subscribers, before anything has happened in it."""
    names = NAMES[:names_count]
    plan = draw_lone_plan(random, names, calm_ms, SILENCE_MS)
    engines = Engines(draw_broker(random), draw_journal(random))
    world = make_lone_world(random, plan, engines, draw_client(random), ending)
    populate(world, names)
    return world


def populate(world: PopulatedWorld, names: list[str], families: list[list[str]] | None = None) -> None:
    """Makes the clients: the first publishes, the second reads, the others do either or both.

    `families`: topics that lie together, and apart from those of the other families.
    """
    random = world.random
    topics = (
        ["a", "b", "c"][: random.randint(1, 3)]
        if families is None
        else [topic for family in families for topic in family]
    )
    for number, name in enumerate(names):
        roles: list[Role] = []
        inbox = None
        kind: Reading | None = None
        chosen: tuple[str, ...] = ()
        if number == 0 or (number > 1 and random.random() < 0.5):
            roles.append(draw_publisher(world, random, name, topics, families))
        if number == 1 or (number > 1 and (not roles or random.random() < 0.4)):
            inbox = MemoryInbox() if random.random() < 0.3 else None
            family = topics if families is None else random.choice(families)
            apart = families is None or random.random() < APART_SHARE
            tag = "" if apart else f"{{{tag_of(family[0])}}}"
            aside = drawn_aside(random)
            spread = families if families is not None and aside.random() < SPREAD_SHARE else None
            kind, chosen, role = draw_subscriber(world, random, name, family, inbox, f"{tag}{name}-answers", spread)
            roles.append(role)
        world.clients[name] = Client(world, name, roles, inbox)
        if kind is waiting:
            world.clients[name].waits_for = chosen


def draw_publisher(
    world: PopulatedWorld, random: Random, name: str, topics: list[str], families: list[list[str]] | None = None
) -> Role:
    """What a publisher does. What it puts to several topics at once goes to some of one family, or of several."""
    kind = random.choice((resuming, resuming, keyed, careless))
    publisher = f"{name}-import" if kind is resuming and random.random() < 0.3 else name
    items: list[Item] = []
    for number in range(random.randint(5, 25)):
        several = random.random() < 0.2 if families is None else random.random() < 0.5
        apart = families is None or random.random() < APART_SHARE
        family = topics if apart else random.choice(families or [topics])
        chosen = random.sample(family, random.randint(1, len(family)) if several else 1)
        items.append((tuple(chosen), f"{name}{number}"))
    script = Script(
        publisher,
        items,
        window=random.randint(1, 6),
        pace_ms=random.choice((5, 150, 500)),
        padding_max=random.choice((10, 200, 1_500)),
    )
    world.scripts.append(script)
    return partial(kind, script=script)


def draw_subscriber(
    world: PopulatedWorld,
    random: Random,
    name: str,
    topics: list[str],
    inbox: MemoryInbox | None,
    answers: str,
    spread: list[list[str]] | None = None,
) -> tuple[Reading, tuple[str, ...], Role]:
    """What a subscriber does, and with which topics; in transactions it puts its answers to the topic `answers`.

    `spread`: families of topics that lie apart, if it is to read topics of several.
    """
    aside = drawn_aside(random)
    kind: Reading = random.choice(
        (getting, looping, looping, waiting, batching, getting_all, coming_and_going, transacting)
    )
    chosen = tuple(sorted(random.sample(topics, random.randint(1, len(topics)))))
    if kind in (coming_and_going, transacting):
        chosen = chosen[:1]
    if spread is not None:
        some = aside.sample(spread, aside.randint(2, min(4, len(spread))))
        most = 1 if kind in (coming_and_going, transacting) else 2
        chosen = tuple(sorted(topic for each in some for topic in aside.sample(each, min(len(each), most))))
    start: Start = random.choice(("now", "earliest", "last"))
    role = partial(kind, topics=chosen, start=start, pace_ms=random.choice((0, 30, 300)))
    mode = "loop" if kind in (looping, waiting, batching) else "get"
    if kind is transacting:
        mode = "transaction"
        world.watch.together.transactions[name, chosen] = answers
        role = partial(role, answers=answers)
    elif inbox is not None:
        mode = "inbox"
    for key in ((topic,) for topic in chosen) if kind is getting_all else [chosen]:
        world.watch.once.modes[name, key] = mode
    return kind, chosen, role
