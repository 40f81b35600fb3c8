"""Commands that find something wrong (D4, D5), and those of the pages: in one process, because a session takes time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet
import pytest

import tidings
from tests.integration.broker_process import BrokerProcess
from tests.pages import blocks_of
from tests.spark.commands import run
from tests.spark.conftest import Place, needs_java
from tests.spark.planting import lake_of, rows_of
from tests.spark.test_audit import dropped, fill
from tidings.cli import main
from tidings.spark.audit.report import last_audit

SEEDS = 24
BUG = "same-epoch"

pytestmark = needs_java


def commands_of(page: str) -> list[str]:
    """The lines of the page's blocks that begin with its command."""
    return [
        line
        for block in blocks_of(page)
        for line in block.text.splitlines()
        if line.startswith(f"tidings {Path(page).stem} ")
    ]


PIPELINE, AUDIT = commands_of("docs/pipeline.md"), commands_of("docs/audit.md")


def in_place(line: str, folder: Path, bus: str) -> list[str]:
    """A command of a page with our folder and broker; what would run until Ctrl-C runs once."""
    words = line.replace("--every 5s", "--once").replace("tcp://127.0.0.1:7400", bus)
    words = words.replace("lake/ ", f"{folder}/lake ").replace("deliveries/ ", f"{folder}/deliveries ")
    command = shlex.split(words, comments=True)[1:]
    return [*command, "--bus", bus] if "run" in command else command


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
        for page in (PIPELINE, AUDIT):
            lakes += [folder / "lake"] * len(page)
        place.bus.put_many("orders", ["1", "2"])
        place.bus.put_many("invoices", ["1", "2"])
        with tidings.connect(place.broker.address, "alice", record=str(folder / "deliveries")) as alice:
            alice.subscribe("news", "earliest")
            assert alice.get("news", timeout=60) is not None
        shown = [in_place(line, folder, place.broker.address) for line in (*PIPELINE, *AUDIT)]
        done = run([[*command, "--master", "local[2]"] for command in (audit, sweep)] + shown)
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
    lost = {subject.topic: subject.lost for subject in kept.subjects}
    assert (kept.clean, lost) == (False, {"invoices": 0, "news": 1, "orders": 0, "sport": 0})


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


def test_the_commands_of_the_pages(answers: list[Answer]) -> None:
    """Those of docs/pipeline.md and docs/audit.md in their order: a lake is filled, shown, and proven."""
    shown = answers[2:]
    assert len(shown) == len(PIPELINE) + len(AUDIT) == 9
    for line, answer in zip((*PIPELINE, *AUDIT), shown, strict=True):
        assert answer.code == 0, (line, answer.errors)
    assert (shown[0].lake / "report.html").exists()
    assert "alice" in shown[-1].output
