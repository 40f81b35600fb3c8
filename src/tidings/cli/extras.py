"""Packages that only some commands need, and what to say when one of them is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tidings.errors import InvalidRequest


@contextlib.contextmanager
def needed(extra: str, what: str) -> Iterator[None]:
    """Imports inside may fail for want of `tidings[extra]`; then InvalidRequest says so.

    >>> with needed("web", "--http"):
    ...     import absent
    Traceback (most recent call last):
        ...
    tidings.errors.InvalidRequest: --http needs absent, which is not installed: pip install '.[web]' in a checkout.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "tidings":
            raise
        raise InvalidRequest(
            f"{what} needs {error.name}, which is not installed: pip install '.[{extra}]' in a checkout."
        ) from error
