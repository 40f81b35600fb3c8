"""What is installed: `tidings` runs a bus, `tidings-lab` measures, proves and shows it, and no package is in both."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

import tidings
from tidings.cli import IN_THE_LAB, lab, main
from tidings.simulator import planting, worlds

ROOT = Path(__file__).resolve().parents[2]
FIRST_RELEASE_BYTES = 1_002_559
"""The wheel of the first release."""
LAB = ROOT / "lab" / "tidings_lab"
OF_THE_LAB = {
    *(package.parent.name for package in LAB.glob("*/__init__.py")),
    *("experiments.py", "mutants.py", "demo.py", "overlay", "paxos"),
}
"""Its packages, and as what some of them were part of tidings."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both, as pip builds them."""
    folder = tmp_path_factory.mktemp("wheels")
    places = {"tidings": ROOT, "tidings-lab": ROOT / "lab"}
    return {
        name: Path(next(iter(WheelBuilder(str(place)).build(directory=str(folder), versions=["standard"]))))
        for name, place in places.items()
    }


def modules(wheel: Path, suffixes: tuple[str, ...] = (".py",)) -> set[str]:
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.endswith(suffixes)}


def test_the_wheel_of_tidings_is_small(wheels: dict[str, Path]) -> None:
    """Smaller than that of the first release, which had everything in it, because nothing of the lab is in it."""
    assert wheels["tidings"].stat().st_size < FIRST_RELEASE_BYTES
    installed = modules(wheels["tidings"], ("",))
    assert "tidings/simulator/run.py" in installed
    assert {"bench", "bugs", "simulated_overlay"} < OF_THE_LAB
    assert [name for name in installed if OF_THE_LAB & set(Path(name).parts)] == []


def test_no_package_is_in_both(wheels: dict[str, Path]) -> None:
    tops = [{name.partition("/")[0] for name in modules(wheel)} for wheel in wheels.values()]
    assert tops == [{"tidings", "pyspark_tidings"}, {"tidings_lab"}]


def test_the_lab_has_all_its_modules_and_scenarios(wheels: dict[str, Path]) -> None:
    here = {path.relative_to(LAB.parent).as_posix() for path in LAB.rglob("*.*") if path.suffix in (".py", ".toml")}
    assert len([name for name in here if name.endswith(".toml")]) > 10
    assert modules(wheels["tidings-lab"], (".py", ".toml")) == here


def test_both_have_one_version() -> None:
    project = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == tidings.__version__
    assert project["dependencies"] == [f"tidings =={tidings.__version__}"]


def test_the_commands_of_the_lab_are_found() -> None:
    assert {*IN_THE_LAB, "sweep"} == {offered.name for offered in entry_points(group=lab.GROUP)}


def test_the_worlds_of_the_lab_are_found() -> None:
    """Each by a beginning that says, where the lab is not installed, what is missing."""
    found = worlds.offered()
    assert all(name.startswith(worlds.IN_THE_LAB) for name in found)
    assert all(any(name.startswith(beginning) for name in found) for beginning in worlds.IN_THE_LAB)


@pytest.fixture
def without_lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody offers anything, as where only tidings is installed."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    monkeypatch.setattr(planting, "entry_points", lambda **_: ())
    monkeypatch.setattr(worlds, "entry_points", lambda **_: ())
    monkeypatch.setattr(planting, "MUTANTS", {})
    for found in (planting.mutants, worlds.offered, worlds.turns):
        found.cache_clear()
    yield
    for found in (planting.mutants, worlds.offered, worlds.turns):
        found.cache_clear()


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("bench --quick", "tidings bench"),
        ("demo", "tidings demo"),
        ("experiment --help", "tidings experiment"),
        ("simulate --sweep --seeds 1", "--sweep"),
        ("simulate --mutants", "--mutants"),
        ("simulate --mutant skip-sync", "--mutant"),
        ("simulate --world paxos --seeds 1", "--world paxos"),
        ("simulate --world tampered --seeds 1", "--world tampered"),
        ("simulate --world overlay-churn --seeds 1", "--world overlay-churn"),
        ("simulate --world ring-churn --seed 1", "--world ring-churn"),
        ("simulate --world ring-multicast --sweep", "--world ring-multicast"),
    ],
)
@pytest.mark.usefixtures("without_lab")
def test_without_the_lab_a_command_says_how_to_install_it(
    command: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 1
    assert capsys.readouterr().err == (
        f"{what} needs tidings-lab, which is not installed: pip install ./lab in a checkout of tidings.\n"
    )


@pytest.mark.usefixtures("without_lab")
def test_without_the_lab_the_simulator_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--world", "all", "--seeds", "4", "--jobs", "1"]) == 0
    counts = "1 of topics, 1 of groups, 1 of stages, 1 of cluster, 0 of ring-cluster"
    assert counts in capsys.readouterr().out.splitlines()
    assert main(["--help"]) == 0
    assert "(needs tidings-lab)" in capsys.readouterr().out
    assert main(["simulate", "--help"]) == 0
    usage = " ".join(capsys.readouterr().out.split())
    assert "tampered, paxos, overlay-NAME, ring-churn, ring-multicast (need tidings-lab)" in usage


def test_the_wheel_alone_is_a_whole_tidings(wheels: dict[str, Path], tmp_path: Path) -> None:
    """Every module of the installed package can be imported without the lab and its checkout."""
    program = (
        "import importlib, sys, tidings.cli\n"
        "assert tidings.__file__.startswith(sys.argv[1]), tidings.__file__\n"
        "for name in sys.argv[2].split(): importlib.import_module(name)\n"
        "assert not [name for name in sys.modules if name.startswith('tidings_lab')]\n"
    )
    with ZipFile(wheels["tidings"]) as archive:
        archive.extractall(tmp_path)
    names = [
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in modules(wheels["tidings"])
        if not name.endswith("__main__.py")
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), " ".join(names)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
