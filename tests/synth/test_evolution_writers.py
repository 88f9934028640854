"""A model on this machine as a writer: each prompt's own answer, independent of other prompts, and prompts that fit."""

import pytest
from text_cases import tiny_llama, tiny_tokenizer

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.evolution_writers import LocalWriter
from dpsynth_platform.synth.text.public_text import Prompt, PublicText
from dpsynth_platform.synth.text.sampling import Sampling

LIKELIEST = Sampling(top_k=1)
LONGEST = 8


def prompts_of(number):
    """Of two instructions by turns, and of all lengths."""
    instructions = [PublicText("write a letter"), PublicText("say it again")]
    return [
        Prompt(instructions[at % 2], PublicText("the team was late " * (1 + at % 5) + str(at))) for at in range(number)
    ]


def test_every_prompt_has_its_own_answer_in_whatever_batch_it_is():
    writer, prompts = LocalWriter(tiny_llama(positions=256), tiny_tokenizer(), LIKELIEST, LONGEST), prompts_of(80)
    together = writer.write(prompts)
    alone = [writer.write([prompt])[0] for prompt in prompts]
    assert [text.words for text in together] == [text.words for text in alone]
    assert len({text.words for text in together}) > 10


@pytest.mark.parametrize("name", ["sliding_window", "window_size"])
def test_prompts_that_are_longer_than_the_model_sees_have_no_answer(name):
    model = tiny_llama(positions=256)
    setattr(model.config, name, 64)
    writer, (short,) = LocalWriter(model, tiny_tokenizer(), LIKELIEST, LONGEST), prompts_of(1)
    long = Prompt(short.instruction, PublicText("the team was late " * 30))
    answers = writer.write([long, short])
    assert answers[0] is None and answers[1] is not None
    assert writer.dropped == {"prompt too long": 1}


def test_answers_that_leave_no_room_for_prompts_are_refused():
    with pytest.raises(ConfigurationError, match="130 of 256 that the model sees; accepted: at most half of them"):
        LocalWriter(tiny_llama(positions=256), tiny_tokenizer(), LIKELIEST, 130)
