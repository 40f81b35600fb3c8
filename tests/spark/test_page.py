"""What docs/spark.md and README.md show of Spark is what happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.integration.broker_process import ROOT
from tests.pages import Page
from tests.spark.conftest import Place
from tests.spark.test_stream import until
from tests.unit.spark.test_options import KAFKA_READING, KAFKA_WRITING
from tidings.spark.options import READING, WRITING
from tidings.spark.schema import COLUMNS

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def at(place: Place) -> dict[str, str]:
    """Where the broker is: the variable would have to be there before the session is."""
    return {'format("tidings")': f'format("tidings").option("bus", "{place.broker.address}")'}


def test_the_programs_of_the_page(place: Place, tmp_path: Path) -> None:
    place.bus.put_many("numbers", [str(number) for number in range(1, 101)])
    own_checkpoint = {'"checkpoint/"': f'"{tmp_path}/checkpoint"'}  # Spark begins relative paths where pytest began.
    page = Page("docs/spark.md", tmp_path, instead=at(place) | own_checkpoint)
    query = page.python("getOrCreate")["query"]
    try:
        until(lambda: any(info.name == "squares" and info.count == 100 for info in place.bus.topics()), query)
    finally:
        query.stop()
    assert sorted(float(value) for value in place.values("squares")) == [float(n * n) for n in range(1, 101)]
    both = page.python("def both")["both"]
    rows = place.read("numbers", endingOffsets=3)
    for _ in range(2):  # Spark repeats the function after a crash.
        both(rows, 0)
    assert sorted(place.values("a")) == sorted(place.values("b")) == [b"1", b"2", b"3"]


def test_the_program_of_the_readme(place: Place, spark: Any, tmp_path: Path) -> None:
    """README.md: its stream reads topics by a pattern, also one that comes later, and its writer writes them."""
    place.bus.put("clicks.de", "1")
    place.bus.subscribe("pages")
    page = Page("README.md", tmp_path, instead=at(place))
    writer = page.python("spark.readStream", spark=spark)["pages"]
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        place.bus.put("clicks.es", "2")
        until(lambda: place.values("pages") == [b"2"], query)
    finally:
        query.stop()


def test_every_option_and_column_is_on_the_page() -> None:
    assert names_in("Options") == {*READING, *WRITING}
    assert names_in("Columns") == {field.name for field in COLUMNS}


def test_every_option_of_kafka_is_on_the_page() -> None:
    """With what it is here, or why it is not; tests/unit/spark/test_options.py tries each."""
    sides = [name for name in (*KAFKA_READING, *KAFKA_WRITING) if name.partition(".")[0] != "kafka" or name in NAMED]
    assert names_in("Coming from Kafka") == {*sides, "kafka.*"}


NAMED = ("kafka.bootstrap.servers", "kafka.group.id")
"""Those of Kafka's client that the page names; the others are `kafka.*`."""


def names_in(section: str) -> set[str]:
    """The names in the first column of the table of a section."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w.*]+)`", row)}
