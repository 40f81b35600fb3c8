"""Which members of a replica group are known, and which of them is asked next. Pure: the session has the clock.

Only the leader of a group takes requests. Anyone who does not lead answers `NotLeader`, and a machine that is dead does
not answer at all; in both cases the session leaves for another member and sends everything unanswered again.

- *A leader is named*: go there at once. After `REDIRECTS_MAX` of these in a row without an answer from a leader, pause
  before each further one, so that members that point at each other cannot make a client spin.
- *Nobody leads*: pause, a little longer each time, then ask the next member. So also if the leader that is named is one
  that has just been silent: it may be dead, and the others may not have noticed. After some pauses it is believed.
- *Silence*: when nothing at all has been heard for a while, ask the next member, those first that have been silent
  least often. What comes from a leader proves that it lives, so a slow answer is waited for as long as others come.
  The while begins at `PATIENCE_MS`, grows with what answers take, and doubles at a member that has been silent before.

With a single broker there is nowhere to go, and none of this comes into play (`grouped` is False).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidings.errors import InvalidRequest

ADDRESSES_MAX = 16
ADDRESS_CHARACTERS_MAX = 200

PATIENCE_MS = 500
"""For how long a member may be silent before the next one is asked."""
PAUSE_MS = 50
PAUSE_MS_MAX = 200
"""How long to wait while nobody leads before the next member is asked, at first and at most."""
DISBELIEF_MS = 1_000
"""After so long a pause in all, the others have noticed that a leader is dead; if they still name it, it is not."""
REDIRECTS_MAX = 8
DOUBLINGS_MAX = 10

_ADDRESS = re.compile(r"tcp://(?:[A-Za-z0-9][\w.-]*|\[[0-9A-Fa-f:.]+(?:%\w+)?\]):([0-9]{1,5})", re.ASCII)


def is_address(text: str) -> bool:
    """Whether a member of a group may be at this address: tcp://HOST:PORT and nothing else.

    >>> is_address("tcp://10.0.0.1:7400"), is_address("tcp://[::1]:7400")
    (True, True)
    >>> is_address("ipc:///tmp/x"), is_address("tcp://10.0.0.1;10.0.0.2:7400"), is_address("tcp://host:99999")
    (False, False, False)
    """
    if len(text) > ADDRESS_CHARACTERS_MAX:
        return False
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 65_536


def split_addresses(text: str) -> tuple[str, ...]:
    """The addresses of a group's members, as a person writes them; InvalidRequest if one of them is none.

    >>> split_addresses("tcp://a:7400, tcp://b:7400,tcp://a:7400")
    ('tcp://a:7400', 'tcp://b:7400')
    """
    addresses = tuple(dict.fromkeys(piece.strip() for piece in text.split(",")))
    for address in addresses:
        if not is_address(address):
            raise InvalidRequest(
                f"{address[:ADDRESS_CHARACTERS_MAX]!r} is not the address of a group's member: "
                "write tcp://HOST:PORT,tcp://HOST:PORT,..."
            )
    if len(addresses) > ADDRESSES_MAX:
        raise InvalidRequest(
            f"{len(addresses)} addresses are too many (at most {ADDRESSES_MAX}): name a few; "
            "any member that answers names the others."
        )
    return addresses


class Route:
    """The members that are known, and the one that is asked."""

    def __init__(self, given: Sequence[str] = ()) -> None:
        self.known = tuple(given)
        self.at: str | None = self.known[0] if self.known else None
        """The member that is asked; None if that is up to the link."""
        self.grouped = len(self.known) > 1
        """Whether this is a group, and not a single broker."""
        self.heard_ms = 0
        """When anything came in last."""
        self.led_ms = 0
        """When a leader answered last."""
        self.pause_ends_ms: int | None = None
        """Nobody leads: nothing is sent before this moment."""
        self._given = self.known
        self._arrived_ms = 0
        self._silences: dict[str, int] = {}
        """How often each member has been silent since a leader answered."""
        self._redirects = 0
        self._pause_ms = PAUSE_MS
        self._paused_ms = 0
        self._patience_ms = PATIENCE_MS

    @classmethod
    def of(cls, text: str) -> Route:
        """The route for a link's address; one that is no group's is left to the link."""
        addresses = tuple(text.split(","))
        return cls(addresses if all(map(is_address, addresses)) else ())

    def learn(self, members: Sequence[str]) -> None:
        """Somebody says who the members are. What the user gave stays known, whatever others say."""
        learned = [each for each in members[:ADDRESSES_MAX] if is_address(each)]
        self.known = tuple(dict.fromkeys((*self._given, *learned)))[:ADDRESSES_MAX]
        self.grouped = self.grouped or len(self.known) > 1

    def due_ms(self, sent_ms: int | None, timeout_ms: int) -> int | None:
        """When to leave for another member, given when the oldest unanswered request was sent; None if never."""
        if self.pause_ends_ms is not None:
            return self.pause_ends_ms
        if sent_ms is None:
            return None
        since_ms = max(sent_ms, self._arrived_ms)
        doublings = min(self._silences.get(self.at or "", 0), DOUBLINGS_MAX)
        silent_ms = max(since_ms, self.heard_ms) + (self._patience_ms << doublings)
        return min(silent_ms, since_ms + timeout_ms)

    # What happens.

    def on_answer(self, now_ms: int, sent_ms: int) -> None:
        """A leader has answered a request."""
        self.led_ms = now_ms
        waited_ms = now_ms - max(sent_ms, self._arrived_ms)
        self._patience_ms = max(PATIENCE_MS, 4 * waited_ms, self._patience_ms * 7 // 8)
        if self._silences or self._redirects or self._pause_ms > PAUSE_MS:
            self.begin_afresh()

    def on_not_leader(self, now_ms: int, leader: str, members: Sequence[str]) -> bool:
        """Anyone who is asked does not lead. True if there is somebody else to go to now, False if a pause is on."""
        self.grouped = True
        named = is_address(leader) and leader != self.at
        self.learn((leader, *members) if named else members)
        believed = leader not in self._silences or self._paused_ms >= DISBELIEF_MS
        if named and believed and self._redirects < REDIRECTS_MAX:
            self._redirects += 1
            self._go(now_ms, leader)
            return True
        if self.pause_ends_ms is None:
            self.pause_ends_ms = now_ms + self._pause_ms
            self._paused_ms += self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
        return False

    def move_on(self, now_ms: int) -> None:
        """A pause is over, or anyone who is asked is silent: the next one is asked."""
        if self.pause_ends_ms is not None:
            self._redirects = min(self._redirects, REDIRECTS_MAX - 1)  # One is followed after each pause.
        elif self.at is not None:
            self._silences[self.at] = self._silences.get(self.at, 0) + 1
        start = self.known.index(self.at) + 1 if self.at in self.known else 0
        others = self.known[start:] + self.known[:start]
        self._go(now_ms, min(others, key=lambda each: self._silences.get(each, 0), default=self.at))

    def begin_afresh(self) -> None:
        """Forgets what has gone wrong: a leader has answered, or everything unanswered has been given up."""
        self.pause_ends_ms = None
        self._silences.clear()
        self._redirects = 0
        self._pause_ms = PAUSE_MS
        self._paused_ms = 0

    def _go(self, now_ms: int, address: str | None) -> None:
        self.at = address
        self._arrived_ms = now_ms
        self.pause_ends_ms = None
