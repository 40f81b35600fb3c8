"""`tidings simulate`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidings.cli import main


def test_seeds_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "3", "--jobs", "1"]) == 0
    output = capsys.readouterr()
    assert "3 seeds in" in output.out
    assert "seeds/s" in output.out
    assert output.err == ""


def test_every_run_has_seeds_of_its_own_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    firsts = []
    for _ in range(2):
        assert main(["simulate", "--seeds", "1", "--jobs", "1"]) == 0
        firsts.append(capsys.readouterr().out.partition("--first-seed ")[2].split()[0])
    assert firsts[0] != firsts[1]
    assert main(["simulate", "--seeds", "1", "--jobs", "1", "--first-seed", firsts[0]]) == 0
    assert "--first-seed" not in capsys.readouterr().out
    assert main(["simulate", "--seeds", "1", "--jobs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["first_seed"] >= 0


def test_all_worlds_run_by_turns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--world", "all", "--seeds", "18", "--jobs", "2", "--first-seed", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "4 of topics, 3 of groups, 4 of stages, 1 of tampered, 3 of paxos, 2 of cluster, 1 of ring-cluster"
    )
    assert main(["simulate", "--world", "all", "--seeds", "4", "--jobs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["worlds"] == {"groups": 1, "paxos": 1, "stages": 1, "topics": 1}


def test_a_failure_says_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "20", "--jobs", "1", "--mutant", "skip-sync"]) == 1
    error = capsys.readouterr().err
    assert "recovery equals the acknowledged prefix" in error
    command = error.partition("replay: tidings ")[2].split()
    assert main(command) == 1
    replayed = capsys.readouterr()
    assert "BROKEN recovery equals the acknowledged prefix" in replayed.out
    assert "life 1 begins" in replayed.out


def test_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("Seed 1 holds: ")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seeds", "5", "--jobs", "1", "--mutant", "same-epoch", "--json"]) == 1
    failure, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert failure["invariant"] == "fenced sessions change nothing"
    assert failure["replay"].startswith("tidings simulate --seed ")
    assert summary["failed"] == 1


def test_the_planted_bugs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--mutants"]) == 0
    assert "skip-sync" in capsys.readouterr().out


def test_a_sweep_runs_every_seed_and_replays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """D5, without Spark: all seeds are in the table, and the command of a failure is that failure again."""
    sweep = ["simulate", "--sweep", "--jobs", "1", "--seeds", "6", "--lake", str(tmp_path)]
    assert main([*sweep, "--mutant", "crowded"]) == 1
    output = capsys.readouterr()
    assert "6 seeds in" in output.out and "/simulations/crowded-0-6/runs" in output.out
    command = output.err.partition("replay: tidings ")[2].splitlines()[0].split()
    assert main(command) == 1
    assert "BROKEN views and memories stay within their bounds" in capsys.readouterr().out
    assert main([*sweep, "--world", "ring-multicast", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == 6


@pytest.mark.parametrize(
    "arguments",
    [
        ["--trace"],
        ["--seeds", "0"],
        ["--mutant", "unheard-of"],
        ["--world", "unheard-of"],
        ["--world", "overlay-unheard-of"],
        ["--master", "local[2]"],
        ["--sweep", "--seed", "1"],
        ["--sweep", "--tasks", "4"],
        ["--sweep", "--world", "all"],
        ["--seed", "1", "--world", "all"],
        ["--mutant", "skip-sync", "--world", "all"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert "tidings simulate" in capsys.readouterr().err
