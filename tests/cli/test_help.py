"""Help pages on a terminal of 80 columns show every option by its full name."""

import re
from collections.abc import Iterator

import pytest
import typer
from click.testing import CliRunner

from dpsynth_platform.cli.main import app

WHOLE = typer.main.get_command(app)


def pages(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from pages(inner, (*path, name))


@pytest.mark.parametrize(("path", "command"), [pytest.param(*page, id=" ".join(page[0])) for page in pages(WHOLE)])
def test_no_option_is_cut_at_80_columns(path, command, monkeypatch):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = CliRunner().invoke(WHOLE, [*path, "--help"])
    assert shown.exit_code == 0 and max(map(len, shown.output.splitlines())) <= 80
    names = [
        name
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]
    options = [name for name in names if name.startswith("--")]
    assert [name for name in options if not re.search(rf"{re.escape(name)}(?![\w-])", shown.output)] == []
