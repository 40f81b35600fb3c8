"""What callers give, checked where it comes in: a wrong argument ends in a sentence, not in a TypeError from inside."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidings.errors import InvalidRequest, InvalidTopic
from tidings.message import Message, check_topic


def check_seconds(given: Any, what: str = "time-out") -> float:
    """The number itself, if it is a number of seconds.

    >>> check_seconds(2.5)
    2.5
    """
    if not isinstance(given, (int, float)) or not given >= 0:
        raise InvalidRequest(f"A {what} is 0 or more seconds, and this is {given!r}.")
    return given


def check_path(given: Any, what: str) -> Path:
    """The path of a file or a folder that an argument names."""
    if not isinstance(given, (str, os.PathLike)) or not os.fspath(given):
        raise InvalidRequest(f"{what} is a path, and this is {given!r}: name a file or folder.")
    return Path(given)


def check_folder(given: Any) -> Path:
    """The folder of a bus."""
    if isinstance(given, str) and "://" in given:
        raise InvalidRequest(f"{given} is the address of a broker, and open takes a folder: use tidings.connect.")
    return check_path(given, "path")


def check_text(given: Any, what: str) -> str:
    """The text itself, if it is one of at least one character that UTF-8 can hold."""
    if not isinstance(given, str) or not given:
        raise InvalidRequest(f"{what} is a text of at least one character, and this is {given!r}.")
    if not given.isascii():
        try:
            given.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{what} has half a character, which UTF-8 cannot hold, in {given!r}.") from error
    return given


def check_message(given: Any) -> Message:
    """The message itself, if it is one that a bus has handed out."""
    if not isinstance(given, Message):
        raise InvalidRequest(f"This takes a message as the bus has handed it out, and got {type(given).__name__}.")
    return given


def several_topics(given: Any) -> tuple[str, ...]:
    """The names of several topics, checked, each once, in the order given."""
    if not isinstance(given, Iterable) or isinstance(given, (bytes, bytearray, memoryview)):
        raise InvalidTopic(f"A topic's name must be text, and this is {type(given).__name__}: give a str.")
    topics = tuple(dict.fromkeys(map(check_topic, given)))
    if not topics:
        raise InvalidRequest("No topic was named: name at least one.")
    return topics


def topics_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """One topic or several, checked, as a subscription names them.

    >>> topics_of(["sport", "news", "sport"])
    ('news', 'sport')
    """
    return (check_topic(given),) if isinstance(given, str) else tuple(sorted(several_topics(given)))
