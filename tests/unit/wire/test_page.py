"""docs/wire.md names everything that clients and the broker say to each other."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tidings.protocols.broker.messages import AnyAnswer, AnyRequest

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "wire.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [*get_args(AnyRequest), *get_args(AnyAnswer)], ids=lambda kind: kind.__name__)
def test_the_page_names_it(kind: type) -> None:
    tag = kind.__struct_config__.tag  # type: ignore[attr-defined]
    assert f"`{tag}`" in PAGE or f'"{tag}"' in PAGE
