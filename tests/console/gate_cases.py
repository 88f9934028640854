"""A console without pages, and browsers that speak to it in this process."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher
from fastapi import FastAPI
from starlette.testclient import TestClient

from dpsynth_platform.console import app as console_app
from dpsynth_platform.console import users
from dpsynth_platform.console.access import CSRF_HEADER, AccessServices
from dpsynth_platform.console.configuration import ConsoleSettings
from dpsynth_platform.foundation.settings import Settings

URL = "http://127.0.0.1:3900"
PHRASE = "correct horse battery staple"
PEOPLE = {"Erik": "engineer", "Rita": "reviewer", "Aud": "auditor"}


@dataclass
class Clock:
    """A time that tests move."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Gate:
    """A console's gate with its API, and what stands behind it."""

    app: FastAPI
    services: AccessServices
    clock: Clock

    def browser(self, address: str = "127.0.0.1") -> Browser:
        """A browser that nobody has used yet."""
        return Browser(self, address)

    def signed_in(self, name: str) -> Browser:
        """A browser at which somebody has signed in."""
        browser = self.browser()
        answer = browser.sign_in(name, PHRASE)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        return browser


class Browser:
    """Keeps cookies, and sends what browsers send by themselves."""

    def __init__(self, gate: Gate, address: str) -> None:
        self.gate = gate
        self.url = gate.services.console.url
        self.client = TestClient(
            gate.app,
            base_url=self.url,
            follow_redirects=False,
            raise_server_exceptions=False,
            client=(address, 5000),
        )

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=as_sent(named(headers)))

    def post(
        self, path: str, *, form: dict[str, str] | None = None, json: Any = None, **headers: str
    ) -> httpx.Response:
        """As from a page of the console's own, unless headers say otherwise; empty ones are not sent."""
        sent = {"Origin": self.url, "Sec-Fetch-Site": "same-origin"} | named(headers)
        return self.client.post(
            path, data=form, json=json, headers=as_sent({name: value for name, value in sent.items() if value})
        )

    def sign_in(self, name: str, password: str, onward: str = "/", **headers: str) -> httpx.Response:
        page = self.get("/sign-in").text
        found = re.search(r'name="csrf" value="([^"]+)"', page)
        assert found, page
        form = {"name": name, "password": password, "csrf": found[1], "next": onward}
        return self.post("/sign-in", form=form, **headers)

    def csrf(self) -> str:
        return str(self.get("/api/v1/session").json()["csrf"])

    def change(self, path: str, json: Any, **headers: str) -> httpx.Response:
        """A change by the API, as a page's script would ask for it."""
        return self.post(path, json=json, **({CSRF_HEADER: self.csrf()} | headers))


def named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def as_sent(headers: dict[str, str]) -> dict[str, bytes]:
    """Headers as they travel, UTF-8 or not."""
    return {name: value.encode() for name, value in headers.items()}


def problem(response: httpx.Response) -> tuple[int, str]:
    """Status and code of an answer that is no success, after its form was checked."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    told = response.json()
    assert set(told) == {"type", "title", "status", "detail"}
    assert told["status"] == response.status_code
    assert told["type"] == f"urn:dpsynth-platform:problem:{told['title']}"
    return response.status_code, told["title"]


def gate_of(settings: Settings, **changes: Any) -> Gate:
    """A console with three people, whose clock stands still."""
    clock = Clock()
    services = AccessServices.of(replace(ConsoleSettings(url=URL, home=settings.console_home), **changes), clock)
    known = {user.name for user in services.users.all()}
    for name in PEOPLE.keys() - known:
        services.users.add(name, [PEOPLE[name]], PHRASE)
    return Gate(console_app.without_pages(settings, services), services, clock)


def quick_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing of passwords that takes no time, for tests of other things."""
    monkeypatch.setattr(users, "_hasher", PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    users._hash_of_nothing.cache_clear()
