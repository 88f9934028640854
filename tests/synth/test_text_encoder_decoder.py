"""Encoder-decoder base models: read, scored and drawn from as they are; refused where a causal one is needed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from test_text_sampling import numbered, texts_of
from text_cases import save_model, tiny_bart, tiny_llama, tiny_t5, tiny_tokenizer

from dpsynth_platform.audit.adhoc.language_model import score_model
from dpsynth_platform.audit.texts.canary_texts import write_texts
from dpsynth_platform.audit.texts.reconstruction import continuations, reconstruct
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text import sampling as module
from dpsynth_platform.synth.text import trained
from dpsynth_platform.synth.text.base_models import base_model, load, refuse_decoder, writes_by_decoder
from dpsynth_platform.synth.text.layout import TextLayout
from dpsynth_platform.synth.text.rows import check_rows, rows_for
from dpsynth_platform.synth.text.sampling import Sampling, sample_texts
from dpsynth_platform.synth.text.slots import Slots
from dpsynth_platform.synth.text.waves import Waves, check_waves
from dpsynth_platform.training.adapter import with_adapter
from dpsynth_platform.training.families import decoder_start
from dpsynth_platform.training.plan import Adapter, TrainingPlan

LAYOUT = TextLayout(("text",), (Condition("topic", ("mail", "a visit to the patient")),), max_tokens=60)
BOTH = pytest.mark.parametrize("make", [tiny_t5, tiny_bart])


def scores(model, told, written):
    """The scores of what follows, in a plain pass over one text."""
    begun = torch.tensor([[decoder_start(model), *written]])
    with torch.no_grad():
        return model(input_ids=torch.tensor([told]), decoder_input_ids=begun, use_cache=False).logits[0, -1]


@BOTH
def test_a_directory_is_loaded_as_it_is(make, tmp_path: Path) -> None:
    base = base_model(str(save_model(tmp_path / "mine", make())), tmp_path)
    model, _ = load(base)
    assert writes_by_decoder(base) and type(model) is type(make())
    for name, weights in make().state_dict().items():
        assert torch.equal(model.state_dict()[name], weights)
    assert not writes_by_decoder(base_model(str(save_model(tmp_path / "causal")), tmp_path))


def test_a_decoder_without_a_start_token_is_refused(tmp_path: Path) -> None:
    model = tiny_t5()
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = None
    base = base_model(str(save_model(tmp_path / "mine", model)), tmp_path)
    with pytest.raises(ConfigurationError, match="decoder_start_token_id"):
        load(base)


@BOTH
def test_methods_that_need_a_causal_model_refuse_with_words(make, tmp_path: Path) -> None:
    base = base_model(str(save_model(tmp_path / "mine", make())), tmp_path)
    with pytest.raises(ConfigurationError, match=r"method aug_pe accepts: a causal .* methods dp_finetune and ctcl"):
        refuse_decoder(base, "method aug_pe")
    refuse_decoder(base_model(str(save_model(tmp_path / "causal")), tmp_path), "method aug_pe")


def test_a_model_of_one_s_own_must_be_causal(tmp_path: Path) -> None:
    declared = str(save_model(tmp_path / "mine", tiny_bart()))
    with pytest.raises(ConfigurationError, match="a model of one's own accepts: a causal language model"):
        score_model(declared, None, ["a text"], np.array([True]), cache=tmp_path, hub=False)


@BOTH
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_waves_give_the_logits_of_a_pass_without_cache(make, attention: str) -> None:
    model = make()
    model.set_attn_implementation(attention)
    check_waves(model, 64)
    rng = np.random.default_rng(0)
    waves = Waves(model, 4)
    for length in (30, 4):  # one wave after the other
        told = [rng.integers(0, 300, size).tolist() for size in (1, 9, 3)]
        written: list[list[int]] = [[], [], []]
        for row, prompt in enumerate(waves.read(told)):
            torch.testing.assert_close(prompt.logits, scores(model, told[row], []), rtol=1e-3, atol=1e-3)
            assert prompt.length == len(told[row])
            waves.put(prompt, row)
        assert waves.free == 1
        for time in range(length):
            tokens = rng.integers(0, 300, len(told))
            logits = waves.step(torch.tensor(tokens))
            assert waves.free == 0
            for prompt, row, token, found in zip(told, written, tokens.tolist(), logits, strict=True):
                row.append(token)
                torch.testing.assert_close(found, scores(model, prompt, row), rtol=1e-3, atol=1e-3)
            if time == 1:
                waves.remove(0)
                told, written = [told[2], told[1]], [written[2], written[1]]
        waves.remove(1)
        waves.remove(0)
        assert waves.free == 4


def test_a_wave_that_has_begun_takes_no_text() -> None:
    waves = Waves(tiny_t5(), 2)
    (prompt,) = waves.read([[5, 6]])
    waves.put(prompt, 0)
    waves.step(torch.tensor([3]))
    with pytest.raises(ValueError, match="cannot begin"):
        waves.put(prompt, 1)


@BOTH
@pytest.mark.parametrize("number_type", [torch.float32, torch.bfloat16])
def test_a_model_with_an_adapter_can_be_sampled(make, number_type) -> None:
    plan = TrainingPlan(units=10, batch_size=2, steps=1, noise_multiplier=1.0, adapter=Adapter(rank=4))
    made = with_adapter(make(), plan)
    with torch.no_grad():
        for value in made.parameters():
            if value.requires_grad:
                value.add_(0.05 * torch.randn_like(value))
    check_waves(made.eval().to(number_type), 64)


def test_a_decoder_that_sees_what_comes_later_is_refused() -> None:
    model = tiny_bart()
    plain = model.forward

    def forward(decoder_input_ids, **others):
        width = decoder_input_ids.shape[1]
        if others.get("past_key_values") is None and width > 2:
            others["decoder_attention_mask"] = torch.zeros(1, 1, width, width)
        return plain(decoder_input_ids=decoder_input_ids, **others)

    model.forward = forward
    with pytest.raises(ConfigurationError, match=r"computes other logits .* accepted: an encoder-decoder"):
        check_waves(model, 64)


def test_rows_are_of_the_model_s_family() -> None:
    assert type(rows_for(tiny_t5(), 2, 8)) is Waves and type(rows_for(tiny_llama(), 2, 8)) is Slots
    check_rows(tiny_llama(), 64)
    with pytest.raises(ConfigurationError, match="the model sees 40 tokens, texts have 60"):
        check_rows(tiny_bart(positions=40), 60)


def test_a_model_that_fails_token_by_token_is_refused_with_words() -> None:
    model = tiny_t5()
    plain = model.forward

    def forward(**others):
        if "encoder_outputs" in others:
            raise AttributeError("no router_logits")
        return plain(**others)

    model.forward = forward
    with pytest.raises(ConfigurationError, match=r"no text can be drawn .* AttributeError \(no router_logits\)"):
        check_rows(model, 64)


@pytest.fixture(scope="module", params=[(tiny_t5, 6), (tiny_bart, -2)], ids=["t5", "bart"])
def model(request):
    """In double precision, where the order of sums decides no draw; ends most texts, after some tokens."""
    make, end = request.param
    model = make().double()
    model.lm_head.weight = torch.nn.Parameter(0.3 * model.lm_head.weight.clone())  # no longer tied
    with torch.no_grad():
        hidden = torch.cat(
            [
                model(
                    input_ids=torch.arange(start, start + 10)[None],
                    decoder_input_ids=torch.arange(start, start + 30)[None],
                    output_hidden_states=True,
                ).decoder_hidden_states[-1]
                for start in range(0, 250, 50)
            ]
        )
        mean = hidden.mean((0, 1))
        others = torch.nn.functional.linear(hidden, model.lm_head.weight).logsumexp(2).mean()
        model.lm_head.weight[numbered(LAYOUT).eos] = mean * (others + end) / (mean @ mean)
    return model


def test_every_token_follows_from_the_text_s_own_numbers(model, tmp_path: Path) -> None:
    """Whatever stood in the batch: each token is the one at which a plain pass's cumulative probabilities pass."""
    encoder, asked = numbered(LAYOUT), {("mail",): 9, ("a visit to the patient",): 6}
    sample_texts(model, encoder, asked, tmp_path / "a", of="m", batch=4)
    found = texts_of(tmp_path / "a")
    # Of 250 texts 85 and 71% ended under the two prompts (T5): none of 9 and 6 does by a chance of 2e-11.
    assert len(found) == 15 and any(text.ended for text in found.values())
    key = module._opened(tmp_path / "a", module.canonical_digest(_about(encoder, "m")))
    for (given, number), text in found.items():
        uniform, written = module._Text(given, number, 99, key), []
        drawn = [int(token) for token in text.body.split()] + [encoder.eos] * text.ended
        for token in drawn:
            barred = torch.zeros(1, 300, dtype=torch.bool)
            barred[0, encoder.eos] = not written
            chances = module.probabilities(scores(model, encoder.prompt(given), written)[None], Sampling(), barred)
            assert module.drawn(chances, torch.tensor([uniform.uniform()], dtype=torch.float64)).tolist() == [token]
            written.append(token)


def _about(encoder, of):
    return {"of": of, "layout": module.asdict(encoder.layout), "sampling": module.asdict(Sampling())}


def test_texts_are_of_the_model_s_own_distribution(model, tmp_path: Path) -> None:
    encoder = numbered(LAYOUT)
    sample_texts(model, encoder, {("mail",): 3000}, tmp_path, of="m", sampling=Sampling(max_tokens=2), batch=500)
    seen = Counter(int(text.body.split()[0]) for text in texts_of(tmp_path).values())
    barred = torch.zeros(1, 300, dtype=torch.bool)
    barred[0, encoder.eos] = True
    chances = module.probabilities(scores(model, encoder.prompt(("mail",)), [])[None], Sampling(), barred)[0]
    expected = 3000 * chances
    common = [token for token in range(300) if expected[token] >= 5]
    rest = 3000 - sum(seen[token] for token in common)
    parts = [(seen[token], float(expected[token])) for token in common]
    parts.append((rest, 3000 - sum(part for _, part in parts)))
    statistic = sum((count - mean) ** 2 / mean for count, mean in parts if mean > 1)
    # Counts of some ten make the deviation 3% more than chi squared's: the chance stays below 1e-7.
    assert statistic < chi2.isf(1e-8, len(parts) - 1)


def test_likelihoods_are_of_what_follows_the_prompt(model) -> None:
    rng = np.random.default_rng(1)
    rows = [
        (rng.integers(0, 300, told).tolist(), rng.integers(0, 300, size).tolist()) for told, size in ((5, 9), (2, 1))
    ]
    found = trained.rows_log_likelihoods(model, rows, 0)
    for (told, written), mean in zip(rows, found, strict=True):
        each = [scores(model, told, written[:at]).log_softmax(0)[token] for at, token in enumerate(written)]
        assert mean == pytest.approx(float(torch.stack(each).mean()), rel=1e-6)


def test_what_is_likeliest_after_prompt_and_beginning(model) -> None:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 300, size).tolist() for size in (4, 1, 6)]
    begun, lengths = [[7, 8, 9], [], [11]], [4, 6, 0]
    found = continuations(model, prompts, lengths, begun)
    for prompt, beginning, length, tokens in zip(prompts, begun, lengths, found, strict=True):
        written = list(beginning)
        for _ in range(length):
            written.append(int(scores(model, prompt, written).argmax()))
        assert tokens == written[len(beginning) :]
    text = [*begun[0], *found[0][:3]]
    assert reconstruct(model, [text], [prompts[0]]).tolist() == [1.0]


def test_texts_of_canaries_are_drawn_too(model) -> None:
    encoder = numbered(LAYOUT)
    texts = write_texts(model, encoder, [("mail",), ("a visit to the patient",)], [1.0, 1.5])
    assert len({len(text.split()) for text in texts}) == 1 and texts[0] != texts[1]
    assert str(encoder.eos) not in texts[0].split()


@BOTH
def test_drawn_from_is_what_was_trained(make, tmp_path: Path) -> None:
    plan = TrainingPlan(units=10, batch_size=2, steps=1, noise_multiplier=1.0, adapter=Adapter(rank=4))
    base = base_model(str(save_model(tmp_path / "base", make(), tiny_tokenizer())), tmp_path)
    model = with_adapter(load(base)[0], plan)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.add_(0.02 * torch.randn_like(value))
    trained.save_weights(model.eval(), tmp_path, 1)
    expected = scores(model, [5, 6, 7], [8, 9])
    assert (expected - scores(load(base)[0], [5, 6, 7], [8, 9])).norm() > 0.01 * expected.norm()
    loaded, _ = trained.load_for_sampling(base, plan, tmp_path, "cpu")
    found = scores(loaded, [5, 6, 7], [8, 9]).float()
    near = 1e-4 if loaded.dtype == torch.float32 else 0.05
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    assert (found - expected).norm() <= near * expected.norm()
