"""What holds for all tests: no example of Hypothesis is too slow, what takes long begins early, and simulated worlds
have other seeds in every run.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.processor_time import ProcessorTime
from tests.records import Records, durations_s
from tests.scheduling import Scheduling, expected_s

# How long an example takes says how busy the machine is, and nothing about what is tested. By default one that takes
# 200 ms fails its test, and so does a slow search for examples.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

FIRST_SEED = "TIDINGS_FIRST_SEED"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write down what tests/records.py says")


def pytest_configure(config: pytest.Config) -> None:
    """Seeds that have always held say nothing new. The workers of a run inherit the one that is drawn here."""
    config.pluginmanager.register(ProcessorTime())
    config.pluginmanager.register(Records())
    os.environ.setdefault(FIRST_SEED, str(secrets.randbelow(10**12)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_report_header() -> str:
    return f"seeds of simulated worlds: another run has the same ones with {FIRST_SEED}={os.environ[FIRST_SEED]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what takes long before what does not: workers take tests from the front, and wait for nobody at the end."""
    known_s = durations_s()
    items.sort(key=lambda item: -expected_s(item.nodeid, known_s))
