"""A tiny model that was taught, on fictional sentences, to go on with another record like the one that it reads."""

from functools import cache

import torch
from text_cases import tiny_llama, tiny_tokenizer

from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text.inference_model import Prompts
from dpsynth_platform.synth.text.layout import Encoder, TextLayout

SENTENCES = [
    "the patient came back with a cough",
    "the parcel came late and the box was open",
    "please send the report to the team",
    "the team was late again",
]


ABOUT = "Letters to the editor."


def reader(condition, values, field):
    """For records of one condition and one field."""
    return _taught(TextLayout((field,), (Condition(condition, values),), max_tokens=48), tuple((v,) for v in values))


def note_reader(field):
    """For records of one field, of which nothing is told; it can begin with a record, too, where it reads none."""
    return _taught(TextLayout((field,), max_tokens=48), ((),) * 4, begins=True)


@cache
def _taught(layout, labels, begins=False):
    tokenizer = tiny_tokenizer()
    model = tiny_llama(tokenizer, positions=256).train()
    encoder = Encoder(layout, tokenizer)
    prompts, rows = Prompts(encoder, ABOUT), []
    bodies = encoder.bodies([f" {sentence}" for sentence in SENTENCES])
    for place, label in enumerate(labels * 2):
        read = prompts.of_records(label, [SENTENCES[place % 4], SENTENCES[(place + 1) % 4]])
        asked = [*read, prompts.public(label), *([encoder.prompt(label)] if begins else [])]
        rows += [(prompt, [*bodies[(place + number) % 4], encoder.eos]) for number, prompt in enumerate(asked)]
    width = max(len(prompt) + len(body) for prompt, body in rows)
    tokens = torch.full((len(rows), width), encoder.eos)
    labels = torch.full_like(tokens, -100)
    for row, (prompt, body) in enumerate(rows):
        tokens[row, : len(prompt) + len(body)] = torch.tensor([*prompt, *body])
        labels[row, len(prompt) : len(prompt) + len(body)] = torch.tensor(body)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()
