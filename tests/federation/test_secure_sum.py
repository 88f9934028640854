"""Secure sums against parties that break the rules. Keys are fresh each time: no test depends on which, but for chances
below 1e-9."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from seeded_stream import Counted

from dpsynth_platform.federation import secure_sum
from dpsynth_platform.federation.masks import framed, own_mask, pair_mask
from dpsynth_platform.federation.rounds import ADVERTISE, AGREE, LABEL, MASK, SHARE, STEPS, UNMASK, Roster, Round
from dpsynth_platform.federation.secure_sum import Aggregator, Draws, Member, run_sum
from dpsynth_platform.federation.shamir import PRIME, SHARE_BYTES, restore, split
from dpsynth_platform.federation.sums import SumPlan, add, decode, encode
from dpsynth_platform.foundation.errors import AccountingError, ConfigurationError, RoundRefused

PLAN = SumPlan(7, 5, 1, 6, 16, 1000 * 16, 64.0)
NAMES = tuple("abcdefg")
IDENTITIES = {name: Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number, name in enumerate(NAMES, 1)}


def roster_of(number):
    return Roster({name: IDENTITIES[name].public_key() for name in NAMES[:number]})


def vector_of(name, plan):
    return np.random.default_rng(ord(name)).integers(-plan.bound, plan.bound, plan.length, endpoint=True)


def member(name, plan=PLAN, round_id="1", vector=None, claim=lambda round_id: True, draws=None):
    return Member(
        plan,
        roster_of(plan.participants),
        round_id,
        name,
        IDENTITIES[name],
        vector or (lambda: vector_of(name, plan)),
        claim,
        draws or Draws(),
    )


class Here:
    """All participants in this process; `change(step, name, request, reply)` gives the reply or None."""

    def __init__(self, plan=PLAN, change=lambda step, name, request, reply: reply, **others):
        self.members = {name: others.get(name) or member(name, plan) for name in NAMES[: plan.participants]}
        self.change, self.step, self.seen = change, -1, []

    def ask(self, requests):
        self.step += 1
        replies = {}
        for name, request in requests.items():
            try:
                reply = self.change(self.step, name, request, self.members[name].answer(request))
            except RoundRefused:
                continue
            if reply is not None:
                replies[name] = reply
        self.seen += [*requests.values(), *replies.values()]
        return replies


def run(plan=PLAN, **options):
    return run_sum(plan, roster_of(plan.participants), "1", Here(plan, **options))


def the_sum(finished, plan=PLAN):
    return sum(vector_of(name, plan) for name in finished)


@pytest.fixture
def silent(monkeypatch):
    """Noise that is known: 1 in each entry of each share."""
    monkeypatch.setattr(secure_sum, "sample_skellam", lambda variance, length: np.ones(length, dtype=np.int64))


def test_the_sum_is_that_of_vectors_and_noise(silent):
    opened = run()
    assert np.array_equal(opened.total, the_sum(NAMES) + 7)
    assert (opened.finished, opened.dropped) == (NAMES, {})


def test_each_share_of_noise_is_in_the_sum():
    plan = replace(PLAN, length=500)
    error = run(plan).total - the_sum(NAMES, plan)
    # 500 squares over their variance: about chi-square, which leaves [250, 750] with a chance below 1e-10.
    assert 0.5 < (error**2).mean() / (7 * 64) < 1.5


def test_a_member_whose_draws_are_known_adds_no_noise_and_says_the_same_again(silent):
    opened = run_sum(PLAN, roster_of(7), "1", Here(a=member("a", draws=Draws(Counted()))))
    assert np.array_equal(opened.total, the_sum(NAMES) + 6)
    asked = Round(PLAN, roster_of(7), "1").write(ADVERTISE, False, {})
    first, again = (member("a", draws=Draws(Counted())).answer(asked) for _ in range(2))
    assert first == again != member("a").answer(asked)


@pytest.mark.parametrize("lost", [*itertools.product(range(5), repeat=2), (0, 2, 4), (1, 1, 1), (3, 4, 4)])
def test_as_many_may_drop_out_as_the_plan_allows(silent, lost):
    gone = dict(zip(NAMES, lost, strict=False))
    change = lambda step, name, request, reply: None if gone.get(name, 5) <= step else reply  # noqa: E731
    if len(lost) == 3:
        with pytest.raises(RoundRefused, match=r"4 participants remain .*'a': no reply: .*'b': .*'c': no reply"):
            run(change=change)
        return
    opened = run(change=change)
    finished = tuple(name for name in NAMES if gone.get(name, 5) > MASK)
    assert opened.finished == finished
    assert np.array_equal(opened.total, the_sum(finished) + len(finished))
    assert opened.dropped == {name: f"no reply: {STEPS[step]}" for name, step in gone.items()}


def test_no_message_holds_a_trace_of_a_vector(monkeypatch):
    plan = replace(PLAN, length=4000)
    monkeypatch.setattr(secure_sum, "sample_skellam", lambda variance, length: np.arange(length) % 7)
    this = Round(plan, roster_of(7), "1")
    link = Here(plan, lambda step, name, request, reply: None if name == "a" and step == AGREE else reply)
    run_sum(plan, roster_of(7), "1", link)
    sent = b"\0".join(link.seen)
    for name in NAMES:
        for units in (vector_of(name, plan), vector_of(name, plan) + np.arange(4000) % 7):
            forms = (this.pack(encode(units, this.bits)), units.tobytes(), units.astype("<i4").tobytes())
            assert not any(form[start : start + 12] in sent for form in forms for start in range(0, 1200, 3))
    vectors = [message for message in link.seen if len(message) > 10_000]
    assert len(vectors) == 7
    for message in vectors:
        masked = this.unpack(this.read(MASK, True, message, "a").popitem()[1], "a")
        found = np.bincount((masked >> np.uint64(this.bits - 5)).astype(int), minlength=32)
        assert ((found - 125) ** 2 / 125).sum() < chi2.isf(1e-10, 31)


# Two sets of one round.


def loose(monkeypatch, *numbers):
    """A plan that may break the rule by which one set is opened."""
    with monkeypatch.context() as patch:
        patch.setattr(SumPlan, "__post_init__", lambda self: None)
        return SumPlan(*numbers, 6, 16, 1000 * 16, 64.0)


class Attack:
    """An aggregator that tells different participants different things, up to the masked vectors.

    Participants that collude follow the protocol as far as they serve it, read their own memory and sign anything.
    """

    def __init__(self, plan, sharing=None):
        self.plan, self.this = plan, Round(plan, roster_of(plan.participants), "1")
        everyone = range(plan.participants)
        self.members = [member(name, plan) for name in NAMES[: plan.participants]]
        self.colluders = everyone[plan.participants - plan.colluders :]
        self.honest = everyone[: plan.participants - plan.colluders]
        ads = {place: self.answer(place, ADVERTISE, {})[place] for place in everyone}
        self.known = self.this.advertised(ads)
        sealed = {place: self.answer(place, SHARE, ads) for place in everyone}
        self.keys = {place: self.memory(place)["for_masks"].private_bytes_raw() for place in self.colluders}
        self.sharing = sharing or {place: set(everyone) for place in everyone}
        self.vectors = {}
        for place in everyone:
            entries = {other: sealed[other][place] for other in self.sharing[place] - {place}}
            packed = self.answer(place, MASK, entries)[place]
            self.vectors[place] = self.this.unpack(packed, "")
        self.own = {dealer: {} for dealer in everyone}
        self.masks = {dealer: {} for dealer in everyone}
        for holder in self.colluders:
            for dealer, both in self.memory(holder)["held"].items():
                self.masks[dealer][holder], self.own[dealer][holder] = both[:SHARE_BYTES], both[SHARE_BYTES:]

    def memory(self, place):
        return self.members[place]._steps.gi_frame.f_locals

    def answer(self, place, step, entries):
        reply = self.members[place].answer(self.this.write(step, False, entries))
        return self.this.read(step, True, reply, "")

    def open_with(self, honest, sharing, finished):
        """Has honest participants and all colluders agree to two sets, and takes the honest ones' shares."""
        agreement = self.this.agreement({place: self.known[place] for place in sharing}, finished)
        signatures = {place: IDENTITIES[NAMES[place]].sign(agreement) for place in self.colluders}
        for place in honest:
            signatures |= self.answer(place, AGREE, dict.fromkeys(finished, b""))
        for place in honest:
            for dealer, share in self.answer(place, UNMASK, signatures).items():
                (self.own if dealer in finished else self.masks)[dealer][place] = share

    def secret(self, shares):
        return restore(dict(list(shares.items())[: self.plan.minimum])) if len(shares) >= self.plan.minimum else None

    def bared(self, places):
        """The sum of some masked vectors, without those masks that the shares restore."""
        total, common = np.zeros(self.plan.length, dtype=np.uint64), (self.this.context, 6, self.this.bits)
        for place in places:
            total = add(total, self.vectors[place], self.this.bits)
            if own := self.secret(self.own[place]):
                total = add(total, -own_mask(own, *common), self.this.bits)
            mine = self.keys.get(place) or self.secret(self.masks[place])
            for other in self.sharing[place] - {place}:
                theirs = self.keys.get(other) or self.secret(self.masks[other])
                key, one = (other, mine) if mine else (place, theirs)
                if one:
                    public = X25519PublicKey.from_public_bytes(self.known[key].mask_key)
                    pad = pair_mask(X25519PrivateKey.from_private_bytes(one), public, *common)
                    total = add(total, -pad if mine else pad, self.this.bits)
        return decode(total, self.this.bits)


TWICE = [(4, 2, 0), (5, 3, 1), (7, 4, 1)]
ONCE = [(4, 3, 0), (5, 3, 0), (5, 4, 1), (5, 4, 2), (7, 5, 2)]


@pytest.mark.parametrize("numbers", TWICE + ONCE)
def test_two_sets_are_opened_only_where_the_rule_of_plans_is_broken(monkeypatch, silent, numbers):
    """One vector is in a set and not in another: the first half reveals its own mask, the second its key."""
    if numbers in TWICE:
        with pytest.raises(AccountingError):
            replace(PLAN, participants=numbers[0], minimum=numbers[1], colluders=numbers[2])
    attack = Attack(loose(monkeypatch, *numbers))
    everyone, needed = set(range(numbers[0])), numbers[1] - numbers[2]
    attack.open_with(attack.honest[:needed], everyone, everyone)
    if numbers in TWICE:
        attack.open_with(attack.honest[-needed:], everyone, everyone - {0})
        assert np.array_equal(attack.bared([0]), vector_of("a", attack.plan) + 1)
        return
    with pytest.raises(RoundRefused):
        attack.open_with(attack.honest[-needed:], everyone, everyone - {0})
    assert not np.array_equal(attack.bared([0]), vector_of("a", attack.plan) + 1)
    assert np.array_equal(attack.bared(everyone), the_sum(NAMES[: numbers[0]], attack.plan) + numbers[0])


@pytest.mark.parametrize("numbers", TWICE + ONCE)
def test_other_sets_of_sharing_ones_isolate_no_vector_unless_the_rule_is_broken(monkeypatch, silent, numbers):
    """The first participant shares masks with few, who are then named as dropped out."""
    participants, minimum, colluders = numbers
    everyone, needed = set(range(participants)), minimum - colluders
    first = set(range(needed)) | set(range(participants - colluders, participants))
    rest = list(range(participants - colluders))[-needed:]
    sharing = dict.fromkeys(everyone, everyone) | dict.fromkeys(range(needed), first) | dict.fromkeys(rest, everyone)
    attack = Attack(loose(monkeypatch, *numbers), sharing)
    finished = everyone - (set(range(1, needed)) - set(rest))
    attack.open_with(rest, everyone, finished)
    if numbers in TWICE:
        assert np.array_equal(attack.bared([0]), vector_of("a", attack.plan) + 1)
        return
    for size in range(1, participants + 1):
        for some in itertools.combinations(everyone, size):
            opened = the_sum([NAMES[place] for place in some], attack.plan) + size
            inside = set(some) & set(attack.honest)
            if inside and inside != finished & set(attack.honest):
                assert not np.array_equal(attack.bared(some), opened)


def test_a_late_vector_stays_under_its_own_mask(silent):
    """The aggregator has a vector, says that it dropped out, and so gets the key of its pairs' masks."""
    attack = Attack(PLAN)
    everyone = set(range(7))
    attack.open_with([1, 2, 3, 4, 5], everyone, everyone - {0})
    assert attack.secret(attack.masks[0]) and not attack.secret(attack.own[0])
    assert not np.array_equal(attack.bared([0]), vector_of("a", PLAN) + 1)
    assert not np.array_equal(attack.bared(everyone), the_sum(NAMES) + 7)
    assert np.array_equal(attack.bared(everyone - {0}), the_sum(NAMES[1:]) + 6)


# An aggregator that lies to one participant.


def requests_until(step, lost=None, plan=PLAN):
    """The requests of a step, and participants that have answered all before; one of them may have dropped out."""
    link = Here(plan)
    aggregator = Aggregator(plan, roster_of(plan.participants), "1")
    for earlier in range(step):
        for name, reply in link.ask(aggregator.requests()).items():
            if (name, earlier) != lost:
                aggregator.take(name, reply)
        aggregator.close_step()
    return aggregator, aggregator.requests(), link.members


def few(this, step, entries):
    return dict(list(entries.items())[: PLAN.minimum - (2 if step == MASK else 1)])


def without_own(this, step, entries):
    return {place: content for place, content in entries.items() if place != 0}


def with_own(this, step, entries):
    return entries | {0: next(iter(entries.values()))}


def with_lost(this, step, entries):
    return entries | {6: next(iter(entries.values()))}


def flipped(this, step, entries):
    return entries | {3: bytes([entries[3][0] ^ 1]) + entries[3][1:]}


def advertisement(this, name, mask_key, share_key=None):
    """One that a colluder signs."""
    share_key = share_key or X25519PrivateKey.generate().public_key().public_bytes_raw()
    content = mask_key + share_key + bytes(32)
    return content + IDENTITIES[name].sign(framed(LABEL, b"advertise", this.context, content))


def other_own(this, step, entries):
    return entries | {0: advertisement(this, "a", bytes([9]) + bytes(31))}


def copied_key(this, step, entries):
    return entries | {3: advertisement(this, "d", entries[1][:32])}


def same_keys(this, step, entries):
    return entries | {3: advertisement(this, "d", entries[3][:32], entries[3][:32])}


def known_to_all(this, step, entries):
    return entries | {3: advertisement(this, "d", bytes(32))}


def share_known_to_all(this, step, entries):
    return entries | {3: advertisement(this, "d", entries[3][:32], b"\1" + bytes(31))}


def other_sets(this, step, entries):
    return entries | {3: IDENTITIES["d"].sign(b"other sets")}


def by_another(this, step, entries):
    return entries | {3: entries[2]}


@pytest.mark.parametrize(
    ("step", "change", "words"),
    [
        (SHARE, few, "4 participants, where the plan has 5"),
        (SHARE, without_own, "without those of this participant"),
        (SHARE, other_own, "without those of this participant"),
        (SHARE, flipped, "not signed by the key of the roster, from 'd'"),
        (SHARE, by_another, "not signed by the key of the roster, from 'd'"),
        (SHARE, copied_key, "there twice"),
        (SHARE, same_keys, "there twice, from 'd'"),
        (SHARE, known_to_all, "small order, from 'd'"),
        (SHARE, share_known_to_all, "small order, from 'd'"),
        (MASK, few, "4 participants"),
        (MASK, with_own, "without keys"),
        (MASK, with_lost, "without keys"),
        (AGREE, few, "4 participants"),
        (AGREE, without_own, "without this one"),
        (AGREE, with_lost, "without this one, or with others"),
        (UNMASK, few, "4 participants"),
        (UNMASK, with_lost, "did not finish"),
        (UNMASK, flipped, "not of the agreed sets, from 'd'"),
        (UNMASK, other_sets, "not of the agreed sets, from 'd'"),
        (UNMASK, by_another, "not of the agreed sets, from 'd'"),
    ],
)
def test_a_lying_aggregator_is_refused_and_the_round_has_ended(step, change, words):
    lost = {MASK: ("g", ADVERTISE), AGREE: ("g", SHARE), UNMASK: ("g", MASK)}.get(step)
    _, requests, members = requests_until(step, lost)
    this = Round(PLAN, roster_of(7), "1")
    wrong = this.write(step, False, change(this, step, this.read(step, False, requests["a"], "")))
    with pytest.raises(RoundRefused, match=words):
        members["a"].answer(wrong)
    with pytest.raises(RoundRefused, match="has ended for 'a'"):
        members["a"].answer(requests["a"])
    assert members["a"]._steps.gi_frame is None  # and with it all secrets
    assert members["b"].answer(requests["b"])


@pytest.mark.parametrize("other", ["sharing", "keys", "finished"])
def test_who_is_told_other_sets_than_the_signers_reveals_no_share(other):
    everyone = set(range(7))
    own_sharing = everyone - {6} if other == "sharing" else everyone
    attack = Attack(PLAN, {place: own_sharing if place == 0 else everyone for place in everyone})
    known = attack.known | ({6: replace(attack.known[6], mask_key=bytes(32))} if other == "keys" else {})
    agreement = attack.this.agreement(known, everyone - {5, 6} if other == "finished" else everyone - {6})
    attack.answer(0, AGREE, dict.fromkeys(everyone - {6}, b""))
    with pytest.raises(RoundRefused, match="not of the agreed sets"):
        attack.answer(0, UNMASK, {place: IDENTITIES[NAMES[place]].sign(agreement) for place in range(1, 6)})


@pytest.mark.parametrize("step", range(5))
def test_messages_of_other_steps_rounds_plans_and_rosters_are_refused(step):
    def others():
        _, requests, members = requests_until(step)
        yield members["a"], requests_until((step + 1) % 5)[1]["a"], requests["a"]
        for plan, number, round_id in ((PLAN, 7, "2"), (replace(PLAN, scale=8), 7, "1"), (PLAN, 6, "1")):
            this = Round(plan, roster_of(number), round_id)
            _, requests, members = requests_until(step)
            entries = Round(PLAN, roster_of(7), "1").read(step, False, requests["a"], "")
            fewer = {place: content for place, content in entries.items() if place < number}
            yield members["a"], this.write(step, False, fewer), requests["a"]

    for one, wrong, right in others():
        with pytest.raises(RoundRefused, match="another format, step, round, roster or plan"):
            one.answer(wrong)
        with pytest.raises(RoundRefused, match="has ended"):
            one.answer(right)


def test_a_round_is_taken_part_in_once_and_a_vector_asked_for_once():
    asked, rounds = [], set()
    claim = lambda round_id: not (round_id in rounds or rounds.add(round_id))  # noqa: E731
    one = member("a", vector=lambda: asked.append(1) or vector_of("a", PLAN), claim=claim)
    link = Here(a=one)
    run_sum(PLAN, roster_of(7), "1", link)
    assert asked == [1]
    with pytest.raises(RoundRefused, match="has ended"):
        one.answer(link.seen[-1])
    with pytest.raises(RoundRefused, match="taken part before"):
        member("a", claim=claim)
    member("a", round_id="2", claim=claim)


def test_a_vector_beyond_the_plan_is_not_sent():
    one = member("a", vector=lambda: np.full(6, 16001))
    with pytest.raises(AccountingError, match="bound") as found:
        run(a=one)
    assert "16001" not in str(found.value)
    assert one._steps.gi_frame is None


# Participants that lie to the aggregator.


def test_a_vector_beyond_the_bound_is_not_seen(silent, monkeypatch):
    monkeypatch.setattr(SumPlan, "check_vector", lambda self, units: None)
    opened = run(a=member("a", vector=lambda: np.full(6, 20_000)))
    assert np.array_equal(opened.total, the_sum(NAMES[1:]) + 20_000 + 7)


@pytest.mark.parametrize(
    ("step", "change", "words"),
    [
        (ADVERTISE, lambda this, own: {1: own[0]}, "other participants than asked for"),
        (ADVERTISE, lambda this, own: {0: own[0][:-1] + bytes([own[0][-1] ^ 1])}, "not signed"),
        (ADVERTISE, lambda this, own: {0: advertisement(this, "a", bytes(32))}, "small order"),
        (SHARE, lambda this, own: {place: own[place] for place in (1, 2, 3)}, "other participants"),
        (SHARE, lambda this, own: own | {0: own[1]}, "other participants"),
        (MASK, lambda this, own: {2: own[0]}, "other participants"),
        (MASK, lambda this, own: {0: b"\xff" * len(own[0])}, "beyond the modulus"),
        (AGREE, lambda this, own: {0: bytes(64)}, "not of the agreed sets"),
        (AGREE, lambda this, own: {}, "other participants"),
        (UNMASK, lambda this, own: own | {6: own[0]}, "other participants"),
    ],
)
def test_who_sends_what_is_invalid_drops_out_by_name_and_the_round_goes_on(silent, step, change, words):
    this = Round(PLAN, roster_of(7), "1")

    def changed(now, name, request, reply):
        if now == step and name == "a":
            return this.write(step, True, change(this, this.read(step, True, reply, "")))
        return None if name == "g" and now == ADVERTISE else reply

    opened = run(change=changed)
    assert words in opened.dropped["a"] and "'a'" in opened.dropped["a"]
    assert opened.finished == (NAMES[:6] if step > MASK else NAMES[1:6])
    assert np.array_equal(opened.total, the_sum(opened.finished) + len(opened.finished))


def test_a_copied_advertisement_drops_out():
    first = {}

    def change(step, name, request, reply):
        this = Round(PLAN, roster_of(7), "1")
        if step == ADVERTISE and name == "a":
            first.update(this.read(step, True, reply, ""))
        if step == ADVERTISE and name == "b":
            return this.write(step, True, {1: advertisement(this, "b", first[0][:32])})
        return reply

    assert "another participant has" in run(change=change).dropped["b"]


@pytest.mark.parametrize("wrong", [b"", b"\0", "text", None, 5, bytes(54), bytes(2000)])
def test_what_is_no_message_drops_out(wrong):
    opened = run(change=lambda step, name, request, reply: wrong if name == "b" else reply)
    assert set(opened.dropped) == {"b"}


@pytest.mark.parametrize("lost", [0, 1])
def test_false_shares_of_a_holder_are_replaced_by_others(silent, lost):
    """Of six replies, five true ones restore all; of five, one false is too many."""
    this = Round(PLAN, roster_of(7), "1")

    def change(step, name, request, reply):
        if step == UNMASK and name == "c":
            return this.write(step, True, {place: bytes(33) for place in this.read(step, True, reply, "")})
        return None if (name == "a" and step == MASK) or (lost and name == "b" and step == UNMASK) else reply

    if lost:
        with pytest.raises(RoundRefused, match="secret of 'a' cannot be restored"):
            run(change=change)
        return
    opened = run(change=change)
    assert np.array_equal(opened.total, the_sum(NAMES[1:]) + 6)


@pytest.mark.parametrize(
    ("spoilt", "lost", "restored"), [(2, None, True), (3, None, False), (1, MASK, True), (2, MASK, False)]
)
def test_false_shares_of_a_dealer_leave_as_many_as_the_plan_needs_or_name_it(silent, spoilt, lost, restored):
    """The dealer's own share counts too, unless it dropped out."""
    this = Round(PLAN, roster_of(7), "1")

    def change(step, name, request, reply):
        if step == SHARE and name == "a":
            sealed = this.read(step, True, reply, "")
            return this.write(step, True, sealed | {place: bytes(82) for place in range(1, 1 + spoilt)})
        return None if name == "a" and step == lost else reply

    if restored:
        opened = run(change=change)
        assert np.array_equal(opened.total, the_sum(opened.finished) + len(opened.finished))
        return
    with pytest.raises(RoundRefused, match="secret of 'a' cannot be restored"):
        run(change=change)


def test_late_and_repeated_replies_change_nothing(silent):
    link, aggregator, before = Here(), Aggregator(PLAN, roster_of(7), "1"), {}
    while aggregator.result is None:
        replies = link.ask(aggregator.requests())
        for name, reply in replies.items():
            for sent in (before.get(name, b""), reply, reply, before.get(name, b"")):
                aggregator.take(name, sent)
            aggregator.take("unknown", reply)
        aggregator.close_step()
        before = replies
    aggregator.take("a", b"late")
    assert np.array_equal(aggregator.result.total, the_sum(NAMES) + 7) and not aggregator.dropped


def test_a_round_that_failed_has_ended():
    aggregator = Aggregator(PLAN, roster_of(7), "1")
    with pytest.raises(RoundRefused, match="0 participants remain"):
        aggregator.close_step()
    aggregator.take("a", b"late")
    with pytest.raises(RoundRefused, match="has ended"):
        aggregator.close_step()
    assert aggregator.result is None and not aggregator.requests()


# Configuration.


def test_rosters_that_confuse_participants_are_refused():
    key = IDENTITIES["a"].public_key()
    with pytest.raises(ConfigurationError, match="one key"):
        Roster({"a": key, "b": key})
    for name in ("", "a\nb", "x" * 201, 5):
        with pytest.raises(ConfigurationError, match="name"):
            Roster({name: key})
    assert roster_of(5).digest != roster_of(6).digest
    swapped = {"a": IDENTITIES["b"].public_key(), "b": key}
    assert Roster(swapped).digest != Roster({"a": key, "b": IDENTITIES["b"].public_key()}).digest


def test_plans_rosters_names_and_keys_fit_each_other():
    for number in (4, 7):
        with pytest.raises(ConfigurationError, match=f"roster of {number}"):
            Aggregator(replace(PLAN, participants=6, colluders=0), roster_of(number), "1")
    for name, identity in (("h", IDENTITIES["a"]), ("b", IDENTITIES["a"])):
        with pytest.raises(ConfigurationError, match="not of the roster"):
            Member(PLAN, roster_of(7), "1", name, identity, lambda: None, lambda round_id: True)
    with pytest.raises(ConfigurationError, match="round's name"):
        Aggregator(PLAN, roster_of(7), "a\n")


# Messages.

SIZES = {(step, reply): Round(PLAN, roster_of(7), "1")._layouts[step][reply] for step in range(5) for reply in (0, 1)}


@st.composite
def messages(draw):
    step, reply = draw(st.sampled_from(sorted(SIZES)))
    size, most = SIZES[step, reply]
    places = draw(st.sets(st.integers(0, 6), max_size=most))
    return step, bool(reply), {place: draw(st.binary(min_size=size, max_size=size)) for place in places}


@given(messages())
def test_messages_are_read_as_they_were_written(message):
    this = Round(PLAN, roster_of(7), "1")
    written = this.write(*message)
    assert this.read(*message[:2], written, "a") == message[2]


@given(messages(), st.integers(0, 10**6), st.binary(max_size=6), st.integers(0, 6))
def test_each_message_has_one_form_alone(message, place, inserted, cut):
    this = Round(PLAN, roster_of(7), "1")
    written = this.write(*message)
    at = place % (len(written) + 1)
    changed = written[:at] + inserted + written[at + cut :]
    try:
        entries = this.read(*message[:2], changed, "someone")
    except RoundRefused as error:
        assert "'someone'" in str(error)
        return
    assert this.write(*message[:2], entries) == changed


def test_entries_ascend_and_are_as_many_as_a_step_has():
    this = Round(PLAN, roster_of(7), "1")
    header = this.write(UNMASK, True, {})[:-4]
    for places in ([1, 0], [1, 1], [0, 7], [2**32 - 1]):
        entries = b"".join(place.to_bytes(4, "big") + bytes(SHARE_BYTES) for place in places)
        with pytest.raises(RoundRefused, match="unknown or out of order"):
            this.read(UNMASK, True, header + len(places).to_bytes(4, "big") + entries, "a")
    with pytest.raises(RoundRefused, match="another length"):
        this.read(AGREE, True, this.write(AGREE, True, {0: bytes(64), 1: bytes(64)}), "a")
    with pytest.raises(RoundRefused, match="another length"):
        this.read(UNMASK, True, header + b"\xff" * 4, "a")


@settings(max_examples=40)
@given(st.integers(0, 4), st.integers(0, 10**6), st.binary(max_size=6), st.integers(0, 6))
def test_changed_messages_end_in_refusals_alone(step, place, inserted, cut):
    aggregator, requests, members = requests_until(step)
    at = place % (len(requests["a"]) + 1)
    reply = members["b"].answer(requests["b"])
    aggregator.take("b", reply[:at] + inserted + reply[at + cut :])
    try:
        members["a"].answer(requests["a"][:at] + inserted + requests["a"][at + cut :])
    except RoundRefused:
        assert members["a"]._steps.gi_frame is None


@given(st.integers(2, 62), st.integers(1, 20), st.integers(0, 2**32))
def test_packed_vectors_are_short_and_canonical(bits, length, seed):
    this = Round(PLAN, roster_of(7), "1")
    this.bits, this._width, this.plan = bits, -(-bits // 8), replace(PLAN, length=length)
    vector = np.random.default_rng(seed).integers(0, 2**bits, length, dtype=np.uint64)
    packed = this.pack(vector)
    assert len(packed) == length * -(-bits // 8)
    assert np.array_equal(this.unpack(packed, "a"), vector)
    if bits % 8:
        with pytest.raises(RoundRefused, match="modulus"):
            this.unpack(packed[:-1] + b"\xff", "a")


# Shares of secrets.


def test_the_modulus_of_shares_is_prime():
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin
        powers = [pow(base, odd << step, PRIME) for step in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(range(32))])
def test_a_threshold_of_shares_restores_a_secret_and_fewer_say_nothing(secret):
    shares = split(secret, 3, (0, 2, 5, 6, 1000))
    for some in itertools.permutations(shares, 3):
        assert restore({holder: shares[holder] for holder in some}) == secret
    # With two shares each secret is as possible: another third share gives another one.
    two = {holder: shares[holder] for holder in (0, 2)}
    found = {restore(two | {5: value.to_bytes(33, "big")}) for value in range(50)}
    assert len(found - {None}) >= 49
    assert secret not in {restore({holder: shares[holder] for holder in some}) for some in ((0, 2), (5, 6), (0,))}


def test_shares_are_fresh():
    assert split(bytes(32), 2, [0]) != split(bytes(32), 2, [0])
