"""A real receiver of lineage beside the operator's own record, over a whole run from raw to release."""

import http.server
import json
import threading
from collections import Counter

import pytest
from column_walk import Root, described, roots
from inside import inside
from line_cases import PEOPLE, STEPS, released, run_here, small_deployment, storage_of
from test_lineage_line import checks, events_of

from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.export import public_event
from dpsynth_platform.lineage.naming import dataset_name
from dpsynth_platform.lineage.store import LineageStore

pytestmark = pytest.mark.end_to_end


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps the lineage events that it is sent, in order; while it is down it refuses them."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.events, self.refused, self.down = [], 0, False


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.down:
            self.server.refused += 1
        else:
            self.server.events.append(event)
        self.send_response(503 if self.server.down else 201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A candidate while the receiver is down after its first steps, and the release when it is back."""
    deployment = small_deployment(tmp_path_factory.mktemp("receiver"))
    deployment.contract["generate"]["method"] = "independent"
    deployment.write()
    with Receiver() as receiver, pytest.MonkeyPatch.context() as patch:
        transport = {"type": "http", "url": f"http://127.0.0.1:{receiver.server_address[1]}", "retry": {"total": 0}}
        patch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(transport | {"timeout": 300}))
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        first = run_here(deployment, steps=["raw", "scrubbed"])
        assert first.success, first.failures
        receiver.down = True
        second = run_here(deployment, accelerator=inside(deployment))
        assert second.success, second.failures
        had = len(receiver.events)
        receiver.down = False
        released(deployment)
        settings = deployment.settings
        LineageEmitter(settings.ledger_url, settings.lineage_file.parent).flush()
        receiver.shutdown()
    assert receiver.refused
    assert 0 < had < len(receiver.events)
    return deployment, receiver.events


def plain(event):
    """The event without empty groups of facets, and without what OpenLineage's client adds: a tag with its version."""
    tags = event["run"]["facets"].get("tags", {"tags": []})["tags"]
    assert {tag["key"] for tag in tags} <= {"openlineage_client_version"}
    facets = {name: facet for name, facet in event["run"]["facets"].items() if name != "tags"}
    datasets = {
        side: [{key: value for key, value in item.items() if value != {}} for item in event[side]]
        for side in ("inputs", "outputs")
    }
    return event | datasets | {"run": event["run"] | {"facets": facets}}


def test_the_receiver_has_the_public_part_of_every_event_once_and_in_order(run):
    """Down for a while, it has lost nothing; the file holds the operator's full record, the graph the same."""
    deployment, received = run
    kept = events_of(deployment)
    assert [plain(event) for event in received] == [plain(public_event(event)) for event in kept]
    assert [dict(event.payload) for event in LineageStore(deployment.settings.ledger_url).events()] == kept
    ends = Counter((event["job"]["name"], event["eventType"]) for event in kept)
    twice = {"people.raw", "people.scrubbed"}
    assert ends == {
        (f"people.{step}", kind): 1 + (f"people.{step}" in twice) for step in STEPS for kind in ("START", "COMPLETE")
    }
    per_run = {}
    for event in received:
        per_run.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert set(map(tuple, per_run.values())) == {("START", "COMPLETE")}


def test_every_event_is_valid_on_both_sides(run):
    deployment, received = run
    module = checks()
    for event in (*events_of(deployment), *received):
        module._check(event)


def test_the_receiver_walks_released_columns_back_to_the_source(run):
    """From what left the operator's place alone: each modelled column comes, masked, from the source's own."""
    deployment, received = run
    known = described(received)
    path = storage_of(deployment).require(PEOPLE, "released").facts["path"]
    table = dataset_name(f"{path}/data").name
    source = str(deployment.settings.home / "sources" / "people")
    for column in ("region", "score", "outcome"):
        ends = roots(known, (table, column))
        assert Root(source, column, masked=True) in ends
        assert all(end.masked or end.reason for end in ends)
