"""What holds for all tests: no example of Hypothesis is too slow, what takes long begins early, and simulated worlds
have other seeds in every run.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about what is tested. By default one that takes
# 200 ms fails its test, and so does a slow search for examples.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

HERE = Path(__file__).parent
LONG_FIRST = ("spark", "integration", "simulation")
"""Folders whose tests take seconds and more, those that take longest first."""


FIRST_SEED = "TIDINGS_FIRST_SEED"


def pytest_configure() -> None:
    """Seeds that have always held say nothing new. The workers of a run inherit the one that is drawn here."""
    os.environ.setdefault(FIRST_SEED, str(secrets.randbelow(10**12)))


def pytest_report_header() -> str:
    return f"seeds of simulated worlds: another run has the same ones with {FIRST_SEED}={os.environ[FIRST_SEED]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what takes long before what does not.

    Several workers share the tests from the end of the list, so the first of them keeps all of Spark and its one
    session, and at the end nobody waits for a test of a minute.
    """
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    parts = item.path.relative_to(HERE).parts if item.path.is_relative_to(HERE) else ()
    folder = parts[0] if parts else ""
    return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)
