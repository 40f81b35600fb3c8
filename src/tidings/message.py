"""The nouns that everybody shares: messages, batches, receipts, and the rule for topic names.

A message is the unit of meaning, a batch the unit of work. A batch is kept as plain columns, so that
readers in bulk pay for no objects; a `Message` is made only for anyone who asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import overload

import msgspec

from tidings.errors import InvalidRequest, InvalidTopic, MessageTooLarge

TOPIC_LENGTH_MAX = 128
NAME_LENGTH_MAX = 128
ID_LENGTH_MAX = 256
TIME_US_MAX = 253_402_300_799_999_999
"""The last microsecond of the year 9999, with which the calendars of Python and Spark end."""

Headers = dict[str, bytes]


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message as a subscriber sees it. `published_at` is the publisher's clock, in seconds since 1970.

    >>> Message("news", 7, b"hello").text
    'hello'
    """

    topic: str
    offset: int
    value: bytes
    key: bytes | None = None
    headers: Headers | None = None
    id: str | None = None
    publisher: str = ""
    published_at: float = 0.0
    attempt: int = 1

    @property
    def text(self) -> str:
        """The value read as UTF-8."""
        return self.value.decode()

    @property
    def redelivered(self) -> bool:
        """Whether an earlier session of this subscriber may already have been given this message."""
        return self.attempt > 1


class Columns(msgspec.Struct, frozen=True, array_like=True):
    """The body of a batch as it travels and as it is stored: msgpack of one array, a column per field.

    `format` is 1 for this layout; another first element, or a body that is not a msgpack array, is left
    to later formats. `keys`, `headers` and `ids` are None when no message has one. `published_us` is one
    time for all messages or a time for each, in microseconds since 1970.
    """

    format: int
    publisher: str
    values: list[bytes]
    keys: list[bytes | None] | None = None
    headers: list[Headers | None] | None = None
    ids: list[str | None] | None = None
    published_us: int | list[int] = 0


class Contents(msgspec.Struct, frozen=True):
    """What a broker has to know of a batch that it stores. `largest_bytes` is 0 when no message can be too large."""

    publisher: str
    count: int
    largest_bytes: int = 0
    ids: list[str | None] | None = None


class Batch(Sequence[Message]):
    """Consecutive messages of one topic and one publisher, as columns: `values`, `keys`, `first_offset`.

    >>> batch = Batch("news", 40, Columns(1, "alice", [b"a", b"b"]))
    >>> len(batch), batch[1].offset, batch.values
    (2, 41, [b'a', b'b'])
    """

    __slots__ = ("attempt", "columns", "first_offset", "size_bytes", "stored_at", "topic", "values")

    def __init__(
        self,
        topic: str,
        first_offset: int,
        columns: Columns,
        attempt: int = 1,
        stored_at: float | None = None,
        size_bytes: int = 0,
    ) -> None:
        self.topic = topic
        self.first_offset = first_offset
        self.columns = columns
        self.attempt = attempt
        self.stored_at = stored_at
        """When the broker stored it, in seconds since 1970; only `Bus.read` tells."""
        self.size_bytes = size_bytes
        """How large the body of the stored batch is; only `Bus.read` tells."""
        self.values = columns.values

    @property
    def keys(self) -> list[bytes | None]:
        """The key of each message, None where there is none."""
        return self.columns.keys if self.columns.keys is not None else [None] * len(self.values)

    @property
    def next_offset(self) -> int:
        """The offset after the last message of this batch."""
        return self.first_offset + len(self.values)

    @property
    def redelivered(self) -> bool:
        """Whether an earlier session of this subscriber may already have been given these messages."""
        return self.attempt > 1

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self.values)))]
        if index < 0:
            index += len(self.values)
        columns = self.columns
        times = columns.published_us
        return Message(
            self.topic,
            self.first_offset + index,
            self.values[index],
            None if columns.keys is None else columns.keys[index],
            None if columns.headers is None else columns.headers[index],
            None if columns.ids is None else columns.ids[index],
            columns.publisher,
            (times if isinstance(times, int) else times[index]) / 1e6,
            self.attempt,
        )

    def __iter__(self) -> Iterator[Message]:
        columns, offset, attempt = self.columns, self.first_offset, self.attempt
        topic, publisher, times = self.topic, columns.publisher, columns.published_us
        if columns.keys is None and columns.headers is None and columns.ids is None and isinstance(times, int):
            # The common case, kept free of everything that is the same for each message.
            at = times / 1e6
            for value in self.values:
                yield Message(topic, offset, value, None, None, None, publisher, at, attempt)
                offset += 1
        else:
            for index in range(len(self.values)):
                yield self[index]

    def after(self, offset: int) -> Batch:
        """What is left of this batch from `offset` on."""
        skip = offset - self.first_offset
        if skip <= 0:
            return self
        rest = cut(self.columns, slice(skip, None))
        return Batch(self.topic, offset, rest, self.attempt, self.stored_at, self.size_bytes)

    def before(self, offset: int) -> Batch:
        """What this batch has below `offset`."""
        count = offset - self.first_offset
        if count >= len(self.values):
            return self
        rest = cut(self.columns, slice(0, count))
        return Batch(self.topic, self.first_offset, rest, self.attempt, self.stored_at, self.size_bytes)

    def __repr__(self) -> str:
        return f"Batch({self.topic!r}, {self.first_offset}..{self.next_offset - 1})"


class Share(Batch):
    """Messages of one topic and one publisher whose offsets rise and need not follow each other.

    >>> share = Share("jobs", (3, 7), Columns(1, "alice", [b"a", b"b"]))
    >>> [message.offset for message in share], share.first_offset, share.next_offset
    ([3, 7], 3, 8)
    """

    __slots__ = ("offsets",)

    def __init__(self, topic: str, offsets: Sequence[int], columns: Columns, attempt: int = 1) -> None:
        super().__init__(topic, offsets[0], columns, attempt)
        self.offsets = offsets

    @property
    def next_offset(self) -> int:
        """The offset after the last message of this share."""
        return self.offsets[-1] + 1

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self.values)))]
        columns, times = self.columns, self.columns.published_us
        return Message(
            self.topic,
            self.offsets[index],
            self.values[index],
            None if columns.keys is None else columns.keys[index],
            None if columns.headers is None else columns.headers[index],
            None if columns.ids is None else columns.ids[index],
            columns.publisher,
            (times if isinstance(times, int) else times[index]) / 1e6,
            self.attempt,
        )

    def __iter__(self) -> Iterator[Message]:
        columns, times = self.columns, self.columns.published_us
        nothing = repeat(None)
        return map(  # Nothing of Python runs between one message and the next.
            Message,
            repeat(self.topic),
            self.offsets,
            self.values,
            nothing if columns.keys is None else columns.keys,
            nothing if columns.headers is None else columns.headers,
            nothing if columns.ids is None else columns.ids,
            repeat(columns.publisher),
            repeat(times / 1e6) if isinstance(times, int) else [each / 1e6 for each in times],
            repeat(self.attempt),
        )

    def select(self, rows: Sequence[int], attempt: int | None = None) -> Share:
        """The same share with only these rows."""
        offsets = [self.offsets[row] for row in rows]
        return Share(self.topic, offsets, select(self.columns, rows), self.attempt if attempt is None else attempt)

    def after(self, offset: int) -> Share:
        """What is left of this share from `offset` on."""
        rows = [row for row, each in enumerate(self.offsets) if each >= offset]
        return self if len(rows) == len(self.offsets) else self.select(rows)

    def __repr__(self) -> str:
        return f"Share({self.topic!r}, {len(self.values)} messages of {self.first_offset}..{self.next_offset - 1})"


def cut(columns: Columns, where: slice) -> Columns:
    """The same columns with only the rows that `where` selects."""
    times = columns.published_us
    return Columns(
        columns.format,
        columns.publisher,
        columns.values[where],
        None if columns.keys is None else columns.keys[where],
        None if columns.headers is None else columns.headers[where],
        None if columns.ids is None else columns.ids[where],
        times if isinstance(times, int) else times[where],
    )


def select(columns: Columns, rows: Sequence[int]) -> Columns:
    """The same columns with only these rows.

    >>> select(Columns(1, "alice", [b"a", b"b", b"c"], [None, b"k", None]), (0, 1))
    Columns(format=1, publisher='alice', values=[b'a', b'b'], keys=[None, b'k'], headers=None, ids=None, published_us=0)
    """
    if len(rows) < 2:  # One row alone would come out of the getter as it is, and none is nothing it could get.
        return cut(columns, slice(rows[0], rows[0] + 1) if rows else slice(0))
    get = itemgetter(*rows)
    times = columns.published_us
    return Columns(
        columns.format,
        columns.publisher,
        list(get(columns.values)),
        None if columns.keys is None else list(get(columns.keys)),
        None if columns.headers is None else list(get(columns.headers)),
        None if columns.ids is None else list(get(columns.ids)),
        times if isinstance(times, int) else list(get(times)),
    )


class Receipt(msgspec.Struct, frozen=True):
    """Where a message was stored; `duplicate` says that it had been stored before.

    `offset` is None only for a duplicate whose first copy retention has already removed.
    """

    topic: str
    offset: int | None
    duplicate: bool = False


class Receipts(msgspec.Struct, frozen=True):
    """Where many messages were stored: `count` were given, `duplicates` of them had been stored before."""

    topic: str
    first_offset: int | None
    """Where the first of them is, stored now or before; None if there were none, or none of them is kept any more."""
    count: int
    duplicates: int = 0


class TopicInfo(msgspec.Struct, frozen=True):
    """What a topic looks like from outside: how many messages it holds and who listens."""

    name: str
    first_offset: int
    next_offset: int
    subscriptions: int
    size_bytes: int = 0
    max_backlog: int | None = None
    """How many messages may wait, if the topic has a limit of its own; 0 for any number."""

    @property
    def count(self) -> int:
        """How many messages the topic holds now."""
        return self.next_offset - self.first_offset


class MemberInfo(msgspec.Struct, frozen=True):
    """One member of a group: how many lanes it works on, and what it has."""

    name: str
    lanes: int
    in_flight: int
    waiting: int
    active: bool
    slow: bool
    delayed_acks: int = 0
    """Acks that came later than `delayed_ack_ms` since its stream began."""
    slow_acks: int = 0
    """Those of the last minute that came later than `slow_ack_ms`; three make it slow."""
    longest_ms: int = 0
    """The longest that an ack has taken since its stream began."""


class GroupInfo(msgspec.Struct, frozen=True):
    """What a group looks like from outside; `lag` is what nobody has acked yet."""

    name: str
    topic: str
    lanes: int
    lag: int
    moved_lanes: int
    members: tuple[MemberInfo, ...]


def check_topic(name: str) -> str:
    """The name itself if it may name a topic, or InvalidTopic saying what is wrong with it.

    >>> check_topic("news")
    'news'
    """
    if not isinstance(name, str):
        raise InvalidTopic(f"A topic's name must be text, not {type(name).__name__}: give a str.")
    if not 1 <= len(name) <= TOPIC_LENGTH_MAX:
        what = f"this one has {len(name)}: shorten it." if name else "this one is empty: give it one."
        raise InvalidTopic(f"A topic's name has 1 to {TOPIC_LENGTH_MAX} characters, and {what}")
    if not name.isprintable():
        raise InvalidTopic(f"The topic name {name!r} has control characters: leave them out.")
    return name


def check_name(name: str) -> str:
    """The name itself if it may name a client or publisher, or InvalidRequest saying why not."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidRequest(
            f"The client name {name!r} must be 1 to {NAME_LENGTH_MAX} printable characters: choose another."
        )
    return name


def check_size(size_bytes: int, message_bytes_max: int) -> None:
    """Raises MessageTooLarge for a value above the broker's limit."""
    if size_bytes > message_bytes_max:
        raise MessageTooLarge(
            f"A message of {size_bytes} bytes is above message_bytes_max ({message_bytes_max}): split it, or raise "
            "that setting of the broker."
        )
