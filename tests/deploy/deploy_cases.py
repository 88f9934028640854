"""A deployment that has spent, for the tests of backup and of watching."""

from event_cases import model, own
from ledger_cases import KEYS, family, people, request

from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.ledger import Ledger
from dpsynth_platform.lineage.outbox import FILE, flush
from dpsynth_platform.lineage.receivers import RecordFile
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.release.register import Register
from dpsynth_platform.secrets.vault import Vault


def deployment(home):
    return Settings(home=home, deploy=home / "deploy", ledger_url=embedded_ledger(home / "ledger"), user="Ada")


def spent(settings):
    """Two accounts, an attempt that replaced another, a trained model in the graph, a register."""
    ledger, lineage = Ledger(settings.ledger_url), LineageStore(settings.ledger_url)
    ledger.open_account(family("everyone", mode="family"), KEYS)
    ledger.open_account(family("each", mode="per-owner"), KEYS)
    for count, name in enumerate(["each", "everyone"]):
        spend(settings, name, f"k{count}", people(count, 10))
    failed = ledger.reserve("everyone", "again", request(0.001, plan="f"), None, "compose")
    ledger.start(failed.entry_id)
    ledger.reserve("everyone", "again", request(0.001, plan="f"), None, "compose", replaces=failed.entry_id)
    lineage.record(own("START", ["raw"], [model("net")], run="r1"), targets=(FILE,))
    lineage.record(own("COMPLETE", ["raw"], [model("net")], run="r1"), targets=(FILE,))
    flush(lineage, [RecordFile(settings.lineage_file)])
    Vault(settings.vault).signing_key()
    Register(settings.restricted).note("census-0001", settings.home / "public" / "census-0001", ["a@example.org"])
    return settings


def spend(settings, name, key, participants=None):
    """A whole life of an entry; returns its id."""
    ledger = Ledger(settings.ledger_url)
    entry = ledger.reserve(name, key, request(0.01, plan=key), participants, "compose", key_ids=KEYS)
    ledger.start(entry.entry_id)
    return ledger.complete(entry.entry_id, "m").entry_id
