"""What a broker and its storage server say to each other.

A call is one message: a header (one of these types as msgpack) and, where bytes are to be kept, those bytes as
frames behind it. The answer repeats the number of the call. The broker keeps all the journal's logic; the storage
server is its disk, a folder of files that one broker at a time may change:

- `Open` names a broker by a token that it made up. A new token begins a new epoch, in which the broker before it may
  change nothing any more; the token of the present epoch opens that epoch again. `renews` says that the caller was
  open before: if another has come since, it is refused as `FENCED` and must not push the other out.
- Every `Open` gives a session, and every change names it. The server forgets sessions when it ends, so a broker learns
  from `CLOSED` that the server has been away, opens again, compares sizes and cuts off whatever was not acknowledged.
- A broker numbers its changes, rising. `Opened` names the last one if it was made, as far as the server remembers: a
  broker whose connection broke learns whether its change was made, and so does not ask for it twice. The last one
  again is answered as before and changes nothing, and an older one is refused.
- `Append` says at which position its bytes belong. If the file does not end there it is refused: nothing is ever
  doubled, torn or left out. It is answered when the bytes are on disk (`sync`), all of them or none.
- `Read` names the epoch and may be asked on another connection than the changes.
"""

from __future__ import annotations

import msgspec

from tidings.protocols.fields import Name, Number, Several, Token
from tidings.settings import BrokerSettings

VERSION = 1


class Call(msgspec.Struct, frozen=True, array_like=True):
    """What is asked; `call` comes back in the answer."""

    call: Number


class Open(Call, frozen=True, tag="open"):
    """A broker takes the folder. `settings` are what the texts of the topics have to be derived by."""

    version: Number
    token: Token
    renews: bool
    settings: BrokerSettings


class Change(Call, frozen=True):
    """What changes a file, and the session in which it may."""

    session: Number


class Append(Change, frozen=True, tag="append"):
    """The frames behind this belong at `position`, the end of the file; with `sync` on disk before the answer."""

    name: Name
    position: Number
    sync: bool


class Sync(Change, frozen=True, tag="sync"):
    """All of a file is on disk before the answer."""

    name: Name


class Create(Change, frozen=True, tag="create"):
    """A new and empty file; one that is there and empty will do."""

    name: Name


class Truncate(Change, frozen=True, tag="truncate"):
    """A file is cut to its first `size` bytes."""

    name: Name
    size: Number


class Replace(Change, frozen=True, tag="replace"):
    """The frames behind this become the contents of a file, at once or not at all."""

    name: Name


class Remove(Change, frozen=True, tag="remove"):
    """Files go; those that are gone already are no mistake."""

    names: Several[Name]


class Read(Call, frozen=True, tag="read"):
    """Bytes of a file, as many of `size` as there are."""

    epoch: Number
    name: Name
    position: Number
    size: Number


class Last(Call, frozen=True, tag="last"):
    """The last message of a topic."""

    topic: Name


class AskStorage(Call, frozen=True, tag="status"):
    """How the storage server is."""


AnyCall = Open | Append | Sync | Create | Truncate | Replace | Remove | Read | Last | AskStorage


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What came of a call."""

    call: int


class Opened(Answer, frozen=True, tag="opened"):
    """The folder is the caller's: its epoch and session, the last change of that epoch, and every file's size."""

    epoch: int
    session: int
    last_change: int
    """0 when that came to nothing, or when the server has been started since."""
    files: dict[str, int]
    durable: dict[str, int] = {}
    """So much of the newest segment is known to be on disk."""
    salt: int = 0
    """The folder's, from which the checksums of its files begin."""


class Done(Answer, frozen=True, tag="done"):
    """The change has been made."""

    short_of_room: bool = False
    """Whether only what frees room should still be written."""


class Piece(Answer, frozen=True, tag="piece"):
    """The bytes that were asked for are the frame behind this."""


class LastMessage(Answer, frozen=True, tag="last-message"):
    """The last message of a topic; its value is the frame behind this."""

    topic: str
    offset: int
    publisher: str
    published_us: int


class StorageStatus(Answer, frozen=True, tag="storage-status"):
    """The epoch, how much the journal holds, and how many bytes of it the texts of the topics are behind."""

    epoch: int
    size_bytes: int
    topics: int
    texts_behind_bytes: int


CLOSED = "closed"
"""There is no such session: open again."""
FENCED = "fenced"
"""Another broker has opened the folder since."""
FULL = "full"
"""There was no room; nothing was changed."""
REFUSED = "refused"
"""The call makes no sense here; `number` is the error's, see `tidings.errors`."""


class Failed(Answer, frozen=True, tag="failed"):
    """Why a call came to nothing."""

    reason: str
    text: str
    number: int = 0


AnyStorageAnswer = Opened | Done | Piece | LastMessage | StorageStatus | Failed
