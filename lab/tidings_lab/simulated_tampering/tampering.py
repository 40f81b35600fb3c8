"""What may happen to a folder while nobody looks at it, and the one rule about it.

Files get lost, older copies are put back, two are mixed up, one is cut short, bits flip. Anyone who opens the folder
after that ends in a sentence, at the start or when what is damaged is read, or has everything that was there: there is
no third outcome.

A whole folder that is put back older than it was is not among it: nothing in a folder can tell that. The other members
of a group can (`lab/tidings_lab/simulated_replicas/faults.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from tidings.errors import StorageError
from tidings.journal.segment import INDEX_SUFFIX, JOURNAL_SUFFIX, SNAPSHOT_SUFFIX
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.checkers.lone import LoneJudge
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.world.faults import aside
from tidings.simulator.world.node import NodeProcess
from tidings.simulator.world.world import World
from tidings_lab.simulated_tampering.served import SERVED, check_served

TAMPERED = "tampered"
"""The world of topics, at whose end such things happen."""
RULE = "what happened to the files is told, or nothing of it is felt"
SUFFIXES = (JOURNAL_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX)
CUT_BYTES_MAX = 200

Tamper = Callable[[SimulatedDisk, Mapping[str, bytes], Random], str | None]
"""Does something to a disk of which there is an older image, and says what; None if there is nothing to do it to."""


def _flip(disk: SimulatedDisk, older: Mapping[str, bytes], random: Random) -> str | None:
    name = random.choice([name for name in disk.names() if disk.size(name)])
    position, bit = random.randrange(disk.size(name)), random.randrange(8)
    disk.flip_bit(name, position, bit)
    return f"bit {bit} of byte {position} of {name} has flipped"


def _lose(which: Callable[[list[str], Random], list[str]]) -> Tamper:
    def tamper(disk: SimulatedDisk, older: Mapping[str, bytes], random: Random) -> str | None:
        lost = which(disk.names(), random)
        for name in lost:
            disk.lose(name)
        return f"{', '.join(lost)} got lost" if lost else None

    return tamper


def _of(names: list[str], suffix: str) -> list[str]:
    return [name for name in names if name.endswith(suffix)]


def _put_back_older(disk: SimulatedDisk, older: Mapping[str, bytes], random: Random) -> str | None:
    present = disk.image()
    changed = [name for name, content in older.items() if present.get(name) not in (None, content)]
    if not changed:
        return None
    name = random.choice(changed)
    disk.put_back({name: older[name]})
    return f"an older {name} was put back"


def _put_back_removed(disk: SimulatedDisk, older: Mapping[str, bytes], random: Random) -> str | None:
    removed = [name for name in older if name not in disk.names()]
    disk.put_back({name: older[name] for name in removed})
    return f"{', '.join(removed)} came back" if removed else None


def _put_back_segment(disk: SimulatedDisk, older: Mapping[str, bytes], random: Random) -> str | None:
    """The newest files of the copy take the place of everything that came after them."""
    if disk.image() == older or not any(name in disk.names() for name in older):
        return None
    gone = [name for name in disk.names() if name.endswith(SUFFIXES) and name not in older]
    for name in gone:
        disk.lose(name)
    disk.put_back({name: content for name, content in older.items() if name.endswith(SUFFIXES)})
    return "the journal was put back as it was before, and the rest of the folder not"


def _swap(disk: SimulatedDisk, older: Mapping[str, bytes], random: Random) -> str | None:
    pairs = [
        (one, other)
        for suffix in SUFFIXES
        for one in _of(disk.names(), suffix)
        for other in _of(disk.names(), suffix)
        if one < other
    ]
    if not pairs:
        return None
    one, other = random.choice(pairs)
    files = disk.image()
    disk.put_back({one: files[other], other: files[one]})
    return f"{one} and {other} were mixed up"


def _cut(disk: SimulatedDisk, older: Mapping[str, bytes], random: Random) -> str | None:
    name = random.choice([name for name in disk.names() if disk.size(name)])
    content = disk.image()[name]
    size = len(content) - random.randint(1, min(CUT_BYTES_MAX, len(content)))
    disk.put_back({name: content[:size]})
    return f"{name} ends after {size} of its {len(content)} bytes"


TAMPERINGS: dict[str, Tamper] = {
    "flip": _flip,
    "lose-newest": _lose(lambda names, random: _of(names, JOURNAL_SUFFIX)[-1:]),
    "lose-oldest": _lose(lambda names, random: _of(names, JOURNAL_SUFFIX)[:1]),
    "lose-index": _lose(
        lambda names, random: [random.choice(indexes)] if (indexes := _of(names, INDEX_SUFFIX)) else []
    ),
    "lose-snapshot": _lose(lambda names, random: _of(names, SNAPSHOT_SUFFIX)[-1:]),
    "lose-any": _lose(lambda names, random: [random.choice(names)]),
    "lose-journal": _lose(lambda names, random: [name for name in names if name.endswith(SUFFIXES)]),
    "older-file": _put_back_older,
    "older-journal": _put_back_segment,
    "removed-files": _put_back_removed,
    "swap": _swap,
    "cut": _cut,
}


def check_tampered(
    kind: str,
    disk: SimulatedDisk,
    older: Mapping[str, bytes],
    random: Random,
    look: Callable[[SimulatedDisk], None],
) -> str:
    """Tampers with a copy of a disk and looks at it; what was done, and what came of it.

    `look` opens the disk and raises a `Violation` if anything is not as it was.
    """
    copy = disk.copied()
    done = TAMPERINGS[kind](copy, older, random)
    if done is None:
        return f"{kind}: there is nothing to do that to"
    try:
        look(copy)
    except StorageError as error:
        return f"{done}: {error}"
    except Violation as violation:
        raise Violation(RULE, f"{kind}: {done}, and nobody says so: {violation.text}") from violation
    except Exception as error:
        raise Violation(RULE, f"{kind}: {done}, and that ends in {error!r}") from error
    return f"{done}: everything is there"


class Tampering:
    """What happens at the end of a world to copies of its broker's folder."""

    def __init__(self, world: World, judge: LoneJudge, broker: NodeProcess) -> None:
        self._world = world
        self._judge = judge
        self._broker = broker
        self._older: dict[str, bytes] = {}
        """The broker's files as they were half way."""
        world.at(world.plan.calm_ms // 2, lambda: self._older.update(broker.disk.image()))
        world.at_last.append(self._run)

    def _run(self) -> None:
        world, broker = self._world, self._broker
        broker.end("kill")
        for kind in TAMPERINGS:
            world.note("world", check_tampered(kind, broker.disk, self._older, world.random, self._look_at))
        for kind in SERVED:
            random = aside(world.random, kind)
            world.note("world", check_served(kind, broker.disk, random, broker.clock(), world.engines.alone_on))

    def _look_at(self, disk: SimulatedDisk) -> None:
        """Opens a copy of the broker's disk and compares all of it with what should be there."""
        engine = self._world.engines.alone_on(disk)
        engine.recover()
        self._judge.look_at(engine)
