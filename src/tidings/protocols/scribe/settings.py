"""The settings of Scribe."""

from __future__ import annotations

import msgspec

from tidings.errors import InvalidRequest


class ScribeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How trees are kept and how messages are kept until everybody has them."""

    replicas: int = 4
    """To how many successors a root copies its log before a message counts (k). 0: somebody above keeps it safe."""
    beat_ms: int = 1_000
    """How often a parent beats its children, and how often anything overdue is looked for."""
    silence_ms_max: int = 3_500
    """A parent or a child unheard for this long is taken for gone."""
    retry_ms: int = 2_000
    """How long an answer is waited for before the question is asked again."""
    gap_ms: int = 300
    """How long a gap may be a message that was only overtaken."""
    topics_max: int = 10_000
    """Topics in which one node takes part, as a subscriber, forwarder, root or copy."""
    children_max: int = 1_024
    """Children of one node in one tree."""
    publishers_max: int = 10_000
    """Publishers whose sequence numbers a topic remembers."""
    log_messages_max: int = 10_000
    """Messages that a root keeps for those who missed them; the oldest go first."""
    held_messages_max: int = 1_000
    """Messages that a subscriber holds back behind a gap; what is beyond is fetched again."""
    outbox_messages_max: int = 1_000
    """Messages of one publisher and topic that the root has not taken yet."""
    chunk_messages_max: int = 64
    """Messages in one batch, answer or copy."""
    chunk_bytes_max: int = 1024 * 1024
    """Their bytes; a single message may have more."""
    payload_bytes_max: int = 1024 * 1024

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 0 if name == "replicas" else 1
            value = getattr(self, name)
            if value < least:
                raise InvalidRequest(f"The Scribe setting {name} is {value}: it must be at least {least}.")
        if self.silence_ms_max <= self.beat_ms:
            raise InvalidRequest("silence_ms_max must be longer than beat_ms, or everybody looks dead.")
