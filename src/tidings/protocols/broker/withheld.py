"""Stored batches that cannot be read, because the disk has not kept them as they were written.

Nobody is sent such a batch, and nobody is led past it unseen: streams and groups stop in front of it, and anyone who
asks them for more is told why, and what can be done. Everything else goes on. One that is being fetched from another
member of the group is only waited for.
"""

from __future__ import annotations

from tidings.errors import StorageDamaged
from tidings.protocols.broker.topics import Topic

WITHHELD_MAX = 10_000
"""Those noted first are forgotten beyond this many; anyone who comes to one of them finds it again."""


class Withheld:
    """The batches, by their addresses.

    >>> withheld = Withheld()
    >>> withheld.note(400, "0.journal is damaged at position 400")
    >>> 400 in withheld.reasons, 500 in withheld.reasons
    (True, False)
    """

    def __init__(self) -> None:
        self.reasons: dict[int, str | None] = {}
        """What is wrong with each; None as long as it may yet come from another member."""

    def note(self, address: int, reason: str | None) -> None:
        """A batch at this address cannot be read."""
        self.reasons[address] = reason
        if len(self.reasons) > WITHHELD_MAX:
            del self.reasons[next(iter(self.reasons))]

    def forget(self) -> None:
        """Something has been mended: what is still damaged is found again."""
        self.reasons.clear()

    def holds(self, topic: Topic, offset: int) -> bool:
        """Whether the message at an offset of a topic is in such a batch."""
        return bool(self.reasons) and topic.addresses[topic.find(max(offset, topic.first_offset))] in self.reasons

    def error(self, topic: Topic, offset: int) -> StorageDamaged | None:
        """What to tell the one who stands at such a batch; None if it is only waited for."""
        entry = topic.find(max(offset, topic.first_offset))
        reason = self.reasons[topic.addresses[entry]]
        return None if reason is None else unreadable(topic.offsets[entry], topic.end_of(entry), reason)


def unreadable(first: int, end: int, reason: str) -> StorageDamaged:
    """The sentence about a batch that cannot be read."""
    return StorageDamaged(
        f"The messages from offset {first} to {end - 1} cannot be read ({reason}): restore the folder from a copy, "
        f"or continue without them: read, subscribe again or join another group from offset {end} on."
    )
