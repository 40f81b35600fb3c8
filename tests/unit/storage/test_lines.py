"""How topics become file names and messages become lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.storage.lines import file_name, lines_of, message_of

TOPICS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=128)


@given(st.lists(st.binary(max_size=40) | st.text(max_size=40).map(str.encode)))
def test_every_message_is_one_line_and_can_be_read_back(values: list[bytes]) -> None:
    """E5: line ends inside a message, backslashes and bytes that are not text are escaped, and nothing is lost."""
    data = lines_of(values)
    lines = data.split(b"\n")
    assert lines.pop() == b""
    assert [message_of(line) for line in lines] == values
    assert b"\r" not in data
    data.decode()


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\\", exclude_categories=("Cs",)))))
def test_text_stays_as_it_is(texts: list[str]) -> None:
    assert lines_of([text.encode() for text in texts]).decode() == "".join(text + "\n" for text in texts)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (b"two\nlines", rb"two\nlines"),
        (b"old\r\nlines", rb"old\r\nlines"),
        (rb"C:\new", rb"C:\\new"),
        ("grüß".encode(), "grüß".encode()),
        (b"\xff\xfe and \xc3\xbc", rb"\xff\xfe and \xc3\xbc"),
        (b"", b""),
    ],
)
def test_escapes(value: bytes, line: bytes) -> None:
    assert lines_of([b"before", value]) == b"before\n" + line + b"\n"


@given(TOPICS, TOPICS)
def test_names_stay_inside_their_folder_and_differ(one: str, other: str) -> None:
    for name in (file_name(one), file_name(other)):
        assert "/" not in name
        assert not name.startswith(".")
        assert name.endswith(".txt")
        assert name.isascii()
        assert len(name) <= 255
    assert (file_name(one) == file_name(other)) == (one == other)


def test_long_names_that_differ_only_at_their_end_have_files_of_their_own() -> None:
    one, other = "😀" * 127 + "a", "😀" * 127 + "b"
    assert file_name(one) != file_name(other)
    assert len(file_name(one)) <= 255
    # A topic that is named like the file of another one has a file of its own, too.
    assert file_name(file_name(one)[:128]) != file_name(one)
