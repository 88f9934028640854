"""Files of rules for scrubbing without a contract: `--rules`.

What belongs here: the forms of such a file. What does not: the rules (`contracts.scrubbing`).
"""

from __future__ import annotations

from pathlib import Path

from dpsynth_platform.contracts.scrubbing import Scrub
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.scrub.presidio_rules import Converted, converted, is_registry


def read_rules(path: Path) -> Converted:
    """The rules in a YAML file: below `scrub` as in a contract, or a recognizer registry of Presidio.

    Raises:
        ContractError: it cannot be read, or has none of these forms.
    """
    document = read_yaml(path)
    if is_registry(document):
        return converted(document, str(path))
    if "scrub" not in document:
        raise ContractError(
            f"{path}: neither scrub nor recognizers in it; accepted: `scrub:` as in a contract, or a recognizer "
            "registry of Presidio"
        )
    return Converted(validated(Scrub, document["scrub"] or {}, f"{path}: scrub"))
