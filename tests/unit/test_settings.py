"""Settings: where they come from, which comes first, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tidings.errors import InvalidRequest
from tidings.settings import (
    BrokerSettings,
    ClientSettings,
    GroupSettings,
    JournalSettings,
    NodeSettings,
    PeerSettings,
    ReplicaSettings,
    SocketsSettings,
    load,
)

KINDS = [
    BrokerSettings,
    JournalSettings,
    NodeSettings,
    SocketsSettings,
    ClientSettings,
    PeerSettings,
    GroupSettings,
    ReplicaSettings,
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tidings.toml"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        for name in kind.__struct_fields__:
            monkeypatch.delenv(f"TIDINGS_{name.upper()}", raising=False)


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_valid_and_frozen(kind: type[msgspec.Struct], file: Path) -> None:
    settings = load(kind, file=file)
    assert settings == kind()
    with pytest.raises(AttributeError):
        setattr(settings, kind.__struct_fields__[0], None)


def test_arguments_come_before_variables_before_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(
        '[broker]\ntopics = "on-publish"\ntopics_max = 1\nclients_max = 1\nids_max = 1\n[node]\nbind = "x"\n'
    )
    monkeypatch.setenv("TIDINGS_TOPICS_MAX", "2")
    monkeypatch.setenv("TIDINGS_CLIENTS_MAX", "2")
    settings = load(BrokerSettings, {"clients_max": 3, "topics_max": None}, file=file)
    assert (settings.topics, settings.ids_max, settings.topics_max, settings.clients_max) == ("on-publish", 1, 2, 3)


def test_variables_are_read_as_the_type_they_stand_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_RETAIN_AGE_MS", "5")
    monkeypatch.setenv("TIDINGS_DROP_ACKNOWLEDGED", "true")
    monkeypatch.setenv("TIDINGS_ADMINS", "alice,bob")
    settings = load(BrokerSettings, file=file)
    assert (settings.retain_age_ms, settings.drop_acknowledged, settings.admins) == (5, True, ("alice", "bob"))


@pytest.mark.parametrize(
    ("kind", "given", "part"),
    [
        (BrokerSettings, {"topics": "sometimes"}, "sometimes"),
        (BrokerSettings, {"topics_max": 0}, "topics_max"),
        (BrokerSettings, {"topics_max": "many"}, "int"),
        (BrokerSettings, {"retain_bytes": -1}, "retain_bytes"),
        (PeerSettings, {"overlay": "star"}, "star"),
        (PeerSettings, {"founders": 1}, "founders"),
        (PeerSettings, {"links_max": 0}, "links_max"),
        (PeerSettings, {"link_beat_ms": 10_000}, "link_beat_ms"),
        (BrokerSettings, {"message_bytes_max": 2, "batch_bytes_max": 1}, "batch_bytes_max"),
        (BrokerSettings, {"topic_max": 1}, "topic_max"),
        (JournalSettings, {"durability": "maybe"}, "maybe"),
        (JournalSettings, {"segment_bytes_max": 0}, "segment_bytes_max"),
        (ClientSettings, {"retries": 0}, "retries"),
        (SocketsSettings, {"sockets_port": 65_536}, "sockets_port"),
        (SocketsSettings, {"sockets_subscribers_max": 0}, "sockets_subscribers_max"),
        (SocketsSettings, {"sockets_linger_ms": 9, "sockets_delivery_ms": 9}, "sockets_linger_ms"),
        (GroupSettings, {"group": ["tcp://a:1", "tcp://b:1"]}, "by 1, 3 or 5 nodes, not by 2"),
        (GroupSettings, {"group": ["tcp://a:1", "tcp://b:1", "tcp://a:1"]}, "named twice"),
        (GroupSettings, {"group": ["tcp://*:7000"]}, "be reached by other nodes"),
        (GroupSettings, {"group": ["tcp://a"]}, "be reached by other nodes"),
        (GroupSettings, {"join": ["ipc:///tmp/a"]}, "be reached by other nodes"),
        (GroupSettings, {"join": ["tcp://a:0"]}, "be reached by other nodes"),
        (GroupSettings, {"join": ["tcp://a:1/x"]}, "be reached by other nodes"),
        (GroupSettings, {"join": ["tcp://" + "a" * 200 + ":1"]}, "be reached by other nodes"),
        (GroupSettings, {"advertise": "a:7000"}, "write tcp://HOST:PORT"),
        (ReplicaSettings, {"beat_ms": 0}, "beat_ms"),
        (ReplicaSettings, {"beat_ms": 500, "election_ms": 500}, "election_ms must be above beat_ms"),
        (ReplicaSettings, {"piece_bytes_max": 0}, "piece_bytes_max"),
    ],
)
def test_what_makes_no_sense_is_refused(
    kind: type[msgspec.Struct], given: dict[str, object], part: str, file: Path
) -> None:
    with pytest.raises(InvalidRequest, match=part) as caught:
        load(kind, given, file=file)
    assert str(caught.value).endswith(".")


def test_a_group_is_read_from_a_list_of_addresses(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_GROUP", "tcp://a:1,tcp://[::1]:2,tcp://c.example:65535")
    monkeypatch.setenv("TIDINGS_ADVERTISE", "tcp://a:1")
    settings = load(GroupSettings, file=file)
    assert settings == GroupSettings(("tcp://a:1", "tcp://[::1]:2", "tcp://c.example:65535"), (), "tcp://a:1")


def test_a_broken_file_is_named(file: Path) -> None:
    file.write_text("[broker\n")
    with pytest.raises(InvalidRequest, match=r"tidings\.toml is not valid TOML"):
        load(BrokerSettings, file=file)
