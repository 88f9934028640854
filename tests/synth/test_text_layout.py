import datetime as dt
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_cases import tiny_tokenizer
from tokenizers import normalizers
from transformers import AddedToken, AutoTokenizer

from dpsynth_platform.foundation.errors import ConfigurationError, ContractError
from dpsynth_platform.synth.conditions import Condition, text_of
from dpsynth_platform.synth.text.base_models import special_tokens
from dpsynth_platform.synth.text.layout import LEAST_BODY, Encoder, TextLayout

TOPIC = Condition("topic", ("mail", "visit", None))
LAYOUT = TextLayout(("title", "text"), (TOPIC,), max_tokens=64)
# Letters that make markers, escapes and line breaks likely.
parts = ["topic:", "title:", "text:", "(continued):", "\\", "\n", " ", "\r", "a", "é", ":"]
texts = st.lists(st.sampled_from(parts), max_size=12).map("".join)


def test_a_record_is_written_as_the_docstring_says():
    record = {"topic": "mail", "title": "Late", "text": "one\ntwo"}
    assert LAYOUT.prompt_lines(LAYOUT.given(record)) == ["topic: mail\n", "title:"]
    assert LAYOUT.body(record) == " Late\ntext: one\ntwo"


@given(title=st.none() | texts, text=st.none() | texts)
@settings(max_examples=500, deadline=None)
def test_every_record_comes_back_as_it_was(title, text):
    body = LAYOUT.body({"title": title, "text": text})
    if (title or "").strip() or (text or "").strip():
        assert LAYOUT.parsed(body) == {"title": title, "text": text}
    else:
        assert body is None


@given(text=texts)
@settings(max_examples=200, deadline=None)
def test_a_text_cannot_imitate_a_field(text):
    body = LAYOUT.body({"title": "x", "text": text}) or ""
    assert sum(line.startswith(("topic:", "title:", "text:", "(continued):")) for line in body.split("\n")) == 1


@pytest.mark.parametrize(
    "body",
    ["", " a", " a\ntext: b\ntext: c", " a\ntopic: mail\ntext: b", " a\ntitle: b", "a\ntext: b", " a\ntext:b"],
)
def test_a_body_that_does_not_keep_the_layout_is_none(body):
    assert LAYOUT.parsed(body) is None


def test_any_name_has_a_marker_of_its_own():
    names = ("a:b", " a b", "a\\b", "(continued)", ":", "a b")
    layout = TextLayout(names, (Condition(" a", ("x",)), Condition("a ", ("y",))))
    record = {name: f"{name}:\n{name}: a b 2: 1\na b 2: 2" for name in names}
    assert layout.parsed(layout.body(record)) == record
    assert layout.prompt_lines(("x", "y")) == ["a: x\n", "a 2: y\n", "a b 2:"]
    assert TextLayout.from_json(json.loads(json.dumps(asdict(layout)))) == layout


def test_a_missing_value_is_not_an_empty_one():
    assert LAYOUT.parsed(" a\ntext:") == {"title": "a", "text": None}
    assert LAYOUT.parsed(" a\ntext: ") == {"title": "a", "text": ""}
    assert LAYOUT.prompt_lines((None,))[0] == "topic:\n"


def test_undeclared_values_of_conditions_are_distinguished():
    assert LAYOUT.given({"topic": "visit"}) == ("visit",)
    assert LAYOUT.given({"topic": None}) == (None,)
    assert LAYOUT.given({"topic": "Visit"}) is None


def test_values_of_tables_as_texts():
    values = [None, "é", True, 3, 3.0, 0.5, dt.date(2026, 1, 31), dt.time(7, 30)]
    assert [text_of(value) for value in values] == [None, "é", "true", "3", "3", "0.5", "2026-01-31", "07:30:00"]


def test_a_layout_survives_json():
    assert TextLayout.from_json(json.loads(json.dumps(asdict(LAYOUT)))) == LAYOUT
    with pytest.raises(ContractError, match="no layout of texts"):
        TextLayout.from_json({"fields": ["text"]})


@pytest.mark.parametrize(
    "parts",
    [
        {"fields": ()},
        {"fields": ("text", "text")},
        {"fields": ("topic",), "conditions": (TOPIC,)},
        {"fields": ("text",), "conditions": (Condition("topic", ()),)},
        {"fields": ("text",), "conditions": (Condition("topic", ("a", "a")),)},
        {"fields": ("text",), "max_tokens": 15},
        {"fields": ("text",), "chunks_per_record": 0},
    ],
)
def test_an_impossible_layout_is_refused(parts):
    with pytest.raises(ContractError, match="accepted"):
        TextLayout(**parts)


def test_prompt_and_body_are_tokenized_separately():
    tokenizer = tiny_tokenizer()
    encoder = Encoder(LAYOUT, tokenizer)
    prompt = encoder.prompt(("mail",))
    assert prompt[0] == tokenizer.bos_token_id
    assert tokenizer.decode(prompt[1:]) == "topic: mail\ntitle:"
    assert tokenizer.decode(encoder.prompt(("mail",), continued=True)[1:]) == "topic: mail\n(continued):"
    assert encoder.text(encoder.bodies([" the team\n"])[0]) == " the team\n"
    assert encoder.bodies([]) == []


def test_a_text_that_spells_the_end_of_text_does_not_end():
    tokenizer = tiny_tokenizer()
    encoder = Encoder(LAYOUT, tokenizer)
    spelled = f" a{tokenizer.eos_token}b{tokenizer.bos_token}"
    (tokens,) = encoder.bodies([spelled])
    assert not {tokenizer.eos_token_id, tokenizer.bos_token_id} & set(tokens)
    assert encoder.text(tokens) == spelled


def test_nothing_is_said_of_long_texts(caplog, capfd):
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length, kept = 8, tokenizer.model_max_length
    try:
        Encoder(LAYOUT, tokenizer).bodies(["the patient came back " * 50])
    finally:
        tokenizer.model_max_length = kept
    assert not caplog.text and capfd.readouterr() == ("", "")


def test_a_prompt_that_leaves_no_room_is_refused():
    long = TextLayout(("text",), (Condition("topic", ("x", "the patient " * 20)),), max_tokens=64, chunks_per_record=2)
    with pytest.raises(ConfigurationError, match="the longest prompt takes") as refused:
        Encoder(long, tiny_tokenizer())
    least = int(str(refused.value).split()[-1])
    encoder = Encoder(replace(long, max_tokens=least), tiny_tokenizer())
    longest = max(
        len(encoder.prompt((value,), continued=later)) for value in long.conditions[0].values for later in (False, True)
    )
    assert least - longest == LEAST_BODY


def test_a_tokenizer_without_end_of_text_is_refused():
    with pytest.raises(ConfigurationError, match="no end-of-text token"):
        Encoder(LAYOUT, tiny_tokenizer(eos=None))


def test_a_special_token_without_a_role_is_one_all_the_same(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens([AddedToken("<|turn|>", special=True), AddedToken("<plain>", special=False)])
    assert "<|turn|>" not in tokenizer.all_special_tokens
    encoder = Encoder(LAYOUT, tokenizer)
    assert sorted(encoder.special) == ["<s>", "<|endoftext|>", "<|turn|>"]
    (tokens,) = encoder.bodies([" a <|turn|> b"])
    assert not set(tokens) & set(special_tokens(tokenizer))


def test_a_tokenizer_that_changes_texts_is_refused():
    tokenizer = tiny_tokenizer(size=301)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(ConfigurationError, match="does not restore texts"):
        Encoder(LAYOUT, tokenizer)
