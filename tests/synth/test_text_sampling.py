import json
import stat
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy.stats import chi2
from text_cases import tiny_gpt2, tiny_llama, tiny_tokenizer

from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, StaleInput
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text import sampling as module
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.synth.text.sampling import (
    Sampling,
    apportioned,
    drawn,
    probabilities,
    read_texts,
    sample_texts,
)
from dpsynth_platform.synth.text.slots import Slots, check_slots

LAYOUT = TextLayout(("text",), (Condition("topic", ("mail", "a visit to the patient")),), max_tokens=60)
COUNTS = {("mail",): 25, ("a visit to the patient",): 15}


def numbered(layout):
    """Gives texts as the numbers of their tokens, which say what was drawn even where it is no UTF-8."""
    encoder = Encoder(layout, tiny_tokenizer())
    encoder.text = lambda tokens: " ".join(map(str, tokens))
    return encoder


@pytest.fixture(scope="module")
def encoder():
    return numbered(LAYOUT)


@pytest.fixture(scope="module")
def model(encoder):
    """In double precision, where the order of sums decides no draw; ends a text after some ten tokens."""
    model = tiny_llama().double()
    tokens = torch.arange(300).reshape(10, 30)
    with torch.no_grad():
        found = model(tokens, output_hidden_states=True)
        mean = found.hidden_states[-1].mean((0, 1))
        others = found.logits.logsumexp(2).mean()
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # no longer tied
        model.lm_head.weight[encoder.eos] = mean * (others - 2) / (mean @ mean)
    return model


def texts_of(directory):
    return {(text.given, text.number): text for text in read_texts(directory)}


def all_tokens(text, encoder):
    return [*map(int, text.body.split()), *([encoder.eos] if text.ended else [])]


def test_every_token_follows_from_its_texts_own_numbers_and_a_pass_without_cache(model, encoder, tmp_path):
    settings = Sampling(min_tokens=2, max_tokens=30)
    sample_texts(model, encoder, COUNTS, tmp_path, of="m", sampling=settings, batch=7)
    texts = texts_of(tmp_path)
    assert Counter(given for given, _ in texts) == COUNTS
    lengths = {text.tokens for text in texts.values()}
    assert len(lengths) > 5  # rows ended, and were taken again, at different times
    key = bytes.fromhex(json.loads((tmp_path / "sampling.json").read_text())["key"])
    for (given, number), text in texts.items():
        prompt, tokens = encoder.prompt(given), all_tokens(text, encoder)
        assert len(tokens) == text.tokens and (text.ended or len(tokens) == 30)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        barred = torch.zeros_like(logits, dtype=torch.bool)
        barred[:2, encoder.eos] = True
        chances = probabilities(logits, settings, barred)
        own = module._Text(given, number, 30, key)
        for row, token in zip(chances.cumsum(1), tokens, strict=True):
            uniform = own.uniform()
            assert (row[token - 1] if token else 0.0) - 1e-9 <= uniform <= row[token] + 1e-9


def test_sampled_tokens_have_the_models_distribution(model, encoder, tmp_path):
    two = Sampling(min_tokens=2, max_tokens=2)
    sample_texts(model, encoder, {("mail",): 8000}, tmp_path, of="m", sampling=two, batch=500)
    firsts, seconds = Counter(), Counter()
    for text in texts_of(tmp_path).values():
        tokens = all_tokens(text, encoder)
        firsts[tokens[0]] += 1
        seconds.update(pairwise(tokens))
    prompt = encoder.prompt(("mail",))
    barred = torch.zeros(1, 300, dtype=torch.bool)
    barred[0, encoder.eos] = True
    common = firsts.most_common(1)[0][0]
    with torch.no_grad():
        first = probabilities(model(torch.tensor([prompt])).logits[:, -1], Sampling(), barred)[0]
        second = probabilities(model(torch.tensor([[*prompt, common]])).logits[:, -1], Sampling(), barred)[0]
    assert_fits([firsts[token] for token in range(300)], first)
    assert_fits([seconds[common, token] for token in range(300)], second)


def assert_fits(counts, chances):
    """Chi-square against the model's own probabilities; cells that expect less than 20 count as one."""
    counts, expected = np.array(counts), chances.numpy() * sum(counts)
    rare = expected < 20
    counts, expected = (np.append(part[~rare], part[rare].sum()) for part in (counts, expected))
    assert len(counts) > 5
    assert chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1) > 1e-8


@pytest.mark.parametrize("first_looked_at", [1e-4, 0.05, 5.0])
def test_top_k_and_top_p_keep_exactly_the_most_probable_tokens(monkeypatch, first_looked_at):
    monkeypatch.setattr(module, "_MOSTLY_ENOUGH", first_looked_at)
    logits = torch.randn(40, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    full = logits.softmax(1).numpy()
    for top_k, top_p in ((None, 1.0), (1, 1.0), (7, 1.0), (50, 1.0), (500, 1.0), (None, 0.3), (None, 0.9), (7, 0.6)):
        found = probabilities(logits, Sampling(top_k=top_k, top_p=top_p)).numpy()
        for row, chances in zip(found, full, strict=True):
            order = np.argsort(-chances)[: top_k or 50]
            mass = np.cumsum(chances[order] / chances[order].sum())
            kept = order[: 1 + int(np.searchsorted(mass, top_p))] if top_p < 1 else order
            expected = np.zeros(50)
            expected[kept] = chances[kept] / chances[kept].sum()
            np.testing.assert_allclose(row, expected, atol=1e-12)
            assert set(np.flatnonzero(row)) == set(kept)


def test_top_k_among_equals_keeps_as_many_as_it_says():
    assert (probabilities(torch.zeros(3, 10), Sampling(top_k=4)) > 0).sum(1).tolist() == [4, 4, 4]


def test_temperature_divides_logits():
    logits = torch.tensor([[0.0, 1.0, 3.0]])
    torch.testing.assert_close(probabilities(logits, Sampling(temperature=0.5))[0], (2 * logits[0].double()).softmax(0))


def test_no_uniform_number_draws_an_impossible_token():
    chances = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]], dtype=torch.float64).repeat(4, 1)
    uniforms = torch.tensor([0.0, 0.25 - 2**-53, 0.25, 1 - 2**-53], dtype=torch.float64)
    assert drawn(chances, uniforms).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_slots_give_the_logits_of_a_pass_without_cache(make, attention):
    model = make()
    model.set_attn_implementation(attention)
    check_slots(model, 64)
    rng = np.random.default_rng(0)
    slots = Slots(model, 4, 64)
    rows = [rng.integers(0, 300, length).tolist() for length in (1, 9, 3)]
    for row, prompt in enumerate(slots.read(rows)):
        slots.put(prompt, row)
    for time in range(55):  # capacity grows on the way
        if time == 20:
            slots.remove(0)
            rows = [rows[2], rows[1]]
        if time == 30:
            rows[1] = rng.integers(0, 300, 5).tolist()
            slots.put(slots.read([rows[1]])[0], 1)
        tokens = rng.integers(0, 300, len(rows))
        logits = slots.step(torch.tensor(tokens))
        for row, token, found in zip(rows, tokens.tolist(), logits, strict=True):
            row.append(token)
            with torch.no_grad():
                expected = model(torch.tensor([row])).logits[0, -1]
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("common", [0, 1, 7])
def test_what_prompts_begin_with_is_read_once(make, attention, common, monkeypatch):
    """Their logits, and those that follow, are what a pass over each alone gives; no token is read that need not be."""
    model = make()
    model.set_attn_implementation(attention)
    rng = np.random.default_rng(common)
    head = rng.integers(0, 300, common).tolist()
    prompts = [[*head, first, *rng.integers(0, 300, length).tolist()] for first, length in ((7, 0), (8, 9), (9, 3))]
    slots, asked = Slots(model, 3, 32), []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **given: asked.append(given["input_ids"].shape) or forward(**given))
    read = slots.read(prompts)
    assert asked == [*([(1, common)] if common else []), (3, 10)]
    monkeypatch.undo()
    for row, prompt in enumerate(read):
        assert prompt.length == len(prompts[row])
        slots.put(prompt, row)
    for logits in (torch.stack([prompt.logits for prompt in read]), slots.step(torch.tensor([1, 2, 3]))):
        for row, found in enumerate(logits):
            with torch.no_grad():
                expected = model(torch.tensor([prompts[row]])).logits[0, -1]
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
            prompts[row].append(row + 1)


def test_prompts_that_are_alike_or_alone_are_read():
    """Of each, one token is its own, whatever it has in common with others."""
    model = tiny_llama()
    slots = Slots(model, 3, 32)
    (alone,) = slots.read([[5, 6, 7]])
    same, again, longer = slots.read([[5, 6, 7], [5, 6, 7], [5, 6, 7, 8]])
    for prompt in (same, again):
        torch.testing.assert_close(prompt.logits, alone.logits, rtol=1e-3, atol=1e-3)
    assert [prompt.length for prompt in (same, again, longer)] == [3, 3, 4]


@pytest.mark.parametrize("number_type", [torch.float32, torch.bfloat16])
def test_a_model_with_an_adapter_can_be_sampled(number_type):
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], r=4, init_lora_weights=False)
    check_slots(get_peft_model(tiny_llama(), config).eval().to(number_type), 64)


def test_a_model_that_sees_what_comes_later_is_refused():
    model = tiny_llama()
    plain = model.forward

    def forward(input_ids, attention_mask=None, **others):
        width = input_ids.shape[1]
        if attention_mask is None:
            attention_mask = torch.zeros(len(input_ids), 1, width, width)
        return plain(input_ids=input_ids, attention_mask=attention_mask, **others)

    model.forward = forward
    with pytest.raises(ConfigurationError, match="computes other logits"):
        check_slots(model, 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"window_size": 40},
        {"attention_chunk_size": 40},
        {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 40}},
    ],
)
def test_a_model_that_sees_farther_tokens_in_another_way_is_refused(changes):
    model = tiny_llama()
    check_slots(model, 48)
    for name, value in changes.items():
        setattr(model.config, name, value)
    with pytest.raises(ConfigurationError, match="the model sees 40 tokens, texts have 48"):
        check_slots(model, 48)


def test_a_context_that_is_too_short_is_refused(encoder, tmp_path):
    with pytest.raises(ConfigurationError, match="the model sees 40 tokens, texts have 60"):
        sample_texts(tiny_llama(positions=40), encoder, COUNTS, tmp_path, of="m")
    windowed = tiny_llama()
    windowed.config.sliding_window = 20
    with pytest.raises(ConfigurationError, match="the model sees 20 tokens"):
        check_slots(windowed, 48)


def test_an_interrupted_run_continues_and_draws_the_same(model, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_WRITES", 0.0)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    sample_texts(model, encoder, COUNTS, whole, of="m", batch=5)
    cut.mkdir()
    (cut / "sampling.json").write_bytes((whole / "sampling.json").read_bytes())
    seen = []

    def stop(stage, done, total):
        seen.append((stage, done, total))
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample_texts(model, encoder, COUNTS, cut, of="m", batch=5, progress=stop)
    assert seen[0] == ("sample", 0, 40) and 8 <= len(texts_of(cut)) < 40
    kept = texts_of(cut)
    with (cut / "texts.jsonl").open("a") as file:
        file.write('{"given": ["mail"], "number": 3, "bo')
    assert texts_of(cut) == kept
    resumed = []
    sample_texts(model, encoder, COUNTS, cut, of="m", batch=3, progress=lambda *step: resumed.append(step))
    assert resumed[0] == ("sample", len(kept), 40) and resumed[-1] == ("sample", 40, 40)
    assert texts_of(cut) == texts_of(whole)
    assert len((cut / "texts.jsonl").read_text().splitlines()) == 40


def test_two_directories_draw_differently(model, encoder, tmp_path):
    sample_texts(model, encoder, {("mail",): 20}, tmp_path / "a", of="m")
    sample_texts(model, encoder, {("mail",): 20}, tmp_path / "b", of="m")
    assert [text.body for text in texts_of(tmp_path / "a").values()] != [
        text.body for text in texts_of(tmp_path / "b").values()
    ]


def test_larger_counts_add_to_what_is_there(model, encoder, tmp_path):
    sample_texts(model, encoder, {("mail",): 3}, tmp_path, of="m")
    before = texts_of(tmp_path)
    sample_texts(model, encoder, {("mail",): 9}, tmp_path, of="m", batch=2)
    assert len(texts_of(tmp_path)) == 9 and before.items() <= texts_of(tmp_path).items()


def test_texts_of_another_model_or_setting_are_not_mixed(model, encoder, tmp_path):
    """The unfinished texts of an interrupted draw are drawn again."""
    long = Sampling(min_tokens=12)  # two that are drawn apart are never equal
    for of, settings in (("m", long), ("other", long), ("m", replace(long, temperature=0.7))):
        earlier = texts_of(tmp_path) if (tmp_path / "texts.jsonl").exists() else {}
        sample_texts(model, encoder, {("mail",): 3}, tmp_path, of=of, sampling=settings)
        assert len(texts_of(tmp_path)) == 3 and not earlier.items() & texts_of(tmp_path).items()
    (tmp_path / "sampling.json").unlink()
    with pytest.raises(StaleInput, match="damaged"):
        sample_texts(model, encoder, {("mail",): 1}, tmp_path, of="m")


def test_a_damaged_line_is_refused(model, encoder, tmp_path):
    (tmp_path / "texts.jsonl").write_text("{}\n")
    with pytest.raises(StaleInput, match="file of synthetic texts is damaged"):
        list(read_texts(tmp_path))


def test_texts_are_restricted_until_they_are_released(model, encoder, tmp_path):
    sample_texts(model, encoder, {("mail",): 1}, tmp_path / "new", of="m")
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_nothing_asked_for_is_nothing_drawn(model, encoder, tmp_path):
    sample_texts(model, encoder, {("mail",): 0}, tmp_path, of="m")
    assert not texts_of(tmp_path)


@pytest.mark.parametrize("counts", [{("other",): 1}, {(): 1}, {("mail",): -1}, {("mail", "mail"): 1}])
def test_a_prompt_that_is_not_declared_is_refused(model, encoder, tmp_path, counts):
    with pytest.raises(ContractError, match="generate"):
        sample_texts(model, encoder, counts, tmp_path, of="m")


def test_without_conditions_there_is_one_prompt(model, tmp_path):
    sample_texts(model, numbered(TextLayout(("text",), max_tokens=32)), {(): 4}, tmp_path, of="m")
    assert len(texts_of(tmp_path)) == 4


@pytest.mark.parametrize(
    "parts",
    [
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_tokens": -1},
        {"max_tokens": 0, "min_tokens": 0},
        {"min_tokens": 5, "max_tokens": 4},
    ],
)
def test_an_impossible_way_of_drawing_is_refused(parts):
    with pytest.raises(ContractError, match="accepted"):
        Sampling(**parts)


def test_rows_are_apportioned_to_noisy_counts():
    weights = {("a",): 50.4, ("b",): -3.0, ("c",): 49.6, ("d",): 0.0}
    assert apportioned(11, weights) == {("a",): 6, ("b",): 0, ("c",): 5, ("d",): 0}
    assert sum(apportioned(1000, {(str(place),): 1 / 3 for place in range(7)}).values()) == 1000
    with pytest.raises(ContractError, match="no label has a positive weight"):
        apportioned(5, {("a",): -1.0})
