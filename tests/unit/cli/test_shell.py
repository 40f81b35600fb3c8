"""The shell: a script through the input, its errors, completion and history."""

from __future__ import annotations

import io
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import tidings
from tidings.cli import main, prompt, shell

Feed = Callable[[str], tuple[int, list[str], list[str]]]


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Feed:
    """Pipes lines into a shell; the exit code, the lines of its output, those of its errors."""

    def feed(script: str) -> tuple[int, list[str], list[str]]:
        monkeypatch.setattr("sys.stdin", io.StringIO(script))
        code = main(["shell", "--bus", f"{tmp_path}/bus", "--as", "alice"])
        captured = capfd.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return feed


def test_the_operations(feed: Feed) -> None:
    """Z17: put, get [topic], subscribe, unsubscribe, topics, quit."""
    code, out, err = feed(
        """\
        # a comment, and an empty line

        subscribe news
        subscribe sport
        put news it's   "raining"
        put sport 2:1
        get news
        get
        get
        topics
        unsubscribe news
        quit
        put news never
        """
    )
    assert (code, err) == (0, [])
    assert out[:7] == [
        "subscribed to news",
        "subscribed to sport",
        "news: offset 0",
        "sport: offset 0",
        'it\'s   "raining"',
        "sport: 2:1",
        "(nothing)",
    ]
    assert [line.split()[:2] for line in out[7:10]] == [["topic", "messages"], ["news", "1"], ["sport", "1"]]
    assert out[10:] == ["no longer subscribed to news"]


def test_subscriptions_last_from_one_shell_to_the_next(feed: Feed) -> None:
    """Z3, Z17."""
    feed("subscribe news\n")
    feed("put news hello")
    assert feed("get news") == (0, ["hello"], [])


def test_an_error_is_printed_and_the_shell_goes_on(feed: Feed) -> None:
    code, out, err = feed("get news\nsing\nput\nput news\nsubscribe\nsubscribe news never\nget a b\nsubscribe news\n")
    assert code == 1
    assert out == ["subscribed to news"]
    assert len(err) == 7
    assert "'sing'" in err[1]
    assert err[2:4] == ["It is written: put TOPIC TEXT."] * 2
    assert err[5] == "It is written: subscribe TOPIC [START]."


def test_a_topic_may_be_quoted_and_a_start_given(feed: Feed) -> None:
    script = 'put "my topic" a\nput "my topic" b\nsubscribe "my topic" 1\nget "my topic"\nget "my topic"\n'
    assert feed(script)[1][-2:] == ["b", "(nothing)"]


def test_help_names_every_command(feed: Feed) -> None:
    code, out, _ = feed("help\n")
    assert code == 0
    assert [line.split()[0] for line in out[:-1]] == list(shell.COMMANDS)


def test_commands_and_topics_are_completed(tmp_path: Path) -> None:
    with tidings.open(tmp_path, client_id="alice") as bus:
        for topic in ("news", "new york", "sport"):
            bus.put(topic, "x")
        completer = shell.completer(bus)

        def offered(text: str) -> list[str]:
            return [item.text for item in completer.get_completions(Document(text), CompleteEvent())]

        assert offered("") == [f"{name} " for name in shell.COMMANDS]
        assert offered("su") == ["subscribe "]
        assert sorted(offered("get ")) == ['"new york"', "news", "sport"]
        assert sorted(offered("get ne")) == ['"new york"', "news"]
        assert offered("put s") == ["sport"]
        assert offered("put sport te") == []
        assert offered("topics ") == []


def test_the_history_is_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = prompt.history_file()
    assert path == tmp_path / "tidings" / "history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("kept")
    assert prompt.history_file() == path
    assert path.read_text() == "kept"


def test_without_a_place_for_it_there_is_no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    assert prompt.history_file() is None


def test_the_prompt_reads_lines_until_ctrl_d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with (
        tidings.open(tmp_path / "bus", client_id="alice") as bus,
        create_pipe_input() as keyboard,
        create_app_session(input=keyboard, output=DummyOutput()),
    ):
        keyboard.send_text("put news hello\nthrown away\x03topics\n\x04")
        assert list(prompt.prompted_lines("tidings> ", shell.completer(bus))) == ["put news hello", "topics"]
    history = (tmp_path / "state" / "tidings" / "history").read_text()
    assert "+put news hello" in history
    assert "thrown away" not in history
