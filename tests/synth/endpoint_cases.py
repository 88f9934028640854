"""A server that answers as OpenAI-compatible endpoints do, well or badly, in a thread of its own."""

import json
import re
import threading
from collections import deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXTS = {
    "mail": ["please send the report to the team by monday", "the parcel came late and the box was open"],
    "note": ["the patient came back with a cough and a fever", "buy milk and bread on the way home"],
}


class Server:
    """What the server was asked, and what it is to answer next.

    Attributes:
        asked: documents of all requests, with the path and the `Authorization` they came with.
        coming: answers to the next requests, before any text: (status, headers, bytes), or a number of seconds that
            it says nothing for.
        breaks: whether a request, by its document, is answered with a failure of the server.
        answer: the content of other answers, by the document and the request's number.
    """

    def __init__(self, url):
        self.url = url
        self.asked = []
        self.coming = deque()
        self.breaks = lambda document: False
        self.answer = lambda document, number: completion(self.text(document, number))
        self.lock = threading.Lock()

    def text(self, document, number):
        """A fictional model: an example for the kind that it is told, with the request's number: no two are alike."""
        request = document["messages"][1]["content"]
        kind = (re.search(r"^kind: (\w+)$", request, re.MULTILINE) or ["", "mail"])[1]
        return f"{TEXTS.get(kind, TEXTS['mail'])[number % 2]}, number {number}"


def completion(text):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@contextmanager
def serving():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            document = json.loads(content)
            with server.lock:
                server.asked.append((self.path, self.headers.get("Authorization"), document))
                number = len(server.asked)
                coming = server.coming.popleft() if server.coming else None
            if coming is None and server.breaks(document):
                coming = (503, {}, b"")
            if isinstance(coming, float):
                server.stopped.wait(coming)
                return
            status, headers, answer = coming or (200, {}, server.answer(document, number))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http.server_address[1]}/v1")
    server.stopped = threading.Event()
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopped.set()
        http.shutdown()
        http.server_close()
