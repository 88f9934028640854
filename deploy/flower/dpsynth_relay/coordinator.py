"""At the coordinator: requests by participant's name go out to all, and the replies that came in time back."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from dpsynth_relay.frames import connect, receive, send

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Until the coordinator closes the socket. An empty message asks a node for its participant's name."""
    timeout = float(context.run_config["timeout"])
    nodes: dict[str, int] = {}
    end, stream = connect(str(context.run_config["socket"]))
    with end, stream:
        while True:
            try:
                count = int.from_bytes(receive(stream), "big")
            except EOFError:
                return
            requests = {receive(stream).decode(): receive(stream) for _ in range(count)}
            end_of_wait = time.monotonic() + (0 if nodes else timeout)  # nodes come up at different times
            while True:
                new = set(grid.get_node_ids()) - set(nodes.values())
                for node, name in _ask(grid, dict.fromkeys(new, b""), timeout).items():
                    nodes[name.decode(errors="replace")] = node  # the last one to say so: nodes come back
                if requests.keys() <= nodes.keys() or time.monotonic() > end_of_wait:
                    break
                time.sleep(1)
            names = {nodes[name]: name for name in requests if name in nodes}
            replies = _ask(grid, {node: requests[name] for node, name in names.items()}, timeout)
            send(end, len(replies).to_bytes(8, "big"))
            for node, reply in replies.items():
                send(end, names[node].encode())
                send(end, reply)


def _ask(grid: Grid, bodies: Mapping[int, bytes], timeout: float) -> dict[int, bytes]:
    sent = [
        Message(RecordDict({"dpsynth": ConfigRecord({"body": body})}), dst_node_id=node, message_type="query")
        for node, body in bodies.items()
    ]
    replies = grid.send_and_receive(sent, timeout=timeout) if sent else ()
    return {
        reply.metadata.src_node_id: reply.content["dpsynth"]["body"]
        for reply in replies
        if reply.has_content() and reply.metadata.src_node_id in bodies and "dpsynth" in reply.content
    }
