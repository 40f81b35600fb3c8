"""What to do about damage. The journal says what is wrong; only its owner knows what helps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidings.errors import StorageDamaged

RESTORE = "Restore the folder from a copy."
"""For a broker whose folder is the only one there is."""
REJOIN = "Give it an empty folder, and let it join its group again."
"""For a member: the others have what it has lost, and a copy of its folder may know too little."""


@contextlib.contextmanager
def advising(remedy: str) -> Iterator[None]:
    """Adds to an error of the journal what its owner can do about it."""
    try:
        yield
    except StorageDamaged as error:
        raise StorageDamaged(f"{error} {remedy}") from error
