"""From a table through examples and training (not private here) to texts: what was learned comes back."""

import pyarrow as pa
import torch
from text_cases import tiny_llama, tiny_tokenizer

from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text.examples import Examples, write_examples
from dpsynth_platform.synth.text.filtering import Rules, sample_records
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.synth.text.sampling import Sampling

RECORDS = [
    {"topic": "mail", "title": "late", "text": "the box was open\ntopic: visit", "_owner": "00" * 16},
    {"topic": "visit", "title": None, "text": "a cough and a fever", "_owner": "11" * 16},
]


def test_what_was_learned_under_a_prompt_comes_back_under_it(tmp_path):
    table = pa.Table.from_pylist(RECORDS)
    write_table(tmp_path / "table", table.schema, table.to_batches())
    layout = TextLayout(("title", "text"), (Condition("topic", ("mail", "visit")),), max_tokens=64)
    encoder = Encoder(layout, tiny_tokenizer())
    write_examples(tmp_path / "table", tmp_path / "examples", encoder)
    batch = Examples(tmp_path / "examples").batch([0, 1])
    model = tiny_llama()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    kept = sample_records(
        model,
        encoder,
        {("mail",): 2, ("visit",): 3},
        tmp_path / "texts",
        of="test",
        sampling=Sampling(top_k=1),
        rules=Rules(duplicates="kept", whole=True),
    )
    learned = [{name: record[name] for name in layout.columns} for record in RECORDS]
    assert kept.rows == [learned[0]] * 2 + [learned[1]] * 3
    assert kept.drawn == 5 and not kept.dropped
