"""Frozen settings, validated once at the start.

Every queue, view, cache, frame and retry of tidings has its bound here. Values come from arguments,
then from TIDINGS_* variables, then from `tidings.toml`, then from the defaults.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidings.errors import InvalidRequest
from tidings.settings.broker import (
    KIB,
    MIB,
    BrokerSettings,
    ClientSettings,
    Durability,
    JournalSettings,
    NodeSettings,
    SocketsSettings,
    TopicPolicy,
)
from tidings.settings.checks import check_reachable
from tidings.settings.group import Dissemination, GroupSettings, ReplicaSettings, RingSettings
from tidings.settings.overlay import (
    ChordSettings,
    GossipSettings,
    HeartbeatSettings,
    HyParViewSettings,
    Overlay,
    PeerSettings,
    ScribeSettings,
)

__all__ = [
    "KIB",
    "MIB",
    "BrokerSettings",
    "ChordSettings",
    "ClientSettings",
    "Dissemination",
    "Durability",
    "GossipSettings",
    "GroupSettings",
    "HeartbeatSettings",
    "HyParViewSettings",
    "JournalSettings",
    "NodeSettings",
    "Overlay",
    "PeerSettings",
    "ReplicaSettings",
    "RingSettings",
    "ScribeSettings",
    "SocketsSettings",
    "TopicPolicy",
    "check_reachable",
    "load",
]

Settings = TypeVar("Settings", bound=msgspec.Struct)


_hints = cache(typing.get_type_hints)


def load(kind: type[Settings], given: Mapping[str, Any] | None = None, file: str | Path = "tidings.toml") -> Settings:
    """Settings of a kind: from `given`, then TIDINGS_* variables, then the file, then the defaults.

    The table of the file is the kind's name: [broker], [journal], [node], [sockets], [client], [peer] and so on.

    >>> load(BrokerSettings, {"topics": "on-publish"}, file="/nonexistent").topics
    'on-publish'
    """
    table = kind.__name__.removesuffix("Settings").lower()
    values: dict[str, Any] = {}
    path = Path(file)
    if path.is_file():
        import tomllib  # Few have the file, and everybody loads the settings.

        try:
            written = tomllib.loads(path.read_text(encoding="utf-8")).get(table, {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path} is not valid TOML ({error}): fix it or remove it.") from error
        if not isinstance(written, dict):
            raise InvalidRequest(f"In {path}, {table} is not a table: write [{table}] above its settings.")
        values.update(written)
    hints = _hints(kind)
    for name in kind.__struct_fields__:
        text = os.environ.get(f"TIDINGS_{name.upper()}")
        if text is not None:
            values[name] = text.split(",") if typing.get_origin(hints[name]) is tuple else text
    values.update({name: value for name, value in (given or {}).items() if value is not None})
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"A setting of [{table}] is wrong: {str(error).removesuffix('.')}.") from error
