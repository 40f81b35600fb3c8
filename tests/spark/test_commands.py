"""Commands that find something wrong (D4, D5): both in one process, because a session is what takes time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet
import pytest

from tests.integration.broker_process import BrokerProcess
from tests.spark.commands import run
from tests.spark.conftest import Place, needs_java
from tests.spark.planting import lake_of, rows_of
from tests.spark.test_audit import dropped, fill
from tidings.cli import main
from tidings.spark.audit.report import last_audit

SEEDS = 24
BUG = "same-epoch"

pytestmark = needs_java


class Answer(NamedTuple):
    """What a command returned, printed and complained of, and its lake."""

    code: int
    output: str
    errors: str
    lake: Path


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Answer]]:
    """An audit of a lake in which a row is missing, and a sweep with a planted bug."""
    folder = tmp_path_factory.mktemp("commands")
    lakes = [folder / "audited", folder / "swept"]
    place = Place(None, BrokerProcess(folder / "data").start())
    try:
        fill(place)
        rows = rows_of(place, "news", "sport")
        dropped(rows)
        lake_of(rows, lakes[0])
        audit = ["audit", "--bus", place.broker.address, "--lake", str(lakes[0])]
        sweep = ["simulate", "--sweep", "--seeds", str(SEEDS), "--mutant", BUG, "--lake", str(lakes[1])]
        done = run([[*command, "--master", "local[2]"] for command in (audit, sweep)])
        yield [Answer(*each, lake) for each, lake in zip(done, lakes, strict=True)]
    finally:
        place.close()


def test_an_audit_that_finds_a_fault(answers: list[Answer]) -> None:
    """D4: the first offending row and exit code 1 when something is wrong; the lake keeps the report."""
    audit = answers[0]
    assert audit.code == 1, audit.errors
    assert "lost: lake: news offset 70" in audit.output
    assert "201 messages audited" in audit.errors
    kept = last_audit(audit.lake)
    assert kept is not None
    assert (kept.clean, [subject.lost for subject in kept.subjects]) == (False, [1, 0])


def test_a_planted_bug_is_found_and_its_command_replays_it(
    answers: list[Answer], capsys: pytest.CaptureFixture[str]
) -> None:
    """D5: from the command to the table and back to the very run that broke."""
    sweep = answers[1]
    assert sweep.code == 1, sweep.errors
    assert "broke: fenced sessions change nothing; the first is seed" in sweep.output
    rows = pyarrow.parquet.read_table(sweep.lake / "simulations" / f"{BUG}-0-{SEEDS}" / "runs").to_pylist()
    assert sorted(row["seed"] for row in rows) == list(range(SEEDS))
    broken = min((row for row in rows if row["invariant"] is not None), key=lambda row: row["seed"])
    assert broken["replay"] in sweep.errors
    assert main(broken["replay"].split()[1:]) == 1
    replayed = capsys.readouterr()
    assert f"BROKEN {broken['invariant']}: {broken['text']}" in replayed.out
    assert sum(row["invariant"] is None for row in rows) > 0, "some seeds hold, and have no command"
