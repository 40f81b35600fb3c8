"""Topics to files and back: nothing is changed on the way, and nothing is stored twice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess
from tidings.cli import main
from tidings.files.importing import import_file
from tidings.message import Message

ROWS = 30_000

MESSAGES: list[dict[str, object]] = [
    {"value": b"plain"},
    {"value": b"", "key": b""},
    {"value": bytes(range(256)), "key": b"\xff\x00", "headers": {"a": b"\x80", "b": b"text"}, "id": "one"},
    {"value": 'commas, "quotes",\nlines\r\nand é \u2028'.encode(), "key": b"k", "headers": {"name, with": b"x"}},
    {"value": b"null\x00inside", "id": "two"},
    {"value": b"  spaces  ", "key": b"=1+1"},
]


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[tidings.Bus]:
    with tidings.open(tmp_path / "data", client_id="alice") as opened:
        yield opened


def contents(bus: tidings.Bus, topic: str) -> list[tuple[object, ...]]:
    messages: Iterator[Message] = (message for batch in bus.read(topic) for message in batch)
    return [(each.value, each.key, each.headers, each.id) for each in messages]


def run(data: Path, *arguments: str) -> int:
    return main([*arguments, "--bus", str(data)])


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_round_trip_changes_nothing(
    bus: tidings.Bus, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for message in MESSAGES:
        bus.put("news", **message)  # type: ignore[arg-type]
    bus.put_many("news", [b"%d" % number for number in range(5_000)])
    path = tmp_path / f"news.{kind}"
    assert run(tmp_path / "data", "export", "news", "--out", str(path)) == 0
    assert "5,006 messages" in capsys.readouterr().err
    assert run(tmp_path / "data", "import", str(path), "--topic", "copy") == 0
    assert contents(bus, "copy") == contents(bus, "news")
    assert run(tmp_path / "data", "import", str(path), "--topic", "copy", "--json") == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(printed) == {"topic": "copy", "rows": 5_006, "stored": 0, "before": 5_006}
    assert bus.topic("copy").count == 5_006
    assert run(tmp_path / "data", "import", str(path), "--topic", "again", "--name", "second") == 0
    assert contents(bus, "again") == contents(bus, "news")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", path.name], "nothing is left behind"


def test_a_range_by_offsets_and_to_the_output(
    bus: tidings.Bus, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    bus.put_many("news", [b"%d" % number for number in range(100)])
    assert run(tmp_path / "data", "export", "news", "--to", "json", "--from", "10", "--until", "13") == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(line["offset"], line["text"], line["publisher"]) for line in lines] == [
        (10, "10", "alice"),
        (11, "11", "alice"),
        (12, "12", "alice"),
    ]
    assert run(tmp_path / "data", "export", "news", "--to", "csv", "--until", "2000-01-01") == 0
    assert capfdbinary.readouterr().out.splitlines() == [
        b"topic,offset,key,key_encoding,value,value_encoding,headers,id,publisher,published_at,stored_at"
    ]
    assert run(tmp_path / "data", "export", "news", "--to", "csv", "--from", "101") == 1
    assert b"--from names the offset 101" in capfdbinary.readouterr().err


def test_files_that_others_have_made(bus: tidings.Bus, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("\ufeffvalue,key\nuno,a\ndos,\n".encode())
    assert import_file(bus, path, "numbers", "csv").rows == 2
    assert contents(bus, "numbers") == [(b"uno", b"a", None, None), (b"dos", None, None, None)]
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"value": "x", "id": "1"}\n\n{"base64": "/w==", "headers": {"a": "b"}}\n')
    assert run(tmp_path / "data", "import", str(lines), "--topic", "lines") == 0
    assert contents(bus, "lines") == [(b"x", None, None, "1"), (b"\xff", None, {"a": b"b"}, None)]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.csv", "key,colour\n", "has no column value"),
        ("a.csv", "value,colour\nx,red\n", "'colour', which no message has"),
        ("a.csv", "value\nx\nx,y\n", "line 3 has 2 fields, and there are 1 columns"),
        ("a.csv", "value,value_encoding\nx,rot13\n", "line 2 has a value of the encoding 'rot13'"),
        ("a.csv", 'value\n"x\n', "is not CSV in UTF-8"),
        ("a.csv", "value,headers\nx,[]\n", "line 2 has headers that are not a JSON object"),
        ("a.json", '{"text": "x"}\n{"text"\n', "line 2 is not JSON"),
        ("a.json", "[]\n", "line 1 is not a JSON object"),
        ("a.json", '{"key": "k"}\n', "line 1 has neither text nor base64"),
        ("a.json", '{"base64": "?"}\n', "line 1 has a base64 that is not base64"),
        ("a.json", '{"text": "x", "id": 7}\n', "line 1 has an id that is not a text"),
        ("a.json", '{"text": "x", "colour": 7}\n', "has a field 'colour'"),
        ("a.parquet", "no", "is not Parquet"),
        ("a.txt", "no", "does not end in a known format"),
    ],
)
def test_what_cannot_be_imported_says_so(
    bus: tidings.Bus, tmp_path: Path, name: str, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert run(tmp_path / "data", "import", str(tmp_path / name), "--topic", "t") == 1
    assert sentence in capsys.readouterr().err


def test_a_file_that_changed_is_refused(bus: tidings.Bus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "news.json"
    whole = "".join(json.dumps({"text": str(number)}) + "\n" for number in range(10_000))
    path.write_text(whole + "broken\n")
    assert run(tmp_path / "data", "import", str(path), "--topic", "news") == 1
    stored = bus.topic("news").count
    assert 0 < stored < 10_000
    path.write_text(whole)
    capsys.readouterr()
    assert run(tmp_path / "data", "import", str(path), "--topic", "news") == 1
    assert "has changed since its import into 'news' began" in capsys.readouterr().err
    assert bus.topic("news").count == stored
    (tmp_path / ".news.json.tidings-import").unlink()
    assert run(tmp_path / "data", "import", str(path), "--topic", "news") == 0
    assert bus.topic("news").count == stored + 10_000


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "news"]) == 2
    assert main(["export", "news", "--to", "xml"]) == 2
    assert main(["import", "x.csv"]) == 2
    assert main(["import", str(tmp_path / "x.csv"), "--topic", "t"]) == 1
    assert "There is no file" in capsys.readouterr().err
    assert main(["export", "news", "--out", str(tmp_path / "no" / "x.csv")]) == 1
    assert "There is no folder" in capsys.readouterr().err
    with tidings.open(tmp_path / "data", client_id="alice") as bus:
        bus.put("news", "x")
        assert run(tmp_path / "data", "export", "news", "--to", "parquet") == 1
    assert "Parquet is not text" in capsys.readouterr().err


def test_a_killed_import_is_gone_on_with_exactly(tmp_path: Path) -> None:
    """SIGKILL at several points; each run goes on where the broker knows that the one before had come to."""
    path = tmp_path / "rows.csv"
    lines = (f'"row {number}, of\n{ROWS}",k{number % 7},id-{number}' for number in range(ROWS))
    path.write_text("value,key,id\n" + "\n".join(lines) + "\n")
    with BrokerProcess(tmp_path / "data") as broker, tidings.connect(broker.address, "looker", retries=10) as bus:
        command = [sys.executable, "-m", "tidings", "import", str(path), "--topic", "rows", "--bus", broker.address]

        def count() -> int:
            return sum(info.count for info in bus.topics())

        kills = 0
        for goal in (1, ROWS // 3, 2 * ROWS // 3):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
            deadline = time.monotonic() + 120
            while count() < goal and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.002)
            process.kill()
            kills += process.wait() != 0
        assert kills, "at least one run was killed in the middle"
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, cwd=ROOT)
        said = json.loads(done.stdout)
        assert said["rows"] == said["stored"] + said["before"] == ROWS
        assert contents(bus, "rows") == [
            (f"row {number}, of\n{ROWS}".encode(), b"k%d" % (number % 7), None, f"id-{number}")
            for number in range(ROWS)
        ]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "rows.csv"]
