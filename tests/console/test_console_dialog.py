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
from dpsynth_platform.console.pages import dialog
from dpsynth_platform.console.roles import Action


def test_what_was_confirmed_leaves_no_button_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NiceGUI tells the log of whoever touches an element that was cleared."""
    caplog.set_level(logging.DEBUG, logger="nicegui")
    done: list[str] = []
    rita = Identity("Rita", frozenset({"reviewer"}), "password")
    monkeypatch.setattr(dialog, "acting", lambda request, action: rita)

    def do(who: Identity, entered: dialog.Entered) -> dialog.Answer:
        done.append(f"{who.name}: {entered.reason} {dict(entered.fields)}")
        return dialog.Answer(("Refused.",), "/releases")

    async def confirm() -> None:
        monkeypatch.setattr(core, "loop", asyncio.get_running_loop())
        context: Any = SimpleNamespace(request=None)
        fields = (dialog.Field("epsilon", "Epsilon", value="2.5"), dialog.Field("weak", "Why"))
        question = dialog.Question("Refuse", "Refuse it?", ("It is refused.",), reason_needed=True, fields=fields)
        with Client(ui.page("/tried")) as client:
            shown = dialog._Dialog(context, Action.DECIDE, question, do)
            shown.reason.value = " No. "
            shown.fields["epsilon"].value = " 3 "
            await shown.confirm()
        assert shown.sure.is_deleted
        client.delete()

    warnings.reset()
    asyncio.run(confirm())
    assert done == ["Rita: No. {'epsilon': '3', 'weak': ''}"]
    assert caplog.records == []
