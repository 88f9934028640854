"""The common part of language models that write rows: counts of single columns, a first stage, training, drawing.

What belongs here: what they do otherwise than networks over states (`network_generator`, `columnwise_generator`). What
does not: the plan (`language_plan`), tokens (`row_tokens`), training (`row_training`), passes (`row_reading`).

Each state of a column is a text, and a row a sequence of names and such texts (Borisov et al. 2023, "Language models
are realistic tabular data generators"; Afonja et al. 2025, "DP-2Stage"). So values that are missing or rare, given
values, constraints, and the correction by noisy counts are those of all networks over columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.text_generation import published_name
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import MechanismRun, SealedPlan
from dpsynth_platform.synth.neural.language_plan import LanguageParameters
from dpsynth_platform.synth.neural.network_generator import LearnedColumns, NetworkGenerator
from dpsynth_platform.synth.neural.network_plan import NetworkParameters
from dpsynth_platform.synth.neural.public_texts import SealedTexts
from dpsynth_platform.synth.neural.row_words import order_of, possible_words, ranks_of, words_of
from dpsynth_platform.synth.tabular.cost import LANGUAGE_PACE, TrainingWork
from dpsynth_platform.synth.tabular.domain import Codes, Domain
from dpsynth_platform.synth.tabular.paid import of_mechanism

if TYPE_CHECKING:
    from torch import Tensor

    from dpsynth_platform.synth.network_training import Prepared
    from dpsynth_platform.synth.neural.row_reading import LanguageRows
    from dpsynth_platform.synth.neural.row_tokens import RowTokens
    from dpsynth_platform.synth.neural.row_training import LanguageBatches, States
    from dpsynth_platform.synth.tabular.joint import Joint
    from dpsynth_platform.synth.text.base_models import BaseModel


class LanguageGenerator(NetworkGenerator):
    """A generator whose rows a language model writes."""

    pace = LANGUAGE_PACE

    def parameters(self, contract: DataContract, domain: Domain, guarantee: Guarantee) -> dict[str, Any]:
        """Calibrates counts and training together, and tries the model on random rows.

        Raises:
            ConfigurationError: the base model is not there, cannot be loaded, or cannot write rows.
            ContractError: rows are longer than the model can read.
            TrainingRefused: training it would not be differentially private.
        """
        from dpsynth_platform.synth.neural.row_tokens import most_tokens
        from dpsynth_platform.synth.text.base_models import context_length, refuse_decoder
        from dpsynth_platform.synth.text.trained import deployed

        base = deployed(str(contract.generate.base_model))
        refuse_decoder(base, f"method {self.method}")
        order = order_of(domain, contract.quality.target)
        found = LanguageParameters.planned(contract, domain, guarantee, base, order)
        model, tokenizer = _loaded(found, base)
        learned = LearnedColumns.planned(domain)
        tokens = _tokens(tokenizer, found, learned)
        tokens.refuse_unknown(tokenizer.unk_token_id)
        room, most_states = context_length(model), max(domain.most_states)
        most = most_tokens(tokenizer, domain.names, [possible_words(column) for column in domain], most_states)
        if most > room:
            raise ContractError(
                f"{contract.dataset}: columns: a row has up to {most} tokens of {base.declared}, which reads {room} at "
                "most; accepted: fewer columns, shorter names or values, or a model that reads more"
            )
        if found.first is not None and found.first.public is not None:
            longest = _public_rows(tokenizer, found.first.public)[2]
            if longest > room:
                raise ContractError(
                    f"{contract.dataset}: generate.public: its longest row has {longest} tokens of {base.declared}, "
                    f"which reads {room} at most; accepted: fewer columns, shorter values, or a model that reads more"
                )
        trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
        found = replace(found, weights=trained, most_tokens=most)
        _ready(model, len(tokenizer), tokens, found, learned, "cpu")
        return found.to_json()

    def sealed(self, plan_parameters: Mapping[str, Any]) -> LanguageParameters:
        return LanguageParameters.of(of_mechanism(plan_parameters))

    def check_public(self, plan: SealedPlan) -> tuple[Path, ...]:
        """The public table of the first stage. Raises `ConfigurationError` if it is not there, or another."""
        first = self.sealed(plan.parameters).first
        if first is None or first.public is None:
            return ()
        first.public.read()
        return first.public.paths

    def run(self, run: MechanismRun) -> None:
        """See `NetworkGenerator.run`, with the base model that the job describes, if it does.

        Raises:
            GrantRefused: the description cannot be read.
        """
        from dpsynth_platform.synth.text.generator import read_base_model
        from dpsynth_platform.synth.text.trained import handed

        described = None if run.checkpoints is None else run.checkpoints.base_model
        with handed(None if described is None else read_base_model(described)):
            super().run(run)

    def weights(self, parameters: NetworkParameters, sizes: Sequence[int]) -> int:
        return _own(parameters).weights

    def work(self, parameters: NetworkParameters, sizes: Sequence[int]) -> TrainingWork:
        """Of both stages. Rows are about half as long as the longest; a base model's weights have two bytes or more."""
        sealed, first = _own(parameters), _own(parameters).first
        rows = super().work(parameters, sizes).rows + (0 if first is None else first.steps * first.batch_size)
        return TrainingWork(rows, sealed.most_tokens // 2, sealed.base_bytes / 2, self.pace)

    def description(self, plan: SealedPlan) -> dict[str, Any]:
        found, sealed = super().description(plan), self.sealed(plan.parameters)
        first = "" if sealed.first is None else f"; {_first_in_words(sealed)}"
        return found | {
            "event": f"{found['event']}; the network is {published_name(sealed.base_model)}, which writes rows of up "
            f"to {sealed.most_tokens} tokens{first}",
            "base_model": sealed.base_model,
            "predicted_memory_bytes": found["predicted_memory_bytes"] + sealed.base_bytes,
        }

    def ready(
        self, parameters: NetworkParameters, learned: LearnedColumns, device: str, progress: Progress = silent
    ) -> Prepared:
        sealed = _own(parameters)
        model, tokenizer = _loaded(sealed)
        tokens = _tokens(tokenizer, sealed, learned)
        ready = _ready(model, len(tokenizer), tokens, sealed, learned, device)
        if sealed.first is None:
            return ready
        warm_up = partial(_first_stage, model, tokenizer, tokens, sealed, learned, device, progress)
        return replace(ready, warm_up=warm_up)

    def unlinked(self, parameters: NetworkParameters, learned: LearnedColumns) -> Mapping[str, Tensor]:
        return _trainable(_loaded(_own(parameters))[0])

    def joint(self, plan: SealedPlan, directory: Path) -> Joint:
        """See `Generator.joint`; raises as `rows_model`."""
        from dpsynth_platform.synth.neural.columnwise import ColumnwiseJoint

        learned, rows = self.rows_model(plan, directory)
        return ColumnwiseJoint(rows, learned.shares, rows.tokens.order)

    def rows_model(self, plan: SealedPlan, directory: Path) -> tuple[LearnedColumns, LanguageRows]:
        """The trained model as a distribution of rows.

        Raises:
            MechanismFailed: its weights are incomplete, damaged or of another plan.
            ConfigurationError: the base model is not that of the plan.
        """
        from dpsynth_platform.synth.neural.network_generator import NETWORK
        from dpsynth_platform.synth.neural.row_reading import LanguageRows
        from dpsynth_platform.training.weights import load_weights

        sealed, learned = self.sealed(plan.parameters), self.learned(plan, directory)
        model, tokenizer = _loaded(sealed)
        load_weights(_trainable(model), directory / NETWORK)
        merged = model if sealed.training.adapter is None else model.merge_and_unload()
        return learned, LanguageRows(merged.eval(), _tokens(tokenizer, sealed, learned))


def _own(parameters: NetworkParameters) -> LanguageParameters:
    assert isinstance(parameters, LanguageParameters)  # noqa: S101  (`sealed` and `parameters` make no others)
    return parameters


def _first_in_words(sealed: LanguageParameters) -> str:
    first = sealed.first
    assert first is not None  # noqa: S101  (the caller asks)
    rows = {
        "counted": "random rows by the noisy counts of single columns",
        "uniform": "random rows of declared values",
        "public": "" if first.public is None else f"{first.public.rows:,} rows of a public table",
    }[first.rows]
    return f"before it is trained on a record, it learns the form of rows from {rows}, in {first.steps} steps"


def _loaded(sealed: LanguageParameters, base: BaseModel | None = None) -> tuple[Any, Any]:
    """The base model with the plan's adapter, if any, and its tokenizer.

    Raises:
        ConfigurationError: the base model is not that of the plan, or cannot be loaded.
    """
    from dpsynth_platform.synth.text.base_models import load
    from dpsynth_platform.synth.text.trained import check_digest, deployed
    from dpsynth_platform.training.adapter import with_adapter

    base = base or deployed(sealed.base_model)
    check_digest(base, sealed.base_digest)
    model, tokenizer = load(base)
    return with_adapter(model, sealed.training), tokenizer


def _trainable(model: Any) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def _tokens(tokenizer: Any, sealed: LanguageParameters, learned: LearnedColumns) -> RowTokens:
    from dpsynth_platform.synth.neural.row_tokens import RowTokens

    words = [words_of(column, states) for column, states in zip(learned.domain, learned.states, strict=True)]
    return RowTokens.of(tokenizer, learned.domain.names, words, sealed.order)


def _ready(
    model: Any, vocabulary: int, tokens: RowTokens, sealed: LanguageParameters, learned: LearnedColumns, device: str
) -> Prepared:
    """The model, tried on random rows."""
    import torch

    from dpsynth_platform.synth.neural.row_training import LanguageBatches, RowSums

    ranks = [ranks_of(column, states) for column, states in zip(learned.domain, learned.states, strict=True)]
    rows = LanguageBatches(tokens, sealed, torch.device(device), ranks)
    _try(model, vocabulary, tokens, rows, sealed)
    return rows.prepared(model.to(device), RowSums)


def _try(model: Any, vocabulary: int, tokens: RowTokens, rows: LanguageBatches, sealed: LanguageParameters) -> None:
    """Refuses a model that cannot be read in parts, or not be trained; then it is on the device of the rows."""
    from dpsynth_platform.synth.neural.row_reading import LanguageRows, refuse_unreadable
    from dpsynth_platform.synth.neural.row_training import refuse_unsound_rows

    refuse_unreadable(LanguageRows(model, tokens))
    refuse_unsound_rows(model.to(rows.device), sealed.training, rows, vocabulary, tokens.longest)


def _public_rows(tokenizer: Any, public: SealedTexts) -> tuple[RowTokens, Codes, int]:
    """The tokens of a public table, the states of its rows, and the tokens of its longest row; raises as both."""
    from dpsynth_platform.synth.neural.row_tokens import RowTokens

    names, values, codes = public.read()
    tokens = RowTokens.of(tokenizer, names, values, range(len(names)))
    lengths = [np.array([*map(len, column.values)])[own] for column, own in zip(tokens.columns, codes.T, strict=True)]
    longest = 1 + sum(len(column.name) for column in tokens.columns) + int(np.sum(lengths, axis=0).max())
    return tokens, codes, longest


def _first_stage(
    model: Any,
    tokenizer: Any,
    tokens: RowTokens,
    sealed: LanguageParameters,
    learned: LearnedColumns,
    device: str,
    progress: Progress,
) -> None:
    """Trains the model on rows that are not private: of the plan's public table, or of the noisy counts alone."""
    import torch

    from dpsynth_platform.synth.neural.row_training import among, drawn_of, learn_form

    first = sealed.first
    assert first is not None  # noqa: S101  (the caller asks)
    states: States
    if first.public is not None:
        tokens, codes, _ = _public_rows(tokenizer, first.public)
        states = among(torch.from_numpy(codes).long())
    elif first.rows == "uniform":
        states = drawn_of([torch.ones(size) for size in tokens.sizes])
    else:
        states = drawn_of([torch.from_numpy(share) for share in learned.shares])
    learn_form(model, tokens, states, first, torch.device(device), progress)
