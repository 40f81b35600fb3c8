"""What docs/spark.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.broker_process import ROOT
from tests.spark.conftest import Place
from tests.spark.test_stream import until
from tidings.spark.options import READING, WRITING
from tidings.spark.schema import COLUMNS

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def test_the_ten_lines(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place.bus.put_many("numbers", [str(number) for number in range(1, 101)])
    program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    program = program.replace('format("tidings")', f'format("tidings").option("bus", "{place.broker.address}")')
    program = program.replace('"checkpoint/"', repr(str(tmp_path / "checkpoint")))
    names: dict[str, object] = {}
    exec(compile(program, "spark.md", "exec"), names)  # noqa: S102 - our own page
    query = names["query"]
    try:
        until(lambda: any(info.name == "squares" and info.count == 100 for info in place.bus.topics()), query)
    finally:
        query.stop()  # type: ignore[attr-defined]
    assert sorted(float(value) for value in place.values("squares")) == [float(n * n) for n in range(1, 101)]


def test_every_option_and_column_is_on_the_page() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE)
    named = {name.lower() for row in rows for name in re.findall(r"`(\w+)`", row)}
    ours = (READING | WRITING) - {"path", "checkpointlocation", "queryname"}
    assert ours <= named
    assert {field.name for field in COLUMNS} <= named
    assert named <= ours | {field.name for field in COLUMNS}
