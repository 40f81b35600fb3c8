"""A pipe by which any thread, or a signal handler, ends the wait of a loop.

The loop may end by itself while somebody is about to wake it. A number of a closed descriptor is soon given to another
file or connection, and a byte written there would be lost or do harm. So closing and ringing exclude each other.
"""

from __future__ import annotations

import contextlib
import os
import threading


class Bell:
    """Rung by anybody, heard by one loop.

    >>> bell = Bell()
    >>> bell.ring()
    >>> bell.hush()
    >>> bell.close()
    >>> bell.ring()
    """

    def __init__(self) -> None:
        self.ear, self.rope = os.pipe()
        """What the loop polls; and where a byte may be written instead of a call of `ring`, as signals do."""
        os.set_blocking(self.ear, False)
        os.set_blocking(self.rope, False)
        self._is_open = True
        self._lock = threading.RLock()  # Reentrant: a signal may come, and its handler ring, in the midst of `close`.

    def ring(self) -> None:
        """Ends the loop's wait, or its next one; after `close` it does nothing."""
        with self._lock:
            if self._is_open:
                with contextlib.suppress(BlockingIOError):  # A full pipe has woken it already.
                    os.write(self.rope, b"\0")

    def hush(self) -> None:
        """The loop has woken up."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.ear, 4096)

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self.ear)
                os.close(self.rope)
