import pytest
from text_cases import tiny_llama, tiny_tokenizer

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text import filtering
from dpsynth_platform.synth.text.filtering import Rules, filtered, repeated_share, sample_records
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.synth.text.sampling import SyntheticText, read_texts

LAYOUT = TextLayout(("title", "text"), (Condition("topic", ("mail", "visit")),), max_tokens=64)


def kept(bodies, rules=None, ended=True, counts=None):
    texts = [SyntheticText(("mail",), number, body, ended, 9) for number, body in enumerate(bodies)]
    return filtered(texts, counts or {("mail",): 100}, LAYOUT, rules or Rules(), ("<s>", "</s>"))


def reasons(*bodies, **arguments):
    return kept(bodies, **arguments).dropped


def test_a_good_text_becomes_a_row():
    found = kept([" Late\ntext: the box\nwas open"])
    assert found.rows == [{"topic": "mail", "title": "Late", "text": "the box\nwas open"}]
    assert (found.drawn, found.dropped, found.of_prompt) == (1, {}, {("mail",): 1})


def test_each_reason_is_counted():
    assert reasons(" no second field") == {"malformed": 1}
    assert reasons(" a\ntext: b\ntopic: visit") == {"malformed": 1}
    assert reasons(" a\ntext: b</s>c") == reasons(" a\ntext: \ufffd") == reasons(" a\ntext: \x00") == {"control": 1}
    assert reasons(" a\ntext: b", rules=Rules(least_characters=4)) == {"short": 1}
    assert reasons(" a\ntext: " + "so it is and " * 20) == {"repetitive": 1}
    assert reasons(" a\ntext: b", ended=False, rules=Rules(whole=True)) == {"cut": 1}
    assert reasons(" a\ntext: b", ended=False) == {}


@pytest.mark.parametrize(
    "hidden",
    ["\r", "\u202e", "\u2066", "\u2028", "\u2060", "\ufeff", "\U000e0069", "\ud83d", "\x1b", "\x9b"],
    ids=ascii,
)
def test_a_text_with_words_that_hide_is_left_out(hidden):
    assert reasons(f" a\ntext: good {hidden}bad") == {"control": 1}


@pytest.mark.parametrize("shown", ["\r\n", "\n", "\t", "\u200d", "\u200b", "\u200f", "\u00ad", "\U0001f600"], ids=ascii)
def test_a_text_as_languages_are_written_stays(shown):
    assert reasons(f" a\ntext: good {shown}too") == {}


def test_duplicates_exact_by_words_or_kept():
    bodies = [
        " Late\ntext: The box, it was open.",
        " Late\ntext: The box, it was open.",
        " late\ntext: the box it was OPEN",
    ]
    assert reasons(*bodies) == {"duplicate": 2}
    assert reasons(*bodies, rules=Rules(duplicates="exact")) == {"duplicate": 1}
    assert reasons(*bodies, rules=Rules(duplicates="kept")) == {}
    assert reasons(" ?\ntext: !", " !\ntext: ?") == {}  # no words: letter by letter


def test_repeated_share():
    assert repeated_share(list("ababab"), 2) == pytest.approx(3 / 5)
    assert repeated_share(list("abcd"), 2) == 0
    assert repeated_share([], 4) == 0


def test_the_order_in_which_texts_ended_does_not_matter():
    texts = [SyntheticText(("mail",), number, f" {number}\ntext: a", True, 9) for number in range(6)]
    texts += [SyntheticText(("visit",), 0, " 0\ntext: a", True, 9)]
    counts = {("mail",): 3, ("visit",): 1}
    found = filtered(texts, counts, LAYOUT, Rules(), ())
    assert found == filtered(reversed(texts), counts, LAYOUT, Rules(), ())
    assert [row["title"] for row in found.rows] == ["0", "1", "2"]
    assert found.of_prompt == {("mail",): 3, ("visit",): 0} and found.dropped == {"duplicate": 1}


@pytest.mark.parametrize("parts", [{"duplicates": "all"}, {"words": 0}, {"most_repeated": 1.5}])
def test_impossible_rules_are_refused(parts):
    with pytest.raises(ContractError, match="accepted"):
        Rules(**parts)


def test_others_are_drawn_for_texts_that_were_left_out(tmp_path, monkeypatch):
    """Every second text is left out, whatever an untrained model writes."""
    order = {}

    def every_second(self, text):
        if order.setdefault(text.body, len(order)) % 2:
            self.dropped["short"] += 1
            return None
        return {"topic": text.given[0], "text": text.body}

    monkeypatch.setattr(filtering.Filter, "row", every_second)
    layout = TextLayout(("text",), (Condition("topic", ("mail", "visit")),), max_tokens=40)
    encoder = Encoder(layout, tiny_tokenizer())
    counts = {("mail",): 12, ("visit",): 0}
    rules = Rules(most_repeated=1.0)
    found = sample_records(tiny_llama(), encoder, counts, tmp_path, of="m", rules=rules)
    assert [row["topic"] for row in found.rows] == ["mail"] * 12
    assert found.drawn == len(list(read_texts(tmp_path))) == 12 + found.dropped["short"] < 12 * filtering._MOST_AGAIN
    assert found == sample_records(tiny_llama(), encoder, counts, tmp_path, of="m", rules=rules)


def test_a_model_that_writes_nothing_worth_keeping_comes_to_an_end(tmp_path):
    layout = TextLayout(("text",), max_tokens=40)
    encoder = Encoder(layout, tiny_tokenizer())
    rules = Rules(least_characters=1000)
    found = sample_records(tiny_llama(), encoder, {(): 4}, tmp_path, of="m", rules=rules)
    assert not found.rows and found.drawn == 12 and sum(found.dropped.values()) == 12
