"""E6: `tidings serve --http` in a process of its own, asked by people and by a fuzzer that has read its description."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.integration.broker_process import ROOT, BrokerProcess


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the web service of a broker that runs while the tests of this module do."""
    folder = tmp_path_factory.mktemp("web")
    with BrokerProcess(folder / "data", "--http", "0", "--ready-file", str(folder / "ready")) as broker:
        address, web = (folder / "ready").read_text().splitlines()
        assert address == broker.address
        yield web
        assert broker.stop() == 0
        assert [line for line in broker.log if line.startswith(("Traceback", "Exception"))] == []


def ask(address: str, body: Any = None) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_numbers_become_words(web: str) -> None:
    assert ask(f"{web}/spell?text=I+have+2+cats&lang=en") == (200, {"text": "I have two cats", "lang": "en"})
    long = {"text": "21 gatos. " * 6000, "lang": "es"}
    assert ask(f"{web}/spell", long) == (200, {"text": "veintiún gatos. " * 6000, "lang": "es"})
    assert ask(f"{web}/spell?text=2&lang=xx")[0] == 422
    assert ask(f"{web}/health") == (200, {"status": "ok"})


SCHEMATHESIS = """\
seed = 20221005

[generation]
max-examples = 150
database = "none"

[checks]
negative_data_rejection.expected-statuses = ["400", "413", "415", "422", "431"]
"""


def test_the_service_is_as_it_describes_itself(web: str, tmp_path: Path) -> None:
    """Requests that fit the description and requests that do not: no 5xx, no answer that contradicts it, nothing wrong
    taken for right."""
    (tmp_path / "schemathesis.toml").write_text(SCHEMATHESIS)
    program = [Path(sys.executable).with_name("schemathesis"), "--config-file", "schemathesis.toml"]
    command = [*program, "run", f"{web}/openapi.json", "--no-color"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    generated = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert generated is not None
    assert int(generated[1]) == int(generated[2]) > 200


def test_a_message_of_the_bus_is_shown_in_words(tmp_path: Path) -> None:
    """From the broker to the subscriber, and through the web service to the screen."""
    ready = tmp_path / "ready"
    with BrokerProcess(tmp_path / "data", "--http", "0", "--ready-file", str(ready)) as broker:
        web = ready.read_text().splitlines()[1]
        with tidings.connect(broker.address, client_id="alice") as bus:
            bus.subscribe("news")
            bus.put("news", "3 cats")
            message = bus.get("news", timeout=60)
        assert message is not None
        assert ask(f"{web}/spell?text={urllib.parse.quote(message.text)}")[1]["text"] == "three cats"


def test_sigterm_ends_broker_and_web_service_in_good_order(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    broker = BrokerProcess(tmp_path / "data", "--http", "0", "--ready-file", str(ready)).start()
    web = ready.read_text().splitlines()[1]
    port = int(web.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as idle:
        assert ask(f"{web}/health")[0] == 200
        assert broker.stop() == 0
        assert broker.log[1:] == [f"tidings spells numbers at {web}/spell\n"]
        assert idle.recv(1) == b""
    assert not ready.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def run_serve(
    folder: Path, *flags: str, program: str = "from tidings.cli import main; sys.exit(main(sys.argv[1:]))"
) -> Any:
    command = [sys.executable, "-c", f"import sys; {program}", "serve", "--data", str(folder), *flags]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


def test_a_port_that_is_taken_ends_the_broker_before_it_has_begun(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_serve(tmp_path / "data", "--bind", "tcp://127.0.0.1:*", "--http", str(port))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"Port {port} of 127.0.0.1 is already in use" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_broker_that_cannot_begin_leaves_no_web_service(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        done = run_serve(tmp_path / "other", "--bind", broker.address, "--http", "0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert broker.address in done.stderr


@pytest.mark.parametrize("missing", ["h11", "num2words"])
def test_without_the_extra_one_sentence_says_what_to_install(tmp_path: Path, missing: str) -> None:
    program = f"sys.modules['{missing}'] = None; from tidings.cli import main; sys.exit(main(sys.argv[1:]))"
    done = run_serve(tmp_path / "data", "--bind", "tcp://127.0.0.1:*", "--http", "0", program=program)
    expected = f"--http needs {missing}, which is not installed: pip install '.[web]' in a checkout.\n"
    assert (done.returncode, done.stderr) == (1, expected)
    assert not (tmp_path / "data").exists()
