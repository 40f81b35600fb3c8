"""What a run of the pipeline was asked to do."""

from __future__ import annotations

from dataclasses import dataclass

BATCH_ROWS = 1_000_000
WATERMARK_S = 600
WINDOW_S = 60


@dataclass(frozen=True)
class Plan:
    """The settings of a run; docs/pipeline.md explains them."""

    bus: str
    topics: str = "*"
    user: str | None = None
    keys: str | None = None
    server_key: str | None = None
    timeout_s: float = 60.0
    fail_on_data_loss: bool = True
    batch_rows: int = BATCH_ROWS
    language: str | None = "en"
    watermark_s: float = WATERMARK_S
    publish: str | None = None

    def door_options(self) -> dict[str, str]:
        """How the data source reaches the broker."""
        given = {"user": self.user, "keys": self.keys, "serverKey": self.server_key}
        named = {name: value for name, value in given.items() if value is not None}
        return {"bus": self.bus, "timeout": str(self.timeout_s)} | named

    def source_options(self) -> dict[str, str]:
        """What the data source reads."""
        lossy = "true" if self.fail_on_data_loss else "false"
        return self.door_options() | {"topic": self.topics, "failOnDataLoss": lossy}
