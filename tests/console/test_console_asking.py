"""The dialog in which somebody confirms what goes on record."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from nicegui import Client, core, ui
from nicegui.helpers import warnings

from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.pages import asking
from dpsynth_platform.console.roles import Action


def test_what_was_confirmed_leaves_no_button_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NiceGUI tells the log of whoever touches an element that was cleared."""
    caplog.set_level(logging.DEBUG, logger="nicegui")
    done: list[str] = []
    rita = Identity("Rita", frozenset({"reviewer"}), "password")
    monkeypatch.setattr(asking, "acting", lambda request, action: rita)

    def do(who: Identity, said: asking.Said) -> asking.Answer:
        done.append(f"{who.name}: {said.reason} {dict(said.lines)}")
        return asking.Answer(("Refused.",), "/releases")

    async def confirm() -> None:
        monkeypatch.setattr(core, "loop", asyncio.get_running_loop())
        here: Any = SimpleNamespace(request=None)
        lines = (asking.Line("epsilon", "Epsilon", value="2.5"), asking.Line("weak", "Why"))
        question = asking.Question("Refuse", "Refuse it?", ("It is refused.",), reason_needed=True, lines=lines)
        with Client(ui.page("/tried")) as client:
            dialog = asking._Dialog(here, Action.DECIDE, question, do)
            dialog.reason.value = " No. "
            dialog.lines["epsilon"].value = " 3 "
            await dialog.confirm()
        assert dialog.sure.is_deleted
        client.delete()

    warnings.reset()
    asyncio.run(confirm())
    assert done == ["Rita: No. {'epsilon': '3', 'weak': ''}"]
    assert caplog.records == []
