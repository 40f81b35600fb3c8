"""The front door of the package: what `tidings.open` takes."""

from __future__ import annotations

import pytest

import tidings


def test_an_address_is_not_taken_for_a_folder() -> None:
    with pytest.raises(tidings.InvalidRequest, match=r"tidings\.connect"):
        tidings.open("tcp://127.0.0.1:7400")
