"""The public names of tidings: what is here today is here tomorrow."""

from __future__ import annotations

import inspect

import pytest

import tidings
from tidings import errors

NAMES = ["Batch", "Message", "Receipt", "Receipts", "TopicInfo", "aconnect", "aopen", "connect"]

ERRORS = {
    "NoSuchTopic": 1,
    "NotSubscribed": 2,
    "InvalidTopic": 3,
    "MessageTooLarge": 4,
    "Fenced": 5,
    "OutOfSequence": 6,
    "LimitReached": 7,
    "Unauthorized": 8,
    "InvalidRequest": 9,
    "Unavailable": 10,
    "Overloaded": 11,
    "ProtocolError": 12,
    "StorageDamaged": 13,
    "Moved": 14,
}

MESSAGE_FIELDS = [
    "topic",
    "offset",
    "value",
    "text",
    "key",
    "headers",
    "id",
    "publisher",
    "published_at",
    "attempt",
    "redelivered",
]


@pytest.mark.parametrize("name", [*NAMES, "TidingsError", *ERRORS])
def test_name_is_exported(name: str) -> None:
    assert hasattr(tidings, name)
    assert name in tidings.__all__


def test_everything_in_all_exists() -> None:
    missing = [name for name in tidings.__all__ if not hasattr(tidings, name)]
    assert missing == []


def test_every_error_class_is_a_name_of_the_package() -> None:
    kinds = [
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.TidingsError) and kind.__module__ == errors.__name__
    ]
    assert [name for name in kinds if getattr(tidings, name, None) is not getattr(errors, name)] == []


@pytest.mark.parametrize(("name", "number"), ERRORS.items())
def test_error_keeps_its_number(name: str, number: int) -> None:
    """Z15: a refusal is known on the wire by its number, which never changes its meaning."""
    kind = getattr(errors, name)
    assert kind.number == number
    assert errors.NUMBERED[number] is kind
    assert issubclass(kind, errors.TidingsError)
    assert type(errors.from_number(number, "text")) is kind


def test_an_unknown_number_keeps_its_text() -> None:
    error = errors.from_number(999, "Something new.")
    assert type(error) is errors.TidingsError
    assert str(error) == "Something new."


@pytest.mark.parametrize("field", MESSAGE_FIELDS)
def test_message_has_field(field: str) -> None:
    assert hasattr(tidings.Message("news", 0, b"hello"), field)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("connect", ["client_id", "timeout", "retries", "inbox"]),
        ("aconnect", ["client_id", "timeout", "retries", "inbox"]),
        ("open", ["client_id", "clock"]),
        ("aopen", ["client_id", "clock"]),
    ],
)
def test_doors_take_their_arguments(function: str, parameters: list[str]) -> None:
    known = inspect.signature(getattr(tidings, function)).parameters
    assert [name for name in parameters if name not in known] == []
