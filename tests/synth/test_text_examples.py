import stat

import numpy as np
import pyarrow as pa
import pytest
import torch
from text_cases import tiny_gpt2, tiny_llama, tiny_tokenizer

from dpsynth_platform.foundation.errors import ConfigurationError, StaleInput
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.synth.conditions import Condition
from dpsynth_platform.synth.text.examples import NO_LOSS, Examples, Tally, write_examples
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.training.validators import faults_of_batches

TOPICS = Condition("topic", ("mail", "visit"))
LAYOUT = TextLayout(("text",), (TOPICS,), max_tokens=48)
LONG = "the patient came back with a cough and a fever, " * 40


def record(text, topic="mail", owner=0):
    return {"topic": topic, "text": text, "_owner": f"{owner:032x}", "_record": "00"}


def made(tmp_path, records, layout=LAYOUT, name="examples"):
    schema = pa.schema(
        [("topic", pa.string()), ("text", pa.string()), ("_owner", pa.string()), ("_record", pa.string())]
    )
    table = pa.Table.from_pylist(records, schema)
    write_table(tmp_path / f"{name}-table", schema, table.to_batches(max_chunksize=100))
    encoder = Encoder(layout, tiny_tokenizer())
    tally = write_examples(tmp_path / f"{name}-table", tmp_path / name, encoder)
    return Examples(tmp_path / name), tally, encoder


def bodies(examples, encoder):
    """The text that loss is taken on, of every example, with its end."""
    found = []
    for index in range(len(examples)):
        labels = examples.batch([index])["labels"][0]
        found.append(tiny_tokenizer().decode(labels[labels != NO_LOSS]))
    return found


def test_loss_is_taken_on_the_text_and_its_end_only(tmp_path):
    examples, tally, encoder = made(tmp_path, [record("the team was late", "visit")])
    batch = examples.batch([0])
    prompt = encoder.prompt(("visit",))
    body = encoder.bodies([" the team was late"])[0]
    assert batch["input_ids"].tolist() == [[*prompt, *body, encoder.eos]]
    assert batch["labels"].tolist() == [[NO_LOSS] * len(prompt) + body + [encoder.eos]]
    assert batch["position_ids"].tolist() == [list(range(len(prompt) + len(body) + 1))]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert tally == Tally(records=1, examples=1)


def test_a_row_of_a_batch_is_the_single_example_padded(tmp_path):
    examples, _, encoder = made(tmp_path, [record("a box"), record(LONG), record("the team was late")])
    together = examples.batch([2, 0, 1])
    width = together["input_ids"].shape[1]
    for row, index in enumerate([2, 0, 1]):
        alone = examples.batch([index])
        length = alone["input_ids"].shape[1]
        filled = {"input_ids": encoder.eos, "labels": NO_LOSS, "attention_mask": 0}
        for name, tensor in together.items():
            assert torch.equal(tensor[row, :length], alone[name][0])
            if name in filled:
                assert (tensor[row, length:] == filled[name]).all()
        assert together["position_ids"][row].tolist() == list(range(width))


def test_batches_pass_the_trainers_checks(tmp_path):
    texts = ["a box", "the team was late", "a", "the patient came back with a cough"]
    examples, _, encoder = made(tmp_path, [record(text) for text in texts])
    prompt = encoder.prompt(("mail",))
    tokens = [[*prompt, *body, encoder.eos] for body in encoder.bodies([f" {text}" for text in texts])]
    assert faults_of_batches(examples.batch, tokens) == []


def test_padding_does_not_change_a_models_losses(tmp_path):
    examples, _, _ = made(tmp_path, [record("a box"), record(LONG)])
    short, long, both = examples.batch([0]), examples.batch([1]), examples.batch([0, 1])
    for model in (tiny_llama(), tiny_gpt2()):
        with torch.no_grad():
            logits = model(**{name: both[name] for name in both if name != "labels"}).logits
            for row, alone in enumerate((short, long)):
                expected = model(**{name: alone[name] for name in alone if name != "labels"}).logits[0]
                torch.testing.assert_close(logits[row, : len(expected)], expected, rtol=1e-4, atol=1e-4)


def test_an_empty_batch_has_no_rows(tmp_path):
    examples, _, _ = made(tmp_path, [record("a box")])
    assert {tuple(tensor.shape) for tensor in examples.batch([]).values()} == {(0, 0)}


def test_empty_documents_and_undeclared_labels_are_left_out_each_by_itself(tmp_path):
    kept = [record("a box", owner=1), record("the team", "visit", owner=2)]
    left_out = [record(None), record(""), record(" \n\t"), record("text", None), record("text", "other")]
    examples, tally, encoder = made(tmp_path, kept + left_out)
    assert tally == Tally(records=7, examples=2, undeclared=2, empty=3)
    assert sorted(bodies(examples, encoder)) == sorted([" a box<|endoftext|>", " the team<|endoftext|>"])
    alone, _, _ = made(tmp_path, kept, name="alone")
    assert sorted(bodies(alone, encoder)) == sorted(bodies(examples, encoder))


def test_no_record_at_all(tmp_path):
    examples, tally, _ = made(tmp_path, [])
    assert len(examples) == 0 and tally == Tally() and examples.by_owner() == []


def test_a_document_longer_than_the_context_is_cut_and_does_not_end(tmp_path):
    examples, tally, encoder = made(tmp_path, [record(LONG)])
    batch = examples.batch([0])
    assert batch["input_ids"].shape == (1, 48)
    assert encoder.eos not in batch["input_ids"][0].tolist()
    assert f" {LONG}".startswith(bodies(examples, encoder)[0])
    assert tally == Tally(records=1, examples=1, truncated=1)


def test_a_document_of_just_the_context_is_whole(tmp_path):
    encoder = Encoder(LAYOUT, tiny_tokenizer())
    room = 48 - len(encoder.prompt(("mail",)))
    text = "x" * 200
    cut = next(n for n in range(200) if len(encoder.bodies([" " + text[:n]])[0]) == room - 1)
    examples, tally, _ = made(tmp_path, [record(text[:cut])])
    assert examples.batch([0])["input_ids"][0, -1] == encoder.eos
    assert tally.truncated == 0
    examples, tally, _ = made(tmp_path, [record(text[: cut + 1])], name="more")
    assert encoder.eos not in examples.batch([0])["input_ids"][0]
    assert tally.truncated == 1


def test_chunks_are_the_records_pieces_and_at_most_as_many_as_declared(tmp_path):
    layout = TextLayout(("text",), (TOPICS,), max_tokens=48, chunks_per_record=3)
    middle = LONG[:200]
    examples, tally, encoder = made(
        tmp_path, [record(middle, owner=1), record(LONG, owner=2), record("a", owner=3)], layout
    )
    of_owner = {owner: [] for owner in range(3)}
    for owner, body in zip(examples.owners, bodies(examples, encoder), strict=True):
        of_owner[int(owner)].append(body)
    (one,) = (pieces for pieces in of_owner.values() if len(pieces) == 1)
    assert one == [" a<|endoftext|>"]
    whole = [pieces for pieces in of_owner.values() if "".join(pieces) == f" {middle}<|endoftext|>"]
    assert len(whole) == 1 and 2 <= len(whole[0]) <= 3
    (cut,) = (pieces for pieces in of_owner.values() if len(pieces) > 1 and pieces not in whole)
    assert len(cut) == layout.chunks_per_record == 3 and f" {LONG}".startswith("".join(cut))
    assert tally.truncated == 1 and tally.records == 3 and tally.examples == len(examples)
    later = examples.batch(np.arange(len(examples)))["input_ids"].tolist()
    assert sum(row[: len(encoder.prompt(("mail",)))] == encoder.prompt(("mail",)) for row in later) == 3


def test_the_chunks_of_a_record_are_one_unit_of_sampling(tmp_path):
    layout = TextLayout(("text",), (TOPICS,), max_tokens=48, chunks_per_record=3)
    records = [record(LONG, owner=1), record("a", owner=2), record(LONG[:200], owner=1), record(" ", owner=2)]
    examples, tally, _ = made(tmp_path, records, layout)
    by_record, by_owner = examples.units("record"), examples.units("user")
    assert sorted(place for unit in by_record for place in unit) == list(range(tally.examples))
    assert sorted(map(len, by_record)) == [1, 2, 3] or sorted(map(len, by_record)) == [1, 3, 3]
    assert all(len({int(examples.owners[place]) for place in unit}) == 1 for unit in by_record)
    assert all(unit == list(range(unit[0], unit[0] + len(unit))) for unit in by_record)
    assert sorted(map(len, by_owner))[0] == 1 and len(by_owner) == 2
    whole, _, _ = made(tmp_path, records, TextLayout(("text",), (TOPICS,), max_tokens=48), name="whole")
    assert whole.units("record") is None


def test_what_is_cut_off_is_not_tokenized(tmp_path, monkeypatch):
    longest = []
    tokenized = Encoder.bodies
    monkeypatch.setattr(
        Encoder, "bodies", lambda self, texts: (longest.extend(map(len, texts)), tokenized(self, texts))[1]
    )
    made(tmp_path, [record("the patient " * 100_000)])
    assert max(longest) < 2000


def test_owners_are_numbered_and_keep_their_examples(tmp_path):
    records = [record(f"the team {number}", owner=number % 40) for number in range(300)]
    examples, _, encoder = made(tmp_path, records)
    assert set(examples.owners.tolist()) == set(range(40))
    for owner, positions in enumerate(examples.by_owner()):
        assert positions == [place for place in range(300) if examples.owners[place] == owner]
    groups = {}
    for owner, body in zip(examples.owners, bodies(examples, encoder), strict=True):
        groups.setdefault(int(owner), set()).add(int(body.split()[2].removesuffix("<|endoftext|>")) % 40)
    assert all(len(group) == 1 for group in groups.values())


def test_records_of_several_owners_have_no_single_one(tmp_path):
    schema = pa.schema([("topic", pa.string()), ("text", pa.string()), ("_owners", pa.list_(pa.string()))])
    table = pa.Table.from_pylist([{"topic": "mail", "text": "a", "_owners": ["00" * 16, "11" * 16]}], schema)
    write_table(tmp_path / "table", schema, table.to_batches())
    write_examples(tmp_path / "table", tmp_path / "made", Encoder(LAYOUT, tiny_tokenizer()))
    examples = Examples(tmp_path / "made")
    assert len(examples) == 1 and examples.owners is None
    with pytest.raises(ConfigurationError, match="several owners, so users cannot be sampled"):
        examples.by_owner()


def test_a_missing_column_is_named(tmp_path):
    with pytest.raises(StaleInput, match="no column 'title'"):
        made(tmp_path, [record("a")], TextLayout(("title",), max_tokens=48))


def test_files_are_private_and_damage_is_seen(tmp_path):
    examples, _, _ = made(tmp_path, [record("a box"), record(LONG)])
    directory = tmp_path / "examples"
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert isinstance(examples._tokens, np.memmap)
    tokens = directory / "tokens.i4"
    tokens.write_bytes(tokens.read_bytes()[:-4])
    with pytest.raises(StaleInput, match="do not belong together"):
        Examples(directory)
    tokens.unlink()
    with pytest.raises(StaleInput, match="missing or damaged"):
        Examples(directory)
