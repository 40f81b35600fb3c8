"""The keeper does what a broker asks of its files, one call after the other; it knows nothing of sockets.

What the calls promise is said in `tidings.protocols.storage`. The keeper holds three facts: who may change the
files (the holder, on disk before the first change of its epoch), in which session, and how large each file is. A
file that is removed while somebody still reads it (`keeps`) is only hidden; it goes when the reader has passed it,
and if the process ends before that, it is there again: anyone who recovers the journal removes it once more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from tidings.errors import InvalidRequest, ProtocolError
from tidings.journal.disk import Buffer, Disk, DiskFull
from tidings.journal.folder import HOLDER_NAME, TEMPORARY_SUFFIX
from tidings.journal.notes import read_note, write_note
from tidings.journal.remedies import RESTORE, advising
from tidings.journal.segment import INDEX_SUFFIX, JOURNAL_SUFFIX
from tidings.protocols.storage import (
    CLOSED,
    FENCED,
    FULL,
    REFUSED,
    VERSION,
    AnyStorageAnswer,
    Append,
    Call,
    Change,
    Create,
    Done,
    Failed,
    Open,
    Opened,
    Piece,
    Read,
    Remove,
    Replace,
    Sync,
    Truncate,
)
from tidings.settings import BrokerSettings

PAST_TOKENS_MAX = 16
FENCED_SENTENCE = "Another broker has taken over this storage: stop one of the two."
READ_BYTES_MAX = 8 * 1024 * 1024
FILE_NAME = re.compile(r"[0-9]{20}\.(?:journal|index|snapshot)|inventory", re.ASCII)
"""The only names that a broker may use: none of them can leave the folder."""


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """The broker that has the folder, its epoch, its settings, and the tokens of those before it."""

    token: bytes
    epoch: int
    settings: BrokerSettings
    past_tokens: tuple[bytes, ...] = ()
    """The newest last; a call of theirs that comes late must not push out who came after them."""


class Keeper:
    """The files of one folder, and whose they are."""

    def __init__(self, disk: Disk, new_session: Callable[[], int]) -> None:
        self._disk = disk
        self._new_session = new_session
        self._session = 0
        self._last_answer: AnyStorageAnswer = Done(0)
        """To the last change of this epoch."""
        for name in disk.names():
            if name.endswith(TEMPORARY_SUFFIX):  # A replacement that a crash has interrupted.
                disk.remove(name)
        self._sizes = {name: disk.size(name) for name in disk.names() if FILE_NAME.fullmatch(name)}
        self._hidden: list[str] = []
        with advising(RESTORE):
            self.holder = read_note(disk, HOLDER_NAME, Holder)
        self.keeps: Callable[[str], bool] = lambda name: False
        """Whether somebody still has to read a file that a broker wants removed."""
        self.on_final: Callable[[str, int], None] = lambda name, size: None
        """Told that so many bytes of a file will never change again, because a broker is about to hear so."""
        self.on_cut: Callable[[str, int], None] = lambda name, size: None
        """Told that a file was cut, which happens when a broker recovers."""
        self.on_open: Callable[[BrokerSettings], None] = lambda settings: None
        """Told that another broker has taken the folder, before it changes anything."""

    @property
    def size_bytes(self) -> int:
        """How much the journal's files hold."""
        return sum(size for name, size in self._sizes.items() if name.endswith(JOURNAL_SUFFIX))

    def handle(self, call: Call, buffers: Sequence[Buffer]) -> tuple[AnyStorageAnswer, Sequence[Buffer]]:
        """Does what is asked; DiskFull and refusals are answers, any other error ends the process unanswered."""
        try:
            match call:
                case Open():
                    return self._open(call), ()
                case Read():
                    return self._read(call)
                case Change():
                    return self._on_change(call, buffers), ()
        except DiskFull as error:
            return Failed(call.call, FULL, str(error)), ()
        except (InvalidRequest, ProtocolError) as error:
            return Failed(call.call, REFUSED, str(error), error.number), ()
        raise AssertionError(f"{call} is none of the keeper's calls")

    def release(self) -> None:
        """Removes hidden files that nobody has to read any more, in the order in which they were to go."""
        while self._hidden and not self.keeps(self._hidden[0]):
            self._disk.remove(self._hidden.pop(0))

    def restock(self) -> None:
        """Looks whether there is room again, if there was none."""
        self._disk.restock()

    def sync_mark(self) -> None:
        """Brings everything onto the disk, and a mark that says so."""
        newest = max((name for name in self._sizes if name.endswith(JOURNAL_SUFFIX)), default=None)
        if newest is not None:
            self._disk.sync(newest)
        self._disk.sync_mark()

    def _open(self, call: Open) -> AnyStorageAnswer:
        if call.version != VERSION:
            raise ProtocolError(f"This storage server speaks version {VERSION}, not {call.version}: update the older.")
        holder = self.holder
        if holder is None or holder.token != call.token:
            if call.renews or (holder is not None and call.token in holder.past_tokens):
                return Failed(call.call, FENCED, FENCED_SENTENCE)
            past = (*holder.past_tokens, holder.token)[-PAST_TOKENS_MAX:] if holder is not None else ()
            holder = Holder(call.token, holder.epoch + 1 if holder is not None else 1, call.settings, past)
            write_note(self._disk, HOLDER_NAME, holder)
            self.holder = holder
            self._last_answer = Done(0)
            self.on_open(call.settings)
        self._session = self._new_session()
        last_change = self._last_answer.call if isinstance(self._last_answer, Done) else 0
        sizes = ((name, self._disk.durable_size(name)) for name in self._sizes)
        durable = {name: size for name, size in sizes if size}
        return Opened(call.call, holder.epoch, self._session, last_change, dict(self._sizes), durable, self._disk.salt)

    def _on_change(self, call: Change, buffers: Sequence[Buffer]) -> AnyStorageAnswer:
        if call.session != self._session or not self._session:
            return Failed(call.call, CLOSED, "There is no such session here: open the storage again.")
        last = self._last_answer
        if call.call == last.call:
            return last
        if call.call < last.call:
            raise InvalidRequest(f"The change {call.call} comes after {last.call}: it is late.")
        try:
            self._change(call, buffers)
        except DiskFull as error:
            self._last_answer = Failed(call.call, FULL, str(error))
        else:
            self._last_answer = Done(call.call, self._disk.short_of_room)
        return self._last_answer

    def _change(self, call: Change, buffers: Sequence[Buffer]) -> None:
        disk = self._disk
        match call:
            case Append(name=name, position=position, sync=sync):
                if self._size(name) != position:
                    raise InvalidRequest(f"{name} ends at {self._size(name)}, and bytes for {position} came.")
                if sync:
                    disk.commit(name, buffers)
                else:
                    disk.append(name, buffers)
                self._sizes[name] = position + sum(map(len, buffers))
                self.on_final(name, self._sizes[name])
            case Sync(name=name):
                size = self._size(name)
                disk.sync(name)
                self.on_final(name, size)
            case Create(name=name):
                self._create(name)
            case Truncate(name=name, size=size):
                if not 0 <= size <= self._size(name):
                    raise InvalidRequest(f"{name} has {self._size(name)} bytes and cannot be cut to {size}.")
                cut = size < self._size(name)
                disk.truncate(name, size)
                self._sizes[name] = size
                if cut:  # A file that is sealed is cut to what it has: nothing of it goes.
                    self.on_cut(name, size)
            case Replace(name=name):
                _check_name(name)
                disk.replace(name, buffers)
                self._sizes[name] = sum(map(len, buffers))
            case Remove(names=names):
                self._remove(names)

    def _create(self, name: str) -> None:
        _check_name(name)
        if name in self._hidden:
            raise InvalidRequest(f"{name} is still being read: it cannot be made again.")
        if name not in self._sizes:
            self._disk.create(name)
            self._sizes[name] = 0
        elif self._sizes[name]:
            raise InvalidRequest(f"{name} is there already and not empty.")

    def _remove(self, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in self._sizes:
                continue
            sealed = name.endswith(JOURNAL_SUFFIX) and name.replace(JOURNAL_SUFFIX, INDEX_SUFFIX) in self._sizes
            del self._sizes[name]
            if sealed or name.endswith(INDEX_SUFFIX):
                self._hidden.append(name)
            else:  # Snapshots, and a segment that never came to be, are read by nobody.
                self._disk.remove(name)
        self.release()

    def _read(self, call: Read) -> tuple[AnyStorageAnswer, Sequence[Buffer]]:
        if self.holder is None or call.epoch != self.holder.epoch:
            return Failed(call.call, FENCED, FENCED_SENTENCE), ()
        self._size(call.name)
        if not 0 < call.size <= READ_BYTES_MAX or call.position < 0:
            raise InvalidRequest(f"{call.size} bytes from {call.position} cannot be read: ask for at most 8 MiB.")
        return Piece(call.call), [self._disk.read_at(call.name, call.position, call.size)]

    def _size(self, name: str) -> int:
        size = self._sizes.get(name)
        if size is None:
            raise InvalidRequest(f"There is no file {name!r} here.")
        return size


def _check_name(name: str) -> None:
    if not FILE_NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is not the name of a journal's file.")
