"""The ledger in memory says what the ledger says, after whatever happens to it."""

import hashlib
import shutil
from dataclasses import replace

import pytest
from ledger_cases import KEYS, family, request

from dpsynth_platform.foundation.settings import Settings, embedded_ledger
from dpsynth_platform.ledger import Ledger, chain
from dpsynth_platform.reviewing import chronicle as chronicles
from dpsynth_platform.reviewing.chronicle import chronicle


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path, deploy=tmp_path, ledger_url=embedded_ledger(tmp_path / "ledger"), user="runner")


def made(settings, key, period):
    """A candidate of a month that waits: its entry and its digest."""
    store = Ledger(settings.ledger_url)
    store.open_account(family("clinic", mode="family", epsilon=50.0), KEYS)
    asked = replace(request(dataset="visits"), period=period)
    entry = store.reserve("clinic", key, asked, None, "compose")
    store.start(entry.entry_id)
    store.complete(entry.entry_id, "model")
    candidate = hashlib.sha256(key.encode()).hexdigest()
    store.record(chain.CANDIDATE, candidate, {"entry": entry.entry_id})
    return store, entry.entry_id, candidate


def test_no_ledger_is_an_empty_one_and_none_is_made(settings):
    assert (chronicle(settings).events, chronicle(settings).publications) == ((), {})
    assert not (settings.home / "ledger").exists()


def test_it_says_what_the_ledger_says(settings):
    store, entry, candidate = made(settings, "one", "2026-01")
    known = chronicle(settings)
    assert chronicle(settings) is known
    store.approve(candidate, by="reviewer", entry_id=entry, reason="fine")
    store.release("visits-2026-01-a", candidate=candidate, entry_id=entry, check=lambda _: None)
    store.refuse(candidate, by="second reader", entry_id=entry, reason="no, after all")
    other = made(settings, "two", "2026-02")
    now = chronicle(settings)
    assert now.events == tuple(store.history())
    assert list(now.entries.values()) == store.entries()
    assert list(now.accounts.values()) == store.accounts()
    assert now.decisions_on(candidate, entry) == store.approvals(candidate, entry)
    assert len(now.words) == len(now.events)
    assert now.readings == known.readings
    publication = now.publications["visits-2026-01-a"]
    assert (publication.place.label, publication.withdrawn) == ("visits/2026-01", None)
    assert [item.by for item in publication.approvals] == ["reviewer"]  # what was said since changes nothing of it
    assert now.published_of("visits") == (publication,)
    assert now.is_published(candidate)
    assert [recorded.digest for recorded in now.candidates.values()] == [candidate, other[2]]
    store.withdraw("visits-2026-01-a", by="third", reason="a mistake")
    assert chronicle(settings).publications["visits-2026-01-a"].withdrawn.by == "third"
    assert not chronicle(settings).is_published(candidate)


def test_a_refusal_is_the_last_word_until_an_approval(settings):
    store, entry, candidate = made(settings, "one", "2026-01")
    (recorded,) = chronicle(settings).candidates.values()
    assert not chronicle(settings).is_ended(recorded)
    store.refuse(candidate, by="reviewer", entry_id=entry, reason="no")
    assert chronicle(settings).is_ended(recorded)
    store.approve(candidate, by="reviewer", entry_id=entry)
    assert not chronicle(settings).is_ended(recorded)


def test_another_ledger_in_its_place_is_read_anew(settings):
    store, entry, candidate = made(settings, "one", "2026-01")
    shutil.copytree(settings.home / "ledger", settings.home / "aside")
    store.approve(candidate, by="reviewer", entry_id=entry)
    longer = chronicle(settings)
    shutil.rmtree(settings.home / "ledger")
    shutil.copytree(settings.home / "aside", settings.home / "ledger")
    cut = chronicle(settings)
    assert cut.events == longer.events[:-1]
    assert cut.readings == longer.readings + 1
    assert cut.decisions == ()


def test_what_is_kept_is_of_one_deployment(settings, tmp_path):
    made(settings, "one", "2026-01")
    elsewhere = replace(settings, home=tmp_path / "b", ledger_url=embedded_ledger(tmp_path / "b" / "ledger"))
    assert chronicle(elsewhere).events == ()
    made(elsewhere, "two", "2026-02")
    assert list(chronicle(settings).candidates) == ["visits/2026-01"]
    assert list(chronicle(elsewhere).candidates) == ["visits/2026-02"]
    assert chronicles.cached_ledger(settings).head() == chronicle(settings).head
