"""What happened in a run, line by line, and a hash of it: two runs with the same hash were the same run."""

from __future__ import annotations

from hashlib import blake2b


class Trace:
    """The lines of a run: virtual time in milliseconds, process, what happened."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, now_ms: int, process: str, what: str) -> None:
        self.lines.append(f"{now_ms:>7} {process:<9} {what}")

    @property
    def hash(self) -> str:
        """The same for the same lines, in any process."""
        return blake2b("\n".join(self.lines).encode(), digest_size=16).hexdigest()
