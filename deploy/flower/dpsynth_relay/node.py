"""At a participant: each message goes to the process that holds the rows, and its reply back."""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpsynth_relay.frames import connect, receive, send

app = ClientApp()


@app.query()
def carry(message: Message, context: Context) -> Message:
    """Raises `EOFError` where the process refuses: Flower tells the coordinator that there is no reply."""
    end, stream = connect(str(context.node_config["socket"]))
    with end, stream:
        send(end, message.content["dpsynth"]["body"])
        reply = receive(stream)
    return Message(RecordDict({"dpsynth": ConfigRecord({"body": reply})}), reply_to=message)
