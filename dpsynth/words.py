"""Errors of the Python calls: safe, and with options named as their arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.redaction import safely

_OPTION = re.compile(r"--(?!help\b)([a-z][a-z-]*[a-z])")  # --help is of a command that an error names

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def in_python(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Makes the errors of a public call those of this package.

    Names options as Python has them (`expected_units` for `--expected-units`). Replaces the error of a library, whose
    text may quote the data, by a safe one without context.
    """

    @functools.wraps(call)
    def safe(*arguments: _Given.args, **options: _Given.kwargs) -> _Result:
        inspect.signature(call).bind(*arguments, **options)  # a wrong call is Python's own TypeError
        try:
            return safely(lambda: call(*arguments, **options))
        except DpsynthError as error:
            error.args = tuple(_in_words(part) if isinstance(part, str) else part for part in error.args)
            raise

    return safe


def _in_words(text: str) -> str:
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), text)
