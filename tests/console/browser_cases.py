"""A console in a process of its own, and people who look at it with Chromium.

What belongs here: starting both, signing in, and what every page is held against. What does not: assertions about one
page.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe
from deployment import Deployment
from playwright.sync_api import Browser, Page, StorageState, ViewportSize, sync_playwright

from dpsynth_platform.console.store import Store
from dpsynth_platform.console.users import Users

PHRASE = "correct horse battery staple"
PEOPLE = {"Rita": "reviewer", "Erik": "engineer", "Aud": "auditor"}
PHONE, DESK = 400, 1280
_STARTS_WITHIN, _SLOW = 300, 300_000
_SERIOUS = ("serious", "critical")


@dataclass(frozen=True)
class Console:
    """A running console of a deployment.

    Attributes:
        process: its process's id.
        cookies: what browsers keep of who has signed in, by name: a password is typed once, and hashed.
    """

    deployment: Deployment
    url: str
    process: int
    cookies: dict[str, StorageState] = field(default_factory=dict)

    def expire_sessions(self) -> None:
        """Everybody was last seen a day ago."""
        self.cookies.clear()
        with sqlite3.connect(self.deployment.settings.console_home / "console.db") as database:
            database.execute("UPDATE session SET seen = seen - 86400, began = began - 86400")


@contextmanager
def console(deployment: Deployment) -> Iterator[Console]:
    """Starts a console with a user of each role, and stops it."""
    users = Users(Store(deployment.settings.console_home))
    for name, role in PEOPLE.items():
        users.add(name, [role], PHRASE)
    with socket.socket() as held:  # bound and not listening: nobody else is given the port meanwhile
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        process = deployment.start("console", "--port", str(port))
        try:
            url = f"http://127.0.0.1:{port}"
            _await(process, f"{url}/health")
            yield Console(deployment, url, process.pid)
        finally:
            process.terminate()
            process.communicate(timeout=120)


def _await(process: subprocess.Popen[str], url: str) -> None:
    for _ in range(2 * _STARTS_WITHIN):
        assert process.poll() is None, process.communicate()
        try:
            with urlopen(url, timeout=60):
                return
        except OSError:  # refused, or cut off while it starts
            time.sleep(0.5)
    pytest.fail("the console did not start")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser; skips where there is none, but not in CI, which installs one."""
    program = shutil.which("chromium")
    if program is None and os.environ.get("CI") == "true":
        pytest.fail("CI has no chromium")
    if program is None:
        pytest.skip("there is no chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-software-rasterizer"],
            timeout=_SLOW,
        )
        yield browser
        browser.close()


@dataclass
class Visitor:
    """Somebody at a browser of their own; notes what leaves the console's origin, and what the browser complains of."""

    console: Console
    page: Page
    foreign: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    clicks: int = 0

    def open(self, path: str) -> None:
        """Goes to an address."""
        self.page.goto(self.console.url + path)
        self.settle()

    def settle(self) -> None:
        """Waits until the page is there."""
        self.page.wait_for_selector("main h1", timeout=_SLOW)

    def follow(self, name: str, within: str = "main", exact: bool = False) -> None:
        """Clicks a link by its words."""
        self.page.locator(within).get_by_role("link", name=name, exact=exact).first.click()
        self.clicks += 1
        self.settle()

    @property
    def text(self) -> str:
        """All that the page says."""
        return self.page.inner_text("body")

    @property
    def heading(self) -> str:
        """What the page is called."""
        return self.page.inner_text("main h1")

    def violations(self) -> list[str]:
        """What axe finds serious, with where."""
        found = Axe().run(self.page).response["violations"]
        return [f"{item['id']}: {item['nodes'][0]['html'][:200]}" for item in found if item["impact"] in _SERIOUS]

    def resize(self, width: int) -> None:
        """Another screen, without another load: the pages' styles alone go by its width."""
        self.page.set_viewport_size(_screen(width))

    def too_wide(self) -> bool:
        """Whether the page itself must be moved sideways to be read."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@contextmanager
def visitor(console: Console, browser: Browser, name: str | None = "Rita", *, width: int = DESK) -> Iterator[Visitor]:
    """Somebody with a new browser, signed in unless nobody is named."""
    known = console.cookies.get(name or "")
    context = browser.new_context(viewport=_screen(width), reduced_motion="reduce", storage_state=known)
    context.set_default_timeout(_SLOW)
    page = context.new_page()
    here = Visitor(console, page)
    page.on("request", lambda sent: here.foreign.append(sent.url) if _is_foreign(sent.url, console.url) else None)
    page.on("console", lambda told: here.complaints.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: here.complaints.append(str(error)))
    if name is not None and known is None:
        sign_in(here, name)
        console.cookies[name] = context.storage_state()
    yield here
    assert here.foreign == []
    context.close()


def sign_in(here: Visitor, name: str) -> None:
    """Signs in by name and password."""
    here.page.goto(f"{here.console.url}/sign-in")
    here.page.get_by_label("Name").fill(name)
    here.page.get_by_label("Password").fill(PHRASE)
    here.page.get_by_role("button", name="Sign in").click()
    here.page.wait_for_selector("main h1:text('Overview')", timeout=_SLOW)


def _screen(width: int) -> ViewportSize:
    return {"width": width, "height": 900}


def _is_foreign(url: str, own: str) -> bool:
    return not url.startswith((own, f"ws{own.removeprefix('http')}", "data:", "blob:"))
