"""The ledger's page: its button computes where the API does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nicegui import Client, core, ui

from dpsynth_platform.console.access import AccessServices
from dpsynth_platform.console.configuration import ConsoleSettings
from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.pages import ledger as page


def test_the_button_waits_while_something_else_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, pressed, button = [], [], ui.button
    aud = Identity("Aud", frozenset({"auditor"}), "password")
    monkeypatch.setattr(page, "acting", lambda request, action: aud)
    monkeypatch.setattr(page.views, "verify", lambda settings, actions: made.append(actions))
    monkeypatch.setattr(page.ui, "button", lambda *words, on_click, **how: pressed.append(on_click) or button(*words))

    async def press() -> None:
        monkeypatch.setattr(core, "loop", asyncio.get_running_loop())
        services = AccessServices.of(ConsoleSettings(url="http://127.0.0.1:3900", home=tmp_path))
        request = SimpleNamespace(state=SimpleNamespace(services=services))
        here: Any = SimpleNamespace(request=request, settings=None, text=lambda *_, **__: "whole")
        with Client(ui.page("/tried")) as client:
            page._verifying(here)
            async with services.computing:
                waiting = asyncio.create_task(pressed[0]())
                await asyncio.sleep(0.05)
                assert made == []
            await waiting
        client.delete()

    asyncio.run(press())
    assert made == [aud.actions]
