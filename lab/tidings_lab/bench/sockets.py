"""The door for sockets: a connection for each text in and for each delivery out, beside bare connections."""

from __future__ import annotations

import socket

from tidings_lab.bench.figures import Figure, Limit
from tidings_lab.bench.stage import Stage

EDITORS = 16
SUBSCRIBERS = 10


def run(on: Stage) -> list[Figure]:
    """Texts that come in and are kept, and deliveries that go out, each with its bare loop in turns."""
    plan = on.plan
    port = _free_port()
    broker = on.broker(settings={"TIDINGS_SOCKETS_PORT": str(port)})
    editor, sink, bare = on.worker(broker.address), on.worker(), on.worker()
    bare_port: int = bare.ask("bare_serve")
    count = max(EDITORS, plan.socket_messages)
    size = plan.value_bytes
    published: list[float] = []
    echoed: list[float] = []
    delivered: list[float] = []
    connected: list[float] = []
    for number in range(plan.rounds):
        on.step(
            f"round {number + 1} of {plan.rounds}: {count:,} texts in and as many deliveries out, then bare sockets"
        )
        topic = f"news {number}"
        whole = count // EDITORS * EDITORS
        for rates, to in ((published, port), (echoed, bare_port)):
            began, ended = editor.ask("socket_publish", port=to, topic=topic, count=whole, editors=EDITORS, size=size)
            rates.append(whole / (ended - began))
        ports: list[int] = sink.ask("sink_open", ports=SUBSCRIBERS)
        sink.ask("socket_subscribe", port=port, topic=topic, own_ports=ports)
        sink.ask("sink_wait", count=SUBSCRIBERS)  # The last text, which comes at once.
        each = max(1, count // SUBSCRIBERS)
        began = editor.ask("put_texts", topic=topic, count=each, size=size)
        ended = sink.ask("sink_wait", count=SUBSCRIBERS * (1 + each))
        delivered.append(SUBSCRIBERS * each / (ended - began))
        sink.ask("sink_close")
        ports = sink.ask("sink_open", ports=SUBSCRIBERS)
        began, ended = bare.ask("bare_deliver", ports=ports, count=each, size=size)
        connected.append(SUBSCRIBERS * each / (ended - began))
        sink.ask("sink_close")
    return [
        Figure(
            scenario="sockets",
            name=f"{EDITORS} editors, each text durable",
            value=max(published),
            unit="publishes/s",
            limit=Limit("connect, send, answer, close", max(echoed)),
            samples=tuple(published),
            limit_samples=tuple(echoed),
        ),
        Figure(
            scenario="sockets",
            name=f"deliveries to {SUBSCRIBERS} subscribers",
            value=max(delivered),
            unit="deliveries/s",
            limit=Limit("connect, send, close", max(connected)),
            samples=tuple(delivered),
            limit_samples=tuple(connected),
        ),
    ]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])
