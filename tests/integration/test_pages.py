"""What README.md and the pages in docs/ show is what happens: every block runs, here or in a test named here."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import tidings
from tests.pages import ROOT, Enough, blocks_of, pages, reading

ELSEWHERE: dict[str, dict[str, str]] = {
    "README.md": {"spark.readStream": "tests/spark/test_page.py"},
    "docs/audit.md": {"tidings audit": "tests/spark/test_commands.py"},
    "docs/experiments.md": {
        "Sweep(": "tests/unit/experiments/test_experiments.py",
        "select nodes": "tests/spark/test_experiments.py",
    },
    "docs/pipeline.md": {
        "tidings pipeline run": "tests/spark/test_commands.py",  # But `pip install`, which fetches packages.
        "tidings pipeline status": "tests/spark/test_commands.py",
        "DeltaTable": "tests/spark/test_pipeline.py",
        "lake_table": "tests/spark/test_pipeline.py",
    },
    "docs/ring.md": {"run_churn": "tests/simulation/test_chord.py"},
    "docs/spark.md": {"both(": "tests/spark/test_page.py", "getOrCreate": "tests/spark/test_page.py"},
    "docs/wire.md": {"ask(": "tests/integration/test_door.py"},
}
"""Blocks that run in a test of their own, by words in them: which one."""

CANNOT: dict[str, dict[str, str]] = {
    "README.md": {
        "make test": "it is what runs this test",
        "pip install": "fetches packages; `make setup` installs the same ones",
    },
    "docs/experiments.md": {"experiment all": "half an hour in all; tests/spark/test_experiments.py has smaller ones"},
    "docs/performance.md": {
        "tidings bench": "minutes, and gigabytes of disk; tests/integration/test_bench.py is quick"
    },
    "docs/spark-cluster.md": {
        "spark-class": "a machine for each line; tests/spark/test_cluster.py has a master and workers of its own",
        "--lake /shared/lake": "an installation at /opt/tidings; tests/spark/test_cluster.py has another",
        "venv-pack": "fetches packages; tests/spark/test_cluster.py packs what is installed",
        "PYSPARK_PYTHON=./env": "the same",
        "start-connect-server": "packages of Spark Connect, which are not locked",
        "tidings keys": "ends in words; tests/spark/test_cluster.py makes the keys",
    },
    "docs/sockets.md": {
        "--sockets-allow": "two machines; tests/integration/test_gateways.py has two network namespaces"
    },
}
"""Blocks that no test runs, by words in them, and why. Their commands have at least all flags that are shown."""


def left_to(page: str) -> list[str]:
    return [*ELSEWHERE.get(page, {}), *CANNOT.get(page, {})]


def read(name: str, folder: Path, **options: Any) -> Any:
    return reading(name, folder, elsewhere=left_to(name), **options)


# The lists.


@pytest.mark.parametrize("page", pages())
def test_every_block_of_a_page_has_a_test(page: str) -> None:
    left = [block for block in blocks_of(page) if not any(words in block.text for words in left_to(page))]
    name = re.sub(r"\W", "_", Path(page).stem.lower())
    assert not left or f"test_{name}" in globals(), f"{page}, line {left[0].line}: no test runs this block"
    for words in left_to(page):
        assert any(words in block.text for block in blocks_of(page)), f"{page} has no {words!r}"


def test_every_test_elsewhere_reads_the_page() -> None:
    for page, tests in ELSEWHERE.items():
        for test in tests.values():
            assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not read {page}"


def test_commands_that_cannot_run_have_the_flags_that_are_shown() -> None:
    count = 0
    for page, reasons in CANNOT.items():
        for block in blocks_of(page):
            if any(words in block.text for words in reasons):
                for line in re.findall(r"^(?:\$ )?(tidings .*)$", block.text, re.MULTILINE):
                    check_flags(line)
                    count += 1
    assert count > 15


def check_flags(line: str) -> None:
    name, *rest = shlex.split(line, comments=True)[1:]
    try:
        module = importlib.import_module(f"tidings.cli.{name}")
    except ModuleNotFoundError:
        module = importlib.import_module(f"tidings_lab.commands.{name}")
    parser = argparse.ArgumentParser(prog=name, exit_on_error=False)
    module.add_arguments(parser)
    parser.parse_args(rest)


def test_what_make_is_said_to_do_it_does() -> None:
    named = set(
        re.findall(r"\bmake ([a-z]+)", "".join((ROOT / page).read_text() for page in ("README.md", "CONTRIBUTING.md")))
    )
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test", "check", "setup"} <= named <= targets


# The pages.


class Calls(list[Any]):
    """A function of the reader's: what it was called with. It ends the loop in which it is called for the last time."""

    def __init__(self, last: int, answer: Any = None) -> None:
        self._last, self._answer = last, answer

    def __call__(self, argument: Any, *others: Any) -> Any:
        self.append(argument)
        if len(self) == self._last:
            raise Enough
        return self._answer


def test_readme(tmp_path: Path) -> None:
    with read("README.md", tmp_path, instead={"--groups 4 --replicas 3": "--groups 2 --replicas 1"}) as page:
        page.python("tidings.open(", prints=True)
        page.begin()
        page.run("tidings serve --data data/ --sockets 4200 --http")
        printed = page.shell("tidings subscribe news", prints=["tidings get"], says={"tidings shell": "topics\nquit\n"})
        assert "news" in printed["tidings shell --as alice"]
        with tidings.connect(page.bus, client_id="alice") as bus:
            the_programs_of_the_readme(page, bus)
        page.run("printf '#!/bin/sh\\ncat; echo handled\\n' >handle.sh && chmod +x handle.sh && tidings put jobs 3")
        page.shell("tidings work", until={"tidings work": "handled"})
        shown = page.shell("tidings editor", says={"tidings subscriber": "SUBSCRIBE news\nQUIT\n"})
        assert "SUBSCRIBE OK" in "".join(shown.values())
        page.begin()
        three = ",".join(f"tcp://127.0.0.1:{port}" for port in (7401, 7402, 7403))
        for folder, port in (("b", 7402), ("c", 7403)):
            page.run(f"tidings serve --data {folder}/ --bind tcp://127.0.0.1:{port} --group {three}")
        printed = page.shell("export TIDINGS_BUS", "tidings cluster", again=["tidings cluster"])
        assert "3 members" in printed["tidings cluster"]
        page.begin()
        assert "published to news" in "".join(page.shell("tidings node --bind").values())
        page.begin()
        page.run("tidings serve --data a/")
        page.shell("tidings cluster add", again=["tidings cluster add"])
        page.begin()
        page.shell("tidings ring up")


def the_programs_of_the_readme(page: Any, bus: tidings.Bus) -> None:
    bus.put_many("news", ["one", "two", "three"])
    show, total = Calls(2), Calls(1)
    names = page.python("bus.get(", bus=bus, print=lambda *what: show(what), sum=total, total=0)
    assert show == [(2, None, "two"), (3, None, "three")]
    assert names["message"].text == "three"
    page.python("bus.put_many(", bus=bus, lines=["a", "b"])
    assert values(bus, "news")[4:] == [b"hello", b"both", b"a", b"b", b"hello", b"a", b"b"]
    bus.subscribe("orders")
    bus.put("orders", "seven")
    page.python("bus.transaction()", bus=bus, invoice_for=lambda order: f"for {order.text}")
    assert values(bus, "invoices") == [b"for seven"]
    done = Calls(2)
    bus.subscribe("jobs", group="workers").close()
    bus.put_many("jobs", ["1", "2"])
    page.python("group=", bus=bus, work=done)
    assert [job.text for job in done] == ["1", "2"]


def values(bus: tidings.Bus, topic: str) -> list[bytes]:
    return [value for batch in bus.read(topic) for value in batch.values]


def test_audit(tmp_path: Path) -> None:
    with read("docs/audit.md", tmp_path) as page:
        page.run("tidings serve --data data/")
        page.wait_until_ready()
        with contextlib.chdir(page.folder), page.python("record=", tidings=tidings)["bus"] as bus:
            bus.put("news", "hello")
            assert bus.get("news", timeout=60).text == "hello"
        assert list((page.folder / "deliveries").iterdir())


def test_files(tmp_path: Path) -> None:
    with read("docs/files.md", tmp_path) as page:
        page.run("tidings serve --data data/")
        page.run("tidings put news hello")
        printed = page.shell("tidings export")
        assert "hello" in (page.folder / "news.csv").read_text()
        assert [text for line, text in printed.items() if "--until" in line] == [""], "nothing was put in that month"
        assert "hello" in page.run("tidings export copy --to csv")


def test_groups(tmp_path: Path) -> None:
    with read("docs/groups.md", tmp_path) as page, tidings.open(page.folder / "data", "alice") as bus:
        bus.subscribe("jobs", group="workers").close()
        bus.put_many("jobs", ["1", "2"])
        done = Calls(2)
        page.python("group=", bus=bus, work=done)
        assert [job.text for job in done] == ["1", "2"]
        page.run("tidings serve --data shared/")
        page.run("printf '#!/bin/sh\\ncat >/dev/null\\n' >handle.sh && chmod +x handle.sh && tidings put jobs a")
        page.shell("tidings work", until={"--group workers   ": "a"}, without=["./handle.sh", "tidings get jobs"])
        page.begin()
        serve, work = page.take("--preset channels").text.splitlines()
        page.run(serve)
        page.run("tidings put channel hello")
        page.launch(work).wait_for(re.compile("hello"))


TAKE_ORDER = 'def take_order(bus, what):\n    bus.put("invoices", f"{what}: 400")\n\n\n'


def test_testing(tmp_path: Path) -> None:
    with read("docs/testing.md", tmp_path) as page:
        programs = [page.take("def test_").text for block in page.blocks if "def test_" in block.text]
        (page.folder / "test_page.py").write_text(TAKE_ORDER + "\n\n".join(programs), encoding="utf-8")
        page.run("python -m pytest -q -p no:cacheprovider test_page.py")


def test_growing(tmp_path: Path) -> None:
    keys = " && ".join(
        ["tidings keys keys/", *(f"tidings keys keys/ --client {name}" for name in ("replica", "alice"))]
    )
    with read("docs/growing.md", tmp_path) as page:
        page.run(keys)
        page.run("tidings serve --data a/ --bind tcp://10.0.0.1:7400 --keys keys/ --admin alice")
        join = "--keys keys/ --admin alice --into tcp://10.0.0.1:7400"
        page.run(f"tidings serve --data c/ --bind tcp://10.0.0.3:7400 {join}")
        page.shell("tidings cluster add", again=["cluster add tcp://10.0.0.2", "cluster add tcp://10.0.0.3"])
        page.begin()
        page.run(keys)
        page.run("tidings serve --data ring/ --bind tcp://10.0.1.1:7500 --keys keys/ --admin alice --ring")
        page.shell("tidings ring status")


def test_node(tmp_path: Path) -> None:
    with read("docs/node.md", tmp_path) as page:
        says = {"tidings nodes shell": "subscribe news\npublish news hello\n"}
        assert "published to news" in "".join(page.shell("the first node", says=says).values())
        page.python("msgspec.msgpack.encode", prints=True)["node"].context.destroy(linger=0)
        page.begin()
        ports = [27500, 27501, 27502, 27503, 27504]
        for port in ports:
            page.run(
                f"tidings node --bind tcp://127.0.0.1:{port}" + " --join tcp://127.0.0.1:27500" * (port > ports[0])
            )
        page.run_until_it_works("tidings nodes --at tcp://127.0.0.1:27502 --all | grep '5 nodes'")
        page.shell("--at tcp://127.0.0.1:27502 --all")
        page.begin()
        page.shell("tidings keys keys/ --client tcp://10.0.0.5:7500")


def test_overlay(tmp_path: Path) -> None:
    with read("docs/overlay.md", tmp_path, instead={"--nodes 10000": "--nodes 100 --no-spark"}) as page:
        page.shell("tidings experiment hyparview")
        assert page.python("load(")["outcome"].rule is None


def test_replication(tmp_path: Path) -> None:
    fewer = {"--seeds 1000": "--seeds 3", "--seeds 5600": "--seeds 3"}
    with read("docs/replication.md", tmp_path, instead=fewer) as page:
        page.shell("tidings put news hello")
        page.shell("tidings cluster add", again=["cluster add"])
        page.shell("--seed 42")
        page.shell("--seeds 5600")
        page.begin()
        page.run("tidings serve --data data/ --bind tcp://b:7400")
        with page.python("tidings.connect(", tidings=tidings)["bus"] as bus:
            assert bus.put("news", "hello").offset == 0


def test_ring_service(tmp_path: Path) -> None:
    smaller = {"--groups 4 --replicas 3": "--groups 2 --replicas 1", "--commands 500": "--commands 100"}
    smaller["tidings ring kill --leader b; "] = (
        ""  # Of one node: the group would be gone. README.md has such a line last.
    )
    with read("docs/ring-service.md", tmp_path, instead=smaller) as page:
        page.shell("tidings ring up", says={"tidings shell": "put news hello\ntopics\nquit\n"})
        page.begin()
        page.run("tidings keys keys/ && tidings keys keys/ --client replica")
        page.shell("--ring --group")


def test_simulator(tmp_path: Path) -> None:
    fewer = {"--seeds 20000": "--seeds 3", "--seeds 100000": "--seeds 3", "--seeds 1000 ": "--seeds 3 "}
    spark = {"--master spark://10.0.0.1:7077 ": ""}
    with read("docs/simulator.md", tmp_path, instead=fewer | spark) as page:
        page.shell("tidings simulate --seeds 20000")
        page.shell("--mutant", fails=["--mutant"])
        page.shell("--sweep")
        page.python("run_handlers")


def test_sockets(tmp_path: Path) -> None:
    with read("docs/sockets.md", tmp_path) as page:
        speller = page.address("127.0.0.1:7480")  # What spells the numbers gets its default address from us, too.
        page.environment["TIDINGS_SPELL"] = f"http://{speller}/spell"
        block = page.take("tidings serve")
        [serve, editor, subscriber, *session] = block.text.splitlines()
        page.run(serve.replace("--sockets 4200", "--sockets 4200 --http"))
        page.run(editor)
        program = page.launch(subscriber)
        for line in session:
            words = line.removeprefix("c> ")
            if re.fullmatch(r"(UN)?SUBSCRIBE news|QUIT", words):
                program.say(words)
            else:
                program.wait_for(re.compile(rf"{re.escape(words)}$"))
        program.wait()
        page.begin()
        page.run("export ADDRESSES=tcp://127.0.0.1:7401")  # A group of one.
        page.run("tidings serve --data a-ring/ --bind tcp://127.0.0.1:7501 --ring")
        page.wait_until_ready()
        page.shell("--group $ADDRESSES --sockets")
        page.wait_until_ready()


def test_spark(tmp_path: Path) -> None:
    with read("docs/spark.md", tmp_path) as page:
        page.shell("seq 1 1000", without=["pip install"])
        assert len(page.run("tidings export numbers --to csv").splitlines()) == 1001


def test_spelling(tmp_path: Path) -> None:
    with read("docs/spelling.md", tmp_path) as page:
        page.python("spell(")
        page.run("tidings serve --data before/ --bind tcp://127.0.0.1:7401")
        page.environment["TIDINGS_BUS"] = f"tcp://{page.address('127.0.0.1:7401')}"
        page.run("tidings subscribe news && tidings put news 'tengo 2 gatos'")
        page.shell("tidings get news", until={"tidings get news": "tengo dos gatos"})
        page.shell("curl")


def test_storage(tmp_path: Path) -> None:
    with read("docs/storage.md", tmp_path) as page:
        page.environment["TIDINGS_STORAGE"] = f"tcp://{page.address('127.0.0.1:7410')}"
        page.shell("cat data/topics", prints=["cat data", "storage last"])
        page.begin()
        page.shell("tidings keys")
        page.wait_until_ready()
