"""The process that the demonstration kills: publishers, subscribers and a group on one embedded bus.

Started again, every part goes on where it stopped: the shops ask for their last sequence number, the billing
department consumes and publishes in one transaction, the dashboard's subscription is durable, and what the packers had
in flight goes to whichever of them asks first.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import tidings

ORDERS, INVOICES = "orders", "invoices"
SHOPS = ("paris", "porto", "prague")
GROUP = "packing"
PACKERS = ("ada", "bob")
CHUNK = 25
CHUNKS_PER_SECOND = 70
"""How fast each shop sells, so that there is something to look at."""

Report = Callable[[str, int], None]


def sell(folder: Path, shop: str, count: int, report: Report) -> None:
    """Publishes `count` orders; how far it came is what the bus says."""
    with tidings.open(folder) as bus, bus.publisher(shop) as publisher:
        sold = publisher.last_sequence(ORDERS)
        report(shop, sold)
        while sold < count:
            orders = [f"{shop} order {number}" for number in range(sold + 1, min(sold + CHUNK, count) + 1)]
            publisher.put_many(ORDERS, orders, keys=[shop] * len(orders))
            sold += len(orders)
            report(shop, sold)
            time.sleep(1 / CHUNKS_PER_SECOND)


def bill(folder: Path, count: int, report: Report) -> None:
    """Turns each order into an invoice: the acknowledgement and the invoice are one record in the journal."""
    with tidings.open(folder, client_id="billing") as bus:
        billed = bus.topic(INVOICES).count if INVOICES in [topic.name for topic in bus.topics()] else 0
        while billed < count:
            report("billing", billed)
            with bus.transaction() as tx:
                taken = 0
                while taken < CHUNK and (order := tx.get(ORDERS, timeout=0.0 if taken else 0.2)):
                    tx.put(INVOICES, f"invoice for {order.text}", key=order.key)
                    taken += 1
            billed += taken
        report("billing", billed)


def watch(folder: Path, count: int, log: Path, report: Report) -> None:
    """Writes down every order that it sees, with its offset and whether it may have been seen before."""
    with tidings.open(folder, client_id="dashboard") as bus, log.open("ab", buffering=0) as lines:
        for batch in bus.subscribe(ORDERS).batches():
            # One write for the whole batch, so that no line is cut in two when the process is killed.
            lines.write("".join(f"{message.offset} {int(message.redelivered)}\n" for message in batch).encode())
            report("dashboard", batch.next_offset)
            if batch.next_offset == count:
                return


def pack(folder: Path, packer: str, count: int, log: Path, report: Report) -> None:
    """One of two who share the orders, those of each shop in order; it writes down what it was given."""
    with tidings.open(folder, client_id=packer) as bus, log.open("ab", buffering=0) as lines:
        orders = bus.subscribe(ORDERS, group=GROUP)
        while bus.groups(ORDERS)[0].lag or bus.topic(ORDERS).count < count:
            for batch in orders.batches(timeout=0.2):
                redelivered = int(batch.attempt > 1)
                lines.write("".join(f"{offset} {redelivered}\n" for offset in batch.offsets).encode())
                report(packer, len(batch))


def main() -> int:
    """Runs all parts until each has done its share. Arguments: folder of the bus, of the logs, orders for each shop."""
    folder, logs, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    writing = threading.Lock()

    def report(who: str, done: int) -> None:
        with writing:
            print(json.dumps([who, done]), flush=True)

    total = count * len(SHOPS)
    with ThreadPoolExecutor(len(SHOPS) + len(PACKERS) + 2) as pool:
        parts = [pool.submit(sell, folder, shop, count, report) for shop in SHOPS]
        parts.append(pool.submit(bill, folder, total, report))
        parts.append(pool.submit(watch, folder, total, logs / "dashboard.log", report))
        parts += [pool.submit(pack, folder, packer, total, logs / "packing.log", report) for packer in PACKERS]
        for part in as_completed(parts):
            part.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
