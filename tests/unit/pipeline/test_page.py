"""docs/pipeline.md names every table, column and reason, and every flag of `run`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tidings.cli import pipeline
from tidings.pipeline.schema import TABLES
from tidings.pipeline.silver import DUPLICATE, NOT_TEXT

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([^`\n]+)`", PAGE))


def test_tables_and_columns() -> None:
    columns = {name for kind in TABLES.values() for name in kind.schema.names}
    assert columns | set(TABLES) | {DUPLICATE, NOT_TEXT} <= NAMED


def test_flags() -> None:
    parser = argparse.ArgumentParser()
    pipeline._run_arguments(parser)
    ours = {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}
    of_the_bus = {"--as", "--bus", "--retries", "--keys", "--server-key", "--help", "--json"}
    told = {word for name in NAMED for word in re.findall(r"--[a-z-]+", name)}
    assert ours - of_the_bus <= told
