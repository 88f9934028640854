"""The terms by which texts are drawn: from the contract, their name, and the counts of the texts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from test_dp_finetune import contract_for

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.synth.text.filtering import Kept, Rules
from dpsynth_platform.synth.text.sampling import Sampling
from dpsynth_platform.synth.text.terms import Counts, TextsDrawn, TextTerms, terms_of


def declared(**text: object) -> DataContract:
    contract = contract_for("/nowhere").snapshot()
    contract["generate"]["text"] |= text
    contract["generate"]["rows"] = "auto"
    return DataContract.model_validate(contract)


def test_a_contract_that_says_nothing_draws_from_the_model_s_own_distribution() -> None:
    assert terms_of(declared()) == TextTerms() == TextTerms(Sampling(), Rules(), None)


def test_all_that_a_contract_says_is_kept_to() -> None:
    keep = {"least_characters": 9, "words": 3, "most_repeated": 0.2, "duplicates": "exact", "whole": True}
    said = declared(temperature=0.7, top_k=9, top_p=0.8, min_tokens=2, most_tokens=20, keep=keep)
    assert terms_of(said) == TextTerms(Sampling(0.7, 9, 0.8, 2, 20), Rules(**keep))
    counted = declared(given=["topic", "year"], counts={"year": {2001: 3, "2002": 0, 2003: 4}})
    assert terms_of(counted).counts == Counts("year", ((2001, 3), (2003, 4)))


def test_terms_have_the_name_that_they_had_before_there_was_more_to_choose() -> None:
    """So that rows that are there are not drawn again."""
    assert TextTerms(Sampling(0.7)).digest == canonical_digest(asdict(Sampling(0.7)))
    named = [TextTerms(), TextTerms(rules=Rules(whole=True)), TextTerms(counts=Counts("topic", (("sport", 2),)))]
    assert len({terms.digest for terms in named}) == 3


def test_counts_of_texts_in_words() -> None:
    kept = Kept([], {}, 1200, dict(Counter(short=1, duplicate=1100)))
    told = TextsDrawn.of(kept, requested=400, made=99)
    assert told.to_json() == {
        "drawn": 1200,
        "left_out": {"duplicate": 1100, "short": 1},
        "rows_without": 301,
        "in_words": (
            "1,200 synthetic texts were drawn; left out: 1,100 duplicate, 1 short; 301 rows are missing, since too few "
            "texts were left for them"
        ),
    }
    every = TextsDrawn.of(Kept([], {}, 5, {}), requested=5, made=5)
    assert every.in_words == "5 synthetic texts were drawn; left out: none"
