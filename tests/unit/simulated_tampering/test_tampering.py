"""Things happen to files, and anyone who opens them has to say so or to have everything."""

from __future__ import annotations

from random import Random

import pytest

from tidings.errors import StorageDamaged
from tidings.simulator.checkers.checker import Violation
from tidings.simulator.disk import SimulatedDisk
from tidings.simulator.run import run
from tidings_lab.simulated_tampering.tampering import RULE, TAMPERINGS, check_tampered
from tidings_lab.simulated_tampering.worlds import run_tampered, tampered_kind

OLDER = {"00.journal": b"first", "00.index": b"old index", "05.snapshot": b"before", "05.journal": b"now"}
FILES = {
    "00.journal": b"first",
    "00.index": b"index of the first",
    "05.journal": b"second",
    "05.index": b"index of the second",
    "09.snapshot": b"state",
    "09.journal": b"third",
}


def disk_with(files: dict[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk(Random(1))
    disk.put_back(files)
    return disk


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_every_tampering_does_something_to_the_copy_alone(kind: str) -> None:
    looked: list[dict[str, bytes]] = []
    disk = disk_with(FILES)
    for seed in range(20):
        told = check_tampered(kind, disk, OLDER, Random(seed), lambda copy: looked.append(copy.image()))
        assert told.endswith(": everything is there")
    assert len(looked) == 20
    assert FILES not in looked
    assert disk.image() == FILES


@pytest.mark.parametrize("kind", TAMPERINGS)
def test_where_there_is_nothing_to_do_it_to_nobody_looks(kind: str) -> None:
    def look(disk: SimulatedDisk) -> None:
        assert disk.image() != {"00.journal": b"first"}

    told = check_tampered(kind, disk_with({"00.journal": b"first"}), {}, Random(1), look)
    assert told.endswith((": everything is there", "there is nothing to do that to"))


def test_a_sentence_is_an_answer_and_silence_is_not() -> None:
    def refuse(disk: SimulatedDisk) -> None:
        raise StorageDamaged("09.journal is missing. Restore the folder from a copy.")

    def differ(disk: SimulatedDisk) -> None:
        raise Violation("nothing is lost", "the third is gone")

    def break_down(disk: SimulatedDisk) -> None:
        raise KeyError(9)

    told = check_tampered("lose-newest", disk_with(FILES), OLDER, Random(1), refuse)
    assert told == "09.journal got lost: 09.journal is missing. Restore the folder from a copy."
    for look in (differ, break_down):
        with pytest.raises(Violation) as caught:
            check_tampered("lose-newest", disk_with(FILES), OLDER, Random(1), look)
        assert caught.value.invariant == RULE
        assert "09.journal got lost" in caught.value.text


@pytest.mark.parametrize("kind", ["topics", "groups", "stages"])
def test_the_world_comes_to_its_end_before_anything_is_tampered_with(kind: str) -> None:
    """Whatever the product answers, a seed of this world is that of its kind of world up to there."""
    seed = next(seed for seed in range(50) if tampered_kind(seed) == kind)
    plain, tampered = run(seed, trace=True, kind=kind).trace, run_tampered(seed, trace=True).trace
    assert tampered[: len(plain)] == plain
    assert len(tampered) > len(plain)
