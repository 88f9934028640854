"""Lineage that is missing, wrong, late or forged, with real assets: it may add suspicion and never takes any away."""

import event_cases
import pytest
from scenario_cases import UP_TO_BOUNDED, UP_TO_CLEARANCE, Scene, base_models, model, records

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.lineage.naming import dataset_name
from dpsynth_platform.reviewing.decisions import approve

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("base_models_accepted")]
ENDED = "the run has ended before"


@pytest.fixture(scope="module")
def base_models_accepted():
    with base_models():
        yield


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A release of reviews, and a dataset of restaurants about other people of the same namespace."""
    made = Scene(tmp_path_factory.mktemp("adversaries"))
    made.family("reviews")
    made.family("restaurants")
    made.dataset("reviews", "reviews", records(range(150)))
    made.dataset("restaurants", "restaurants", records(range(1000, 1100)))
    return made


@pytest.fixture(scope="module")
def release(scene):
    return scene.release("reviews")


@pytest.fixture
def ask(scene, release):
    """Runs the dataset of restaurants from a base model up to its clearance; what it reserved is void afterwards."""

    def run(base_model, policy="compose"):
        scene.dataset("restaurants", "restaurants", base_model=model(base_model), on_overlap=policy)
        return scene.run("restaurants", steps=UP_TO_CLEARANCE)

    yield run
    for entry in scene.ledger.entries():
        if entry.state == "reserved":
            scene.ledger.void(entry.entry_id, by="runner")


def found(scene, ran, name="restaurants"):
    """What the run's clearance found, by kind."""
    assert ran.success, ran.failures
    return {finding.kind: finding for finding in scene.cleared(name).findings}


def refusal(scene, ran):
    """Why the run was refused: at its first step, with nothing read and nothing reserved."""
    assert set(ran.failures) == {"raw"}
    assert ran.materializations == {}
    assert not [entry for entry in scene.ledger.entries() if entry.state == "reserved"]
    return ran.failures["raw"]


# Cycles


def test_a_cycle_of_models_hides_no_release(scene, release, ask):
    scene.trained("round-1", base="round-2")
    scene.trained("round-2", base="round-1")
    scene.trained("round-2", release.table)
    finding = found(scene, ask("round-1"))["base-model"]
    assert finding.entry == release.entry
    assert finding.path[:3] == ("s3://models:round-1", "base s3://models:round-2", f"trained-on {release.table}")


@pytest.mark.parametrize("family", [{"egg": "hen", "hen": "egg"}, {"itself": "itself"}])
def test_models_that_come_of_each_other_alone_come_of_nothing_known(scene, ask, family):
    for product, base in family.items():
        named = dataset_name(model(base))
        bases = {"baseModels": [{"namespace": named.namespace, "name": named.name}]}
        scene.tell(event_cases.event("COMPLETE", [], [_model(product, dpsynth_baseModel=bases)]))
    message = refusal(scene, ask(next(iter(family))))
    assert "unknown origin" in message


# Missing ancestors


@pytest.mark.parametrize("depth", ["itself", "below another"])
def test_an_unknown_base_model_is_refused_until_it_is_declared_public(scene, release, ask, depth):
    unknown = f"unknown-{depth.replace(' ', '-')}"
    name = dataset_name(model(unknown))
    start = unknown
    if depth != "itself":
        start = "tuned"
        scene.trained(start, "s3://web/recipes", base=unknown)
    message = refusal(scene, ask(start))
    assert f"s3://models:{unknown}" in message
    assert "declare-public" in message
    assert "Nothing was spent" in message

    scene.store.declare_public(name, by="governance", reason="published weights, trained before we had any data")
    made = scene.release("restaurants")
    assert "unknown" not in {finding.kind for finding in scene.cleared("restaurants").findings}
    said = str(made.dossier)
    assert f"s3://models:{unknown}" in said
    assert "published weights, trained before we had any data" in said
    assert "governance" in said


def test_declared_public_takes_back_nothing_that_is_known(scene, release, ask):
    scene.trained("laundered", release.table)
    name = dataset_name(model("laundered"))
    scene.store.declare_public(name, by="governance", reason="it is on a hub")
    assert found(scene, ask("laundered"))["base-model"].entry == release.entry


# Other names


def test_a_renamed_release_and_a_renamed_model_stay_what_they_are(scene, release, ask):
    before, after = release.table, dataset_name("s3://lake/reviews-v2")
    change = {
        "lifecycleStateChange": "RENAME",
        "previousIdentifier": {"namespace": before.namespace, "name": before.name},
    }
    scene.tell(event_cases.event("COMPLETE", [], [event_cases.dataset(after.name, lifecycleStateChange=change)]))
    scene.trained("renaming", after)
    link = {"identifiers": [{"namespace": "s3://models", "name": "renaming", "type": "MODEL"}]}
    scene.tell(event_cases.event("COMPLETE", [], [_model("renamed", symlinks=link)]))
    finding = found(scene, ask("renamed"))["base-model"]
    assert finding.entry == release.entry
    assert finding.path == (
        "s3://models:renamed",
        "alias s3://models:renaming",
        f"trained-on {after}",
        f"alias {before}",
        f"paid-by dpsynth:ledger:{release.entry}",
    )


# Another family


def test_a_table_cannot_be_declared_in_another_family(scene, release):
    scene.family("fresh")
    scene.dataset("moved", "fresh", source="reviews")
    ran = scene.run("moved", steps=UP_TO_CLEARANCE)
    assert set(ran.failures) == {"raw"}
    assert "belongs to family 'reviews'" in ran.failures["raw"]


@pytest.mark.parametrize("policy", ["compose", "exclude", "block"])
def test_a_copy_in_another_family_meets_its_people_again(scene, release, policy):
    """A fresh family has a budget of its own, and the same people: found by namespace, without a word of lineage."""
    scene.family("fresh")
    scene.dataset("copy", "fresh", None if scene.source("copy").exists() else records(range(150)), on_overlap=policy)
    ran = scene.run("copy", steps=UP_TO_CLEARANCE)
    if policy == "block":
        assert set(ran.failures) == {"clearance"}
        assert "looks at the data" in ran.failures["clearance"]
        return
    assert ran.success, ran.failures
    (finding,) = (item for item in scene.cleared("copy").findings if item.family == "reviews")
    assert (finding.kind, finding.entry) == ("namespace", release.entry)
    assert finding.path == ("namespace person", "family reviews", f"entry {release.entry}")
    again = scene.participants(ran.materializations["clearance"]["entry_id"]) & scene.participants(release.entry)
    assert bool(again) is (policy == "compose")
    scene.withdraw("copy")


def test_a_copy_under_other_ids_is_found_by_its_lineage(scene, release):
    """Of another namespace nobody can be compared: everybody may be in common, which only `compose` allows."""
    scene.family("disguise", namespace="alias")
    copied = dataset_name(scene.source("disguised"))
    scene.tell(event_cases.event("COMPLETE", [_named(dataset_name(scene.source("reviews")))], [_named(copied)]))
    scene.dataset("disguised", "disguise", records(range(7000, 7150)))
    ran = scene.run("disguised", steps=UP_TO_CLEARANCE)
    finding = found(scene, ran, "disguised")["source"]
    assert finding.entry == release.entry
    assert finding.path[:2] == (str(copied), f"derived {dataset_name(scene.source('reviews'))}")
    assert "namespace" in finding.incomparable
    scene.withdraw("disguised")
    for policy in ("exclude", "block"):
        scene.dataset("disguised", "disguise", on_overlap=policy)
        assert "cannot be checked" in refusal(scene, scene.run("disguised", steps=UP_TO_CLEARANCE))


# Times and repetitions


@pytest.mark.parametrize("time", ["1999-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_a_time_changes_no_relation(scene, release, ask, time):
    """Dated before the release there was, or after everything: trained on it is trained on it."""
    product = f"timed-{time[:4]}"
    scene.trained(product, release.table, time=time)
    assert found(scene, ask(product))["base-model"].entry == release.entry


def test_the_order_of_arrival_changes_no_relation(scene, release, ask):
    """What was built on a model is told before the model is."""
    scene.trained("grandchild", base="child")
    assert "unknown origin" in refusal(scene, ask("grandchild"))
    scene.trained("child", release.table)
    assert found(scene, ask("grandchild"))["base-model"].entry == release.entry


def test_a_replayed_event_changes_nothing(scene, release, ask):
    event = event_cases.event("COMPLETE", [_named(release.table)], [_model("replayed")])
    assert scene.tell(event).new
    assert found(scene, ask("replayed"))["base-model"].entry == release.entry
    number, entries = len(list(scene.store.events())), scene.ledger.entries()
    first = scene.tell(event)
    assert not first.new
    assert (len(list(scene.store.events())), scene.ledger.entries()) == (number, entries)
    with pytest.raises(LineageRefused, match=ENDED):  # the same run told to have read something else
        scene.tell(event | {"inputs": []})


# Forgeries


@pytest.mark.parametrize("entry", ["of the ledger", "of no ledger"])
def test_a_forged_participants_reference_is_everybody(scene, release, ask, entry):
    """A model that claims to have touched just the people of some entry: the claim proves nothing."""
    product = f"forged-{entry.replace(' ', '-')}"
    claimed = release.entry if entry == "of the ledger" else "0" * 32
    claim = {"ledgerEntry": claimed, "namespace": "person", "commitment": "0" * 64}
    scene.tell(event_cases.event("COMPLETE", ["web/crawl"], [_model(product)], dpsynth_participants=claim))
    finding = found(scene, ask(product))["unproven"]
    assert finding.path == (f"s3://models:{product}", f"claims {claimed}")
    assert "no guarantee for all of them together is known" in " ".join(scene.cleared("restaurants").words)
    scene.withdraw("restaurants")
    for policy in ("exclude", "block"):
        assert "cannot be checked" in refusal(scene, ask(product, policy))


def test_a_claimed_guarantee_makes_nothing_private(scene, release, ask):
    """Trained on the guarded table itself, under a guarantee that is borrowed from an entry of ours."""
    entry = scene.ledger.entry(release.entry)
    claim = entry.request.guarantee.to_json() | {"ledgerEntry": release.entry}
    output = _model("borrowed", dpsynth_guarantee=claim)
    scene.tell(event_cases.event("COMPLETE", [_named(dataset_name(scene.source("reviews")))], [output]))
    assert "without a mechanism in between" in refusal(scene, ask("borrowed"))


def test_others_speak_for_nothing_of_ours(scene, release):
    """Neither under our jobs nor in our runs; what they say of our release is kept and not believed."""
    (own,) = {
        event.run_id for event in scene.store.events() if event.origin == "own" and event.job_name == "reviews.released"
    }
    for forged in (
        event_cases.own("COMPLETE", [], [_named(release.table)]),
        event_cases.event("COMPLETE", [], [_named(release.table)], run=own),
    ):
        with pytest.raises(LineageRefused):
            scene.tell(forged)
    before = scene.store.node(release.table)
    claimed = _named(release.table, dpsynth_guarantee={"ledgerEntry": "0" * 32, "epsilon": 0.01})
    scene.tell(event_cases.event("COMPLETE", [], [claimed]))
    assert scene.store.node(release.table) == before


# News


def test_ancestry_that_arrives_after_the_model_stops_the_release(scene, release):
    """Cleared from a model of which only the harmless half was told; the other half arrives after the approval."""
    scene.trained("late", "s3://web/crawl")
    scene.family("elsewhere", namespace="guest")
    scene.dataset("bars", "elsewhere", records(range(2000, 2100)), base_model=model("late"), approvals=1)
    settings, place = scene.deployment.settings, Place("bars")
    assert scene.run("bars").success
    assert "base-model" not in {finding.kind for finding in scene.cleared("bars").findings}
    approve(settings, place, "reviewer", "")
    scene.trained("late", release.table)
    ran = scene.publish("bars")
    assert set(ran.failures) == {"released"}
    message = ran.failures["released"]
    assert "found since its clearance: a mechanism upstream of a base: s3://models:late" in message
    assert not (settings.home / "public" / "bars").exists()

    entries = scene.ledger.entries()
    assert scene.run("bars").success  # cleared again, with what is known now
    assert scene.ledger.entries() == entries
    assert "base-model" in {finding.kind for finding in scene.cleared("bars").findings}
    assert "0 of 1 approvals" in scene.publish("bars").failures["released"]
    approve(settings, place, "reviewer", "")
    assert scene.publish("bars").success


def test_ancestry_that_arrives_before_the_mechanism_stops_its_start(scene, release):
    """Nothing is spent: the reservation waits for its deadline, or for somebody to withdraw it."""
    scene.trained("changing", "s3://web/crawl")
    scene.family("apart", namespace="visitor")
    scene.dataset("cafes", "apart", records(range(3000, 3100)), base_model=model("changing"))
    assert scene.run("cafes", steps=UP_TO_BOUNDED).success
    scene.trained("changing", scene.source("reviews").as_uri())
    ran = scene.run("cafes", steps=["model"])
    assert set(ran.failures) == {"model"}
    assert "cafes: not cleared: a guarded table" in ran.failures["model"]
    assert "Nothing was spent" in ran.failures["model"]
    (entry,) = scene.ledger.entries("apart")
    assert entry.state == "reserved"
    scene.ledger.void(entry.entry_id, by="runner")


def _named(name, **facets):
    return {"namespace": name.namespace, "name": name.name, "facets": facets}


def _model(product, **facets):
    return _named(dataset_name(model(product)), datasetType={"datasetType": "MODEL"}, **facets)
