"""Runs the examples of docstrings and pages."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterable
from typing import Any

import dpsynth

_BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_examples(names: Iterable[str], given: dict[str, Any] | None = None) -> None:
    """Those of public names, in this order and in one namespace; each has one."""
    namespace = {"dpsynth": dpsynth, **(given or {})}
    for name in names:
        found = doctest.DocTestFinder(recurse=False).find(getattr(dpsynth, name), name, False, namespace)  # type: ignore[arg-type]
        _run([test for test in found if test.examples], namespace)


def run_text(text: str, given: dict[str, Any]) -> None:
    """Those of a text, together."""
    _run([doctest.DocTestParser().get_doctest(text, given, "text", None, 0)], given)


def of_page(page: str) -> str:
    return "\n".join(_BLOCK.findall(page))


def _run(tests: list[doctest.DocTest], namespace: dict[str, Any]) -> None:
    assert any(test.examples for test in tests)
    runner, said = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), []
    for test in tests:
        test.globs = namespace
        runner.run(test, out=said.append, clear_globs=False)
    assert not runner.failures, "".join(said)
