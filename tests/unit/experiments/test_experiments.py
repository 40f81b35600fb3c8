"""Every experiment in small (P11, P12): what its tables answer is what the simulator's own checkers have seen."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow.parquet
import pytest

import tidings
from tests.unit.experiments.small import SMALL
from tidings.cli import main
from tidings_lab.bugs import MUTANTS
from tidings_lab.experiments import hyparview, multicast, plumtree
from tidings_lab.experiments.balance import measure_hops, measure_topics
from tidings_lab.experiments.catalogue import EXPERIMENTS
from tidings_lab.experiments.chord_plans import DOCUMENT_LOADS
from tidings_lab.experiments.experiment import Choice, Outcome, run_experiment
from tidings_lab.experiments.local import LocalEngine
from tidings_lab.experiments.report import plain_table, write_report
from tidings_lab.experiments.sweep import Value
from tidings_lab.simulated_overlay.chord.multicast import MulticastPlan, run_multicast


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def outcome_of(lake: Path) -> Callable[[str], Outcome]:
    """Runs a small experiment once for all tests; its tables are in the lake."""

    @cache
    def run(name: str) -> Outcome:
        return run_experiment(EXPERIMENTS[name], SMALL[name], LocalEngine(), str(lake / name), lambda done: None)

    return run


def test_there_is_a_small_version_of_every_experiment() -> None:
    assert set(SMALL) == set(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_report_has_its_page_its_pictures_and_its_tables(
    name: str, tmp_path: Path, lake: Path, outcome_of: Callable[[str], Outcome]
) -> None:
    """P11: and nothing broke, which is why no run is missing from the answers."""
    experiment = EXPERIMENTS[name]
    outcome = outcome_of(name)
    assert outcome.broken == []
    page = write_report(experiment, outcome, tmp_path, f"tidings experiment {name}", "lake")
    text = page.read_text(encoding="utf-8")
    for figure in experiment.figures:
        stem = f"{name}-{figure.name}"
        assert f"]({stem}.svg)" in text
        assert (tmp_path / f"{stem}.svg").read_bytes().startswith(b"<?xml")
        assert (tmp_path / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
    for question in experiment.questions:
        rows = outcome.answers[question.name]
        assert rows, question.name
        with (tmp_path / f"{name}-{question.name}.csv").open(encoding="utf-8") as file:
            assert len(list(csv.DictReader(file))) == len(rows)
        assert f"## {question.title}" in text
        assert len(plain_table(question, rows)) > len(rows)
    points = len(experiment.points(SMALL[name]))
    for table in experiment.tables:
        found = pyarrow.parquet.read_table(lake / name / table)
        assert set(found["point"].to_pylist()) == set(range(points)), "every run has left rows"


def test_the_load_is_what_the_checkers_count(outcome_of: Callable[[str], Outcome]) -> None:
    """P5, P12: convergence and deliveries come from rows of single messages, and are the same as those of the run."""
    rows = outcome_of("load").answers["load"]
    assert [row["messages_per_publisher"] for row in rows] == list(DOCUMENT_LOADS)
    for row, load in zip(rows[:2], DOCUMENT_LOADS, strict=False):
        seen = run_multicast(MulticastPlan(seed=1, messages_per_node=load))
        assert (row["delivered"], row["owed"]) == (seen.delivered, seen.owed) == (400 * load, 400 * load)
        assert row["scribe_messages"] == seen.scribe_messages
        assert row["convergence_s"] == pytest.approx(seen.convergence_ms / 1000, abs=0.002)


def test_the_rows_of_a_run_add_up() -> None:
    """What single messages and single kinds of messages say is what the run says."""
    [run], messages, sent = (
        [row for row in multicast.multicast(20, 4, seed=2, failed_share=0.3) if isinstance(row, kind)]
        for kind in (multicast.RunRow, multicast.MessageRow, multicast.SentRow)
    )
    assert isinstance(run, multicast.RunRow) and run.failed_nodes > 0
    assert len(messages) == run.published
    live = run.nodes - run.failed_nodes
    assert sum(row.is_owed for row in messages if isinstance(row, multicast.MessageRow)) * live == run.owed
    for layer, count in (("scribe", run.scribe_messages), ("chord", run.chord_messages)):
        assert sum(row.sent for row in sent if isinstance(row, multicast.SentRow) and row.layer == layer) == count


def test_reliability_is_complete(outcome_of: Callable[[str], Outcome]) -> None:
    """P12: 100 % with and without failures and loss, at each size."""
    rows = outcome_of("reliability").answers["reliability"]
    assert {(row["nodes"], row["failed_share"], row["loss"]) for row in rows} == {
        *((20, failed, loss) for failed in (0.0, 0.1, 0.3) for loss in (0.0, 0.02)),
        (100, 0.0, 0.0),
        (100, 0.3, 0.0),
    }
    assert all(row["reliability"] == 100.0 and row["delivered"] == row["owed"] for row in rows)
    assert all((row["failed"] or 0) > 0 for row in rows if row["failed_share"])


def test_topics_and_hops_are_what_the_simulator_measures(outcome_of: Callable[[str], Outcome]) -> None:
    """P4: the same figures by way of single rows and SQL."""
    rows = {(row["nodes"], row["virtual_nodes"]): row for row in outcome_of("topics").answers["topics"]}
    assert set(rows) == {(nodes, virtual_nodes) for nodes in (10, 100) for virtual_nodes in (1, 16, 64)}
    assert rows[100, 1]["deviation"] > 1.5 * rows[100, 64]["deviation"]  # type: ignore[operator]
    unnumbered = Choice(nodes=(10,), seeds=1, first_seed=0)  # Its names are those of `measure_topics`.
    alone = run_experiment(EXPERIMENTS["topics"], unnumbered, LocalEngine(), None, lambda done: None).answers["topics"]
    for row in alone:
        measured = measure_topics(10, 30, int(row["virtual_nodes"] or 0))
        assert (row["least"], row["most"]) == (measured.owned_min, measured.owned_max)
        assert row["deviation"] == pytest.approx(measured.deviation, abs=0.001)
    [row] = outcome_of("lookups").answers["hops"]
    hops = measure_hops(64, seed=1)
    assert (row["answered"], row["right_answers"], row["hops_max"]) == (5_000, 5_000, hops.hops_max)
    assert row["hops_mean"] == pytest.approx(hops.hops_mean, abs=0.001)


def test_failures_are_those_of_the_single_runs(outcome_of: Callable[[str], Outcome]) -> None:
    rows = outcome_of("hyparview").answers["failures"]
    assert [(row["failed_share"], row["runs"], row["live"]) for row in rows] == [(0.2, 2, 48), (0.5, 2, 30)]
    alone = [hyparview.failure(60, 0.5, seed) for seed in (1, 2)]
    assert rows[1]["reached_at_once"] == pytest.approx(sum(row.reached_at_once for row in alone) / 2)
    assert all(row["reached_healed"] == row["reached_at_last"] == 1.0 for row in rows)


def test_a_tree_grows_and_stays(outcome_of: Callable[[str], Outcome]) -> None:
    """P3: the first message meets no tree, later ones are hardly sent twice."""
    [row] = outcome_of("plumtree").answers["tree"]
    assert row["reached_min"] == 1.0
    assert row["first_redundancy"] > 2 and row["redundancy"] < 0.1  # type: ignore[operator]
    assert [one.number for one in plumtree.rounds(30, 1, 4)] == [1, 2, 3, 4]


def test_a_run_that_breaks_a_rule_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planted: readers that deliver whatever comes. The command and the page say so."""
    command = ["experiment", "reliability", "--no-spark", "--jobs", "1", "--nodes", "20", "--share", "0.3"]
    with MUTANTS["no-dedup-at-the-reader"].plant():
        assert main([*command, "--seeds", "1", "--out", str(tmp_path)]) == 1
    rule = "20 nodes, seed 1: every subscriber gets each message once and in order: "
    assert f"Broken: {rule}" in capsys.readouterr().err
    assert f"**Some runs broke a rule:**\n\n- {rule}" in (tmp_path / "reliability.md").read_text(encoding="utf-8")


def test_what_was_not_measured_is_an_empty_cell_and_a_gap(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["reliability"]
    rows: list[dict[str, Value]] = [
        {field: (20 if field == "nodes" else 0.0) for field in FIELDS},
        {field: (100 if field == "nodes" else 0.0 if field in ("failed_share", "loss") else None) for field in FIELDS},
    ]
    assert plain_table(experiment.questions[0], rows)[-1].split()[3:] == ["-"] * 4 + ["-", "%", "-", "s", "-", "s", "-"]
    outcome = Outcome({"reliability": rows}, ["20 nodes: broken"])
    write_report(experiment, outcome, tmp_path, "tidings experiment reliability", None)
    assert (tmp_path / "reliability-repair.svg").exists()


FIELDS = [
    "nodes",
    "failed_share",
    "loss",
    "runs",
    "failed",
    "published",
    "owed",
    "delivered",
    "reliability",
    "repair_s",
    "repair_max_s",
    "fetches",
]


def test_what_the_documentation_shows_is_what_happens() -> None:
    text = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(Path(tidings.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert re.fullmatch(r"\[\{'loss': 0.0, 'p90': \d+\.\d+\}, \{'loss': 0.02, 'p90': \d+\.\d+\}\]\n", done.stdout)


# The command.


def test_the_command_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["experiment", "hyparview", "--no-spark", "--jobs", "1", "--nodes", "40", "--share", "0.5"]
    picture = tmp_path / "failures.svg"
    assert main([*command, "--json", "--plot", str(picture)]) == 0
    [row] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["experiment"], row["nodes"], row["live"], row["reached_at_last"]) == ("hyparview", 40, 20, 1.0)
    assert "live nodes reached (%)" in picture.read_text(encoding="utf-8")
    assert main([*command, "--out", str(tmp_path / "report")]) == 0
    assert "redundancy" in capsys.readouterr().out
    page = (tmp_path / "report" / "hyparview.md").read_text(encoding="utf-8")
    assert "tidings experiment hyparview --seed 1 --nodes 40 --share 0.5" in page
    assert (tmp_path / "report" / "tables" / "experiments" / "hyparview" / "posts").is_dir()


@pytest.mark.parametrize(
    "arguments",
    [
        ["lookups", "--no-spark", "--master", "local[2]"],
        ["all", "--no-spark", "--plot", "x.svg"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", *arguments]) == 2
    assert "tidings experiment" in capsys.readouterr().err


def test_without_pyspark_one_sentence_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["experiment", "lookups"]) == 1
    error = capsys.readouterr().err
    assert "pip install '.[spark]'" in error and "--no-spark" in error


def test_groups_find_each_other_as_theory_says(outcome_of: Callable[[str], Outcome]) -> None:
    """P9: every lookup is right, every subscribed group gets every message, and the costs are those of Chord."""
    outcome = outcome_of("groups")
    assert not outcome.broken
    hops = {row["groups"]: row for row in outcome.answers["hops"]}
    assert set(hops) == {10, 40}
    assert all(row["right_answers"] == row["answered"] == 2_000 for row in hops.values())
    assert all(row["ratio"] == pytest.approx(1.0, abs=0.2) for row in hops.values())
    for row in outcome.answers["trees"]:
        assert row["delivered"] == row["owed"]
        if row["share"] == 1.0:
            # The root's own delivery needs no message.
            assert row["for_each_delivery"] == pytest.approx(1 - 1 / (row["groups"] or 0))
    for row in outcome.answers["busiest"]:
        assert row["most"] == pytest.approx(row["ln_mean"], rel=0.5)
