"""What a tick raises: errors of ours alone, without what they were raised from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dpsynth_platform.foundation.errors import DpsynthError, SourceError
from sensors.safe import safe_tick

MARK = "Zaphodina-904-55-7731"
ROOT = Path(__file__).parents[2]


def quoting() -> None:
    raise ValueError(MARK)


def words_of(error: BaseException | None) -> str:
    said = ""
    while error is not None:
        said += str(error)
        error = error.__cause__ or error.__context__
    return said


def test_a_librarys_error_is_told_by_type(tmp_path: Path) -> None:
    with pytest.raises(DpsynthError) as raised:
        safe_tick(tmp_path / "logs")(quoting)()
    (log,) = (tmp_path / "logs").iterdir()
    assert words_of(raised.value) == f"ValueError (details: restricted log {log.name})"
    assert MARK in log.read_text()


def test_our_own_error_has_no_context(tmp_path: Path) -> None:
    def refusing() -> None:
        try:
            quoting()
        except ValueError:
            raise SourceError("the source is away") from None

    with pytest.raises(SourceError) as raised:
        safe_tick(tmp_path / "logs")(refusing)()
    assert words_of(raised.value) == "the source is away"
    assert raised.value.__traceback__ is not None


def test_a_tick_that_yields_is_safe_while_it_does(tmp_path: Path) -> None:
    def yielding(fail: bool) -> Iterator[int]:
        yield 1
        if fail:
            quoting()
        yield 2

    assert list(safe_tick(tmp_path)(yielding)(False)) == [1, 2]
    with pytest.raises(DpsynthError) as raised:
        safe_tick(tmp_path)(yielding)(True)
    assert MARK not in words_of(raised.value)


def test_dagster_keeps_nothing_of_a_librarys_error(tmp_path: Path) -> None:
    """As the daemon does, with the whole chain of what was raised."""
    from dagster._utils.error import serializable_error_info_from_exc_info

    @dg.sensor(name="looking", job_name="any")
    @safe_tick(tmp_path)
    def looking(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        assert context.cursor is None
        raise ValueError(MARK)

    with pytest.raises(Exception) as raised:
        looking.evaluate_tick(dg.build_sensor_context())
    kept = serializable_error_info_from_exc_info((raised.type, raised.value, raised.tb))
    # The lines of the code that failed are quoted, this test's among them; the words of the error are not.
    assert f"ValueError: {MARK}" not in str(kept)
    assert "ValueError (details: restricted log tick-" in str(kept)


def test_every_sensor_schedule_and_check_is_guarded() -> None:
    """Whatever Dagster calls of ours passes one of the edges: read off the code, so that a new one is not forgotten."""
    found = 0
    for path in (*(ROOT / "sensors").glob("*.py"), *(ROOT / "assets").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            kinds = {ast.unparse(item.func) for item in node.decorator_list if isinstance(item, ast.Call)}
            calls = {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
            assert "dg.sensor" not in calls or node.name in ("safe_sensor", "decorate"), f"{path.name}: {node.name}"
            if kinds & {"safe_sensor", "dg.schedule"}:
                found += 1
                assert kinds & {"safe_sensor", "safe_tick"}, f"{path.name}: {node.name}"
            if kinds & {"dg.asset", "dg.asset_check"}:
                found += 1
                assert "guarded" in calls, f"{path.name}: {node.name}"
    assert found >= 14


def test_nothing_is_raised_inside_an_except_block_at_the_edges() -> None:
    """There it would carry the library's error as its context, which Dagster keeps whole, also `from None`."""
    edges = [
        *(ROOT / "sensors").glob("*.py"),
        *(ROOT / "assets" / name for name in ("guard.py", "line.py", "checks.py", "process.py")),
        *(ROOT / "dpsynth_platform" / "operations" / name for name in ("running.py", "forking.py", "rehearsal.py")),
        *(ROOT / "dpsynth_platform" / name for name in ("definitions.py", "operations/preloading.py")),
        ROOT / "dpsynth_platform" / "foundation" / "restricted_log.py",
        *(ROOT / "dpsynth_platform" / "cli" / name for name in ("main.py", "terminal.py")),
        *(ROOT / "dpsynth_platform" / "worker" / name for name in ("__main__.py", "codes.py", "process.py", "rank.py")),
        ROOT / "dpsynth_platform" / "one_table" / "place.py",
        ROOT / "resources" / "accelerator.py",
    ]
    for path in edges:
        for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(handler, ast.ExceptHandler):
                raised = [node for node in ast.walk(handler) if isinstance(node, ast.Raise) and node.exc is not None]
                assert not raised, f"{path.name}, line {handler.lineno}"
