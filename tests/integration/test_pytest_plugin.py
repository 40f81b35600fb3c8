"""The fixtures for tests of programs: fresh and empty, real, and nothing until somebody asks for them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import tidings
from tests.integration.broker_process import ROOT
from tidings.testing import Broker, ManualClock

PLUGIN = ("-p", "no:tidings", "-p", "tidings.testing.plugin")
"""Loaded by its name: the package may not be installed."""

TESTS = """
    import asyncio
    import threading

    import pytest

    import tidings


    @pytest.fixture
    def tidings_settings():
        return {"max_backlog": 2}


    @pytest.mark.parametrize("time", [1, 2])
    def test_a_fresh_bus(tidings_bus, time):
        assert tidings_bus.topics() == []
        tidings_bus.subscribe("news")
        tidings_bus.put("news", "hello")
        assert tidings_bus.get("news").text == "hello"
        assert tidings_bus.client_id == "test"


    @pytest.mark.parametrize("time", [1, 2])
    def test_a_fresh_broker(tidings_broker, time):
        with tidings_broker.connect("alice") as alice, tidings.connect(tidings_broker.address, "bob") as bob:
            assert alice.topics() == []
            alice.subscribe("news")
            bob.put_many("news", ["one", "two"])
            with pytest.raises(tidings.Overloaded):
                bob.put("news", "three")
            assert alice.get("news").text == "one"


    def test_awaited(tidings_broker):
        async def story():
            async with tidings_broker.aconnect("alice") as bus:
                await bus.subscribe("news")
                await bus.put("news", "hello")
                return (await bus.get("news")).text

        assert asyncio.run(story()) == "hello"


    def give_back_and_take(bus, clock):
        jobs = bus.subscribe("jobs", group="workers")
        bus.put("jobs", "one")
        jobs.nack(jobs.get(timeout=60), delay=3600)
        assert jobs.get() is None
        clock.advance(3600)
        assert jobs.get().attempt == 2


    def test_a_clock_for_the_bus(tidings_bus, tidings_clock):
        give_back_and_take(tidings_bus, tidings_clock)


    def test_a_clock_for_the_broker(tidings_clock, tidings_broker):
        with tidings_broker.connect("alice") as alice:
            give_back_and_take(alice, tidings_clock)


    def test_nothing_is_left():
        assert [each.name for each in threading.enumerate() if each.name.startswith("tidings")] == []
"""


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTEST_ADDOPTS": ""},
    )


def test_tests_that_use_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(textwrap.dedent(TESTS))
    ended = run("-m", "pytest", "-q", "-W", "error", *PLUGIN, folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "8 passed" in ended.stdout


def test_tests_that_do_not_pay_nothing(tmp_path: Path) -> None:
    """No socket library, no client, no thread; the fixtures are listed with what they are."""
    (tmp_path / "test_program.py").write_text(
        textwrap.dedent("""
            import sys
            import threading

            def test_nothing_has_begun():
                heavy = {"zmq", "msgspec", "tidings.client", "tidings.message", "tidings.node.loop"}
                assert heavy & set(sys.modules) == set()
                assert threading.active_count() == 1
        """)
    )
    ended = run("-m", "pytest", "-q", *PLUGIN, folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    listed = run("-m", "pytest", "--fixtures", "-q", *PLUGIN, folder=tmp_path).stdout
    for name in ("tidings_bus", "tidings_broker", "tidings_clock", "tidings_settings"):
        assert name in listed


def test_whoever_installs_the_package_has_the_fixtures() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tidings": "tidings.testing.plugin"}


def test_a_broker_in_a_thread_keeps_its_folder(tmp_path: Path) -> None:
    """It is a broker like any other: what it has is there for the next one, of whatever kind."""
    clock = ManualClock()
    with Broker(tmp_path, clock) as broker, broker.connect("alice") as alice:
        alice.put("news", "one")
    clock.advance(1.0)  # Of one that has ended the clock wants nothing.
    with tidings.open(tmp_path) as bus:
        assert bus.topic("news").count == 1
