"""What runs the blocks of the pages notices when one of them does something else than the page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import pages
from tests.pages import Page, reading

Plant = Callable[[str], None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Writes the only page, `page.md`."""
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return lambda text: tmp_path.joinpath("page.md").write_text(text, encoding="utf-8") and None


def block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


def shell(page: Page) -> None:
    page.shell("", prints=["echo"] if "  # " in page.blocks[0].text else [])


@pytest.mark.parametrize(
    "text",
    ["echo one   # one; and more", "G=two\necho $G   # two", "export G=2\necho $(($G + 1))  # 3", "printf ''"],
)
def test_a_shell_block_that_does_what_it_says(text: str, plant: Plant, tmp_path: Path) -> None:
    plant(block("sh", text))
    with reading("page.md", tmp_path) as page:
        shell(page)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("sh", "false"),
        ("sh", "no-such-command --at all"),
        ("sh", "echo one   # two"),
        ("console", "$ echo 7 members\n7 groups"),
        ("console", "$ echo one\none\ntwo"),
    ],
)
def test_a_shell_block_that_does_something_else(language: str, text: str, plant: Plant, tmp_path: Path) -> None:
    plant(block(language, text))
    with pytest.raises(AssertionError, match=r"page\.md"), reading("page.md", tmp_path) as page:
        shell(page)


def test_numbers_and_ids_may_differ(plant: Plant, tmp_path: Path) -> None:
    plant(block("console", "$ echo group 0a1b2c3d, 14 members\ngroup ffd30d76, 3 members"))
    with reading("page.md", tmp_path) as page:
        shell(page)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("1 / 0", ZeroDivisionError),
        ("undefined", NameError),
        ("import no_such_module", ImportError),
        ("print('one')   # two", AssertionError),
        ("'a'.upper()   # 'B'", AssertionError),
    ],
)
def test_a_program_that_does_something_else(text: str, error: type[Exception], plant: Plant, tmp_path: Path) -> None:
    plant(block("python", text))
    with pytest.raises(error), reading("page.md", tmp_path) as page:
        page.python("", prints="print" in text)


def test_a_program_whose_loop_would_never_end(plant: Plant, tmp_path: Path) -> None:
    plant(block("python", "while True:\n    work()\nafter = 1"))

    def work() -> None:
        raise pages.Enough

    with reading("page.md", tmp_path) as page:
        assert page.python("while", work=work)["after"] == 1


def test_a_block_that_nobody_runs(plant: Plant, tmp_path: Path) -> None:
    plant(block("sh", "true") + block("text", "a figure") + block("python", "pass"))
    with pytest.raises(AssertionError, match=r"line 7: this block has not run"), reading("page.md", tmp_path) as page:
        page.shell("true")


def test_an_address_stands_for_the_same_one_throughout(plant: Plant, tmp_path: Path) -> None:
    plant(block("sh", "true"))
    page = Page("page.md", tmp_path)
    one, other, again = page.put_in_place("tcp://127.0.0.1:7400 tcp://10.0.0.2:7400 tcp://127.0.0.1:7400").split()
    assert one == again != other
    assert "7400" not in one and other.startswith("tcp://127.0.0.1:")
    page.close()
