"""What a node of an overlay sees, as people read it."""

from __future__ import annotations

from tidings.peer.caller import NodeView


def view_lines(view: NodeView) -> list[tuple[str, str]]:
    """A node's view as people read it: titles and texts."""
    lines = [
        ("node", f"{view.address} ({view.overlay}), up for {view.uptime_ms / 1000:.0f} s"),
        ("joined", "yes" if view.joined else "no"),
    ]
    if view.ring is not None:
        if view.ring.awaited:
            lines.append(("waits for", f"{view.ring.awaited} more founding members"))
        lines += [
            ("predecessor", view.ring.predecessor or "none"),
            ("successors", ", ".join(view.ring.successors) or "none"),
            ("fingers", f"{len(view.ring.fingers)} nodes: {', '.join(view.ring.fingers)}"),
        ]
    if view.views is not None:
        lines += [("active", ", ".join(view.views.active) or "none"), ("passive", ", ".join(view.views.passive))]
    pending = [topic for topic, in_effect in view.subscriptions.items() if not in_effect]
    lines.append(("subscriptions", ", ".join(view.subscriptions) or "none"))
    if pending:
        lines.append(("not yet", ", ".join(pending)))
    for tree in view.trees:
        above = "root" if tree.is_root else f"parent {tree.parent or 'sought'}"
        lines.append((f"tree {tree.topic}", f"{above}, {len(tree.children)} children"))
    lines += [
        ("messages", f"{view.published} published, {view.waiting} waiting, {view.arrived} arrived, {view.lost} lost"),
        ("sent", ", ".join(f"{layer} {sum(kinds.values()):,}" for layer, kinds in view.sent.items()) or "nothing"),
        ("received", ", ".join(f"{layer} {count:,}" for layer, count in view.received.items()) or "nothing"),
        ("connections", f"{view.links} to peers"),
    ]
    lines += [("refused", f"{count:,} times {reason}") for reason, count in view.refused.items()]
    return lines
