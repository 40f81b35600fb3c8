"""Dispatch, help, exit codes and what happens to errors."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tidings import __version__, cli
from tidings.cli import COMMANDS, IN_THE_LAB, main
from tidings.errors import Unavailable

SOURCE = Path(cli.__file__).parents[2]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A command `planted` whose `run` a test sets."""
    module = types.ModuleType("tidings.cli.planted")
    vars(module).update(HELP="Planted.", EXAMPLES="  tidings planted\n", add_arguments=lambda parser: None)
    monkeypatch.setitem(sys.modules, "tidings.cli.planted", module)
    monkeypatch.setitem(COMMANDS, "planted", "planted")
    return module


def test_every_module_of_a_command_is_listed() -> None:
    modules = Path(cli.__file__).parent.glob("*.py")
    commands = [path.stem.rstrip("_") for path in modules if "\nHELP = " in path.read_text(encoding="utf-8")]
    assert sorted([*commands, *IN_THE_LAB]) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_ends_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"usage: tidings {name}" in printed
    examples = printed.partition("examples:\n")[2].strip().splitlines()
    assert examples
    assert all("tidings" in line for line in examples if not line.strip().startswith("#"))
    assert any(f"tidings {name}" in line for line in examples)


def test_a_command_under_its_old_name_works_and_says_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["group", "--help"]) == 0
    printed = capsys.readouterr()
    assert "usage: tidings cluster" in printed.out
    assert (
        printed.err
        == "tidings: `tidings group` is `tidings cluster` now; the old name will be removed in the next release.\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_flag_exits_2_with_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--no-such-flag"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    for name, what in COMMANDS.items():
        assert name in printed
        assert what in printed


def test_no_command_shows_the_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "commands:" in captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tidings {__version__}\n"


def test_an_unknown_command_exits_2_and_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscirbe"]) == 2
    assert "did you mean 'subscribe'?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    assert "--help" in capsys.readouterr().err


def test_a_command_whose_module_is_missing_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "missing_here", "a command")
    assert main(["missing_here"]) == 1
    assert "not part of this installation" in capsys.readouterr().err


def test_an_error_is_one_sentence_on_stderr_and_exits_1(
    planted: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: object) -> int:
        raise Unavailable("No answer\nafter 3 tries: start the broker.")

    planted.run = run  # type: ignore[attr-defined]
    assert main(["planted"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "No answer after 3 tries: start the broker.\n")


def test_an_error_of_the_operating_system_is_one_sentence(
    planted: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.run = lambda arguments: open("/nonexistent/file")  # type: ignore[attr-defined]  # noqa: SIM115
    assert main(["planted"]) == 1
    assert capsys.readouterr().err == ("The operating system refused: /nonexistent/file: No such file or directory.\n")


def test_ctrl_c_exits_130_quietly(planted: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def run(arguments: object) -> int:
        raise KeyboardInterrupt

    planted.run = run  # type: ignore[attr-defined]
    assert main(["planted"]) == 130
    assert capsys.readouterr() == ("", "")


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), **more}


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidings", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED=""),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 141


def test_help_and_put_import_nothing_that_they_do_not_need() -> None:
    """`tidings put` must start fast: no prompt, no tables, no event loop of its own."""
    program = (
        "import sys; from tidings.cli import main; main(['put', '--help']); "
        "heavy = {'prompt_toolkit', 'rich', 'matplotlib', 'tidings.node.loop'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, b"")
