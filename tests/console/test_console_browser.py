"""The console in a browser: what a reviewer, an engineer and an auditor can see and do there."""

import re
from pathlib import Path

import pytest
from browser_cases import DESK, PHONE, chromium, console, sign_in, visitor
from filled_cases import PRODUCT, REFUSED, SECOND, WAITING, WHY_REFUSED
from view_cases import release_of

from dpsynth_platform.console.proxy import USUAL_HEADERS
from dpsynth_platform.ledger.export import verify_export
from dpsynth_platform.ledger.store import Ledger

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
UNNAMED_TABLES = "[...document.querySelectorAll('table')].filter(it => !it.caption?.textContent.trim()).length"
# The statement is signed as it is.
WITHOUT_STATEMENT = (
    "(() => { const it = document.querySelector('main').cloneNode(true);"
    " it.querySelector('#meaning')?.remove(); return it.textContent })()"
)
WHY = "the bins of score hide the two highest"


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def served(kept_filled, browser):
    """A console of the filled deployment, which afterwards is as it was. Tests here share what becomes of it."""
    with console(kept_filled.made) as running:
        yield running
    kept_filled.put_back()


@pytest.fixture(scope="module")
def release(filled):
    return release_of(filled.settings, "people")


def pages(release):
    """Every page, with one that the graph's search fills."""
    return {
        "overview": "/",
        "families": "/families",
        "family": "/families/clinic",
        "datasets": "/datasets",
        "dataset": "/datasets/visits",
        "releases": "/releases",
        "release": f"/releases/{release}",
        "candidate": f"/candidates/{WAITING.dataset}/{WAITING.period}",
        "refused": f"/candidates/{REFUSED.dataset}/{REFUSED.period}",
        "lineage": "/lineage",
        "node": f"/lineage?node={PRODUCT}&up=4",
        "found": "/lineage?text=people",
        "way": f"/lineage?node={PRODUCT}&path=people",
        "ledger": "/ledger",
    }


def test_every_page_is_accessible_fits_and_asks_for_nothing_elsewhere(served, browser, release):
    with visitor(served, browser) as here:
        for name, address in pages(release).items():
            here.open(address)
            for width in (DESK, PHONE):
                here.resize(width)
                assert here.violations() == [], (name, width)
                assert not here.too_wide(), (name, width)
            assert here.page.locator("main").count() == 1, name
            assert here.page.locator("h1").count() == 1, name
            assert here.page.evaluate(UNNAMED_TABLES) == 0, name
            if not address.startswith("/lineage"):  # where a node lies is the operator's
                said = here.page.evaluate(WITHOUT_STATEMENT)
                assert not re.search(r"\bdpsynth [a-z]|DPSYNTH_|" + re.escape(str(served.deployment.root)), said), name
        assert here.complaints == []


def test_on_a_phone_the_words_of_charts_can_be_read_and_long_tables_are_folded(served, browser, release):
    smallest = (
        "Math.min(...[...document.querySelectorAll('figure svg')].map(it => 12 * it.getBoundingClientRect().width / "
        "it.viewBox.baseVal.width))"
    )
    with visitor(served, browser, width=PHONE) as here:
        here.open("/families/clinic")
        assert here.page.evaluate(smallest) > 9  # pixels of a letter; a chart that fits the window has 6
        assert not here.too_wide()
        here.open(f"/candidates/{WAITING.dataset}/{WAITING.period}")
        here.page.evaluate("document.querySelectorAll('details').forEach(it => it.open = true)")
        assert here.page.evaluate(smallest) > 9
        assert not here.too_wide()
        assert here.violations() == []
        here.open(f"/lineage?node={release}&up=1")
        columns = here.page.locator("#columns")
        few = columns.locator("tbody tr").count() <= 8
        assert columns.evaluate("it => it.open") == few


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_the_sign_in_page_is_accessible_and_needs_no_script(served, browser, width):
    with visitor(served, browser, None, width=width) as here:
        here.page.goto(f"{served.url}/families/clinic")
        assert here.page.locator("script").count() == 0
        assert here.violations() == []
        assert not here.too_wide()
        here.page.get_by_label("Name").fill("Rita")
        here.page.get_by_label("Password").fill("something else")
        here.page.keyboard.press("Enter")
        here.page.get_by_role("alert").wait_for()
        sign_in(here, "Rita")


def test_whoever_was_sent_to_sign_in_comes_to_where_they_wanted(served, browser):
    with visitor(served, browser, None) as here:
        here.page.goto(f"{served.url}/families/clinic")
        here.page.get_by_label("Name").fill("Aud")
        here.page.get_by_label("Password").fill("correct horse battery staple")
        here.page.get_by_role("button", name="Sign in").click()
        here.settle()
        assert here.heading == "Family clinic"


def test_the_keyboard_alone_is_enough(served, browser):
    with visitor(served, browser) as here:
        here.open("/lineage")
        keyboard = here.page.keyboard
        focused = (
            "(() => { const at = document.activeElement; return at.getAttribute('aria-label') || at.innerText })()"
        )
        keyboard.press("Tab")
        assert here.page.evaluate(focused) == "Skip to the content"
        keyboard.press("Enter")
        seen = []
        for _ in range(30):
            keyboard.press("Tab")
            seen.append(here.page.evaluate(focused) or "")
            if "source" in seen[-1]:
                break
        assert "Overview" not in seen  # the skip link passed the navigation
        assert any("release" in words for words in seen) or "source" in seen[-1]
        keyboard.press("Enter")
        here.page.wait_for_url("**node=**")
        here.settle()
        assert here.page.locator("#node").inner_text().endswith("source")


@pytest.mark.parametrize(
    "clicks, answer",
    [
        (["Released in the last 30 days"], "people-"),  # what was released last month
        (["people-"], "In numbers: epsilon 1"),  # under which guarantee
        (["people-", "Follow its lineage"], "people: source"),  # from whose data
        (["tests"], "would fit"),  # what may still be spent
        (["people-"], "as planned"),  # who approved
        (["visits", "Its candidate and the decisions on it:2"], WHY_REFUSED),  # why was that one refused
    ],
    ids=["what", "guarantee", "whose", "left", "who", "why"],
)
def test_a_newcomers_questions_take_three_clicks_at_most(served, browser, clicks, answer):
    with visitor(served, browser, "Erik") as here:
        here.open("/")
        for words in clicks:
            name, _, number = words.partition(":")
            here.page.locator("main").get_by_role("link", name=name, exact=not name.endswith("-")).nth(
                int(number or 0)
            ).click()
            here.page.wait_for_load_state()
            here.settle()
        here.page.get_by_text(answer).locator("visible=true").first.wait_for()
        assert len(clicks) <= 3


def test_a_reviewer_follows_a_release_to_its_source_refuses_one_and_approves_the_next(served, browser, release):
    ledger = Ledger(served.deployment.settings.ledger_url)
    with visitor(served, browser) as here:
        here.open("/")
        here.follow(release)
        here.follow("Follow its lineage")
        here.page.locator(".graph").get_by_role("link", name="people: source").click()
        here.page.wait_for_url("**node=people%23**")
        here.settle()
        assert here.page.locator("#node").inner_text() == "people: source"

        here.open("/")
        here.follow(f"Decide on {SECOND.label}")
        plot = here.page.locator("figure svg[role=img]").first
        assert "canaries" in (plot.locator("title").text_content() or "")
        here.page.get_by_role("button", name="Refuse…").click()
        dialog = here.page.get_by_role("dialog")
        dialog.get_by_role("button", name="Refuse", exact=True).click()
        dialog.get_by_text("A reason is needed").wait_for()
        dialog.get_by_label("Reason").fill(WHY)
        dialog.get_by_role("button", name="Refuse", exact=True).click()
        dialog.get_by_text("Refused by Rita").wait_for()
        dialog.get_by_role("link", name="Continue").click()
        here.page.wait_for_load_state()
        here.page.get_by_role("cell", name=WHY).wait_for()
        last = ledger.history()[-1]
        assert (last.kind, last.payload["by"], last.payload["reason"]) == ("refused", "Rita", WHY)

        here.open("/")
        assert SECOND.label not in here.page.inner_text("#waiting ~ div")
        here.follow(f"Decide on {WAITING.label}")
        here.page.get_by_role("button", name="Approve…").click()
        dialog.get_by_role("button", name="Approve", exact=True).click()
        dialog.get_by_text("Published as release").wait_for(timeout=300_000)
        dialog.get_by_role("link", name="Continue").click()
        here.page.wait_for_url("**/releases/**")
        here.settle()
        assert here.heading.startswith(f"Release {WAITING.dataset}-{WAITING.period}")
        assert "Rita" in here.page.inner_text(".facts")
        assert here.complaints == []


def test_pages_follow_the_systems_dark_setting_and_print_with_everything_open(served, browser):
    address = f"/candidates/{REFUSED.dataset}/{REFUSED.period}"
    with visitor(served, browser) as here:
        here.page.emulate_media(color_scheme="dark")
        for path in (address, "/", "/families/clinic"):
            here.open(path)
            assert here.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 26, 23)"
            assert here.violations() == []
        here.open(address)
        here.page.get_by_role("button", name="Refuse…").click()
        here.page.get_by_role("dialog").get_by_label("Reason").wait_for()
        assert here.violations() == []
        here.page.keyboard.press("Escape")
        here.page.get_by_role("dialog").wait_for(state="hidden")
        assert not here.page.locator("#meaning").is_visible()
        here.page.emulate_media(media="print", color_scheme="dark")
        assert here.page.locator("#meaning").is_visible()
        assert not here.page.locator("header").is_visible()
        assert not here.page.get_by_role("button", name="Refuse…").is_visible()
        assert here.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_draft_says_what_is_missing_as_a_list(served, browser):
    file = served.deployment.settings.contracts / "draft.yaml"
    file.write_text("dataset: draft\ndescription:\nowners:\n")
    try:
        with visitor(served, browser) as here:
            here.open("/datasets/draft")
            assert here.heading == "Dataset draft"
            assert "is a draft" in here.text and "nothing to decide here" in here.text
            assert here.page.locator("#missing ~ ul > li").count() >= 3
            assert str(file.parent) not in here.text
            assert here.violations() == []
    finally:
        file.unlink()


def test_a_dialog_gives_the_focus_back_and_escape_closes_it(served, browser):
    with visitor(served, browser) as here:
        here.open(f"/candidates/{REFUSED.dataset}/{REFUSED.period}")
        button = here.page.get_by_role("button", name="Refuse…")
        button.focus()
        here.page.keyboard.press("Enter")
        dialog = here.page.get_by_role("dialog")
        dialog.get_by_label("Reason").wait_for()
        here.page.wait_for_function("document.activeElement.tagName === 'TEXTAREA'")
        assert here.violations() == []
        here.page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        here.page.wait_for_function("document.activeElement.innerText === 'Refuse…'")


def test_an_engineer_cannot_decide_and_sees_nothing_of_real_rows(served, browser):
    with visitor(served, browser, "Erik") as here:
        here.open(f"/candidates/{REFUSED.dataset}/{REFUSED.period}")
        assert here.page.get_by_role("button", name="Refuse…").count() == 0
        assert here.page.get_by_role("button", name="Approve…").count() == 0
        assert "Approving and refusing is for reviewers." in here.text
        assert "compared with real rows" not in here.text
        here.open("/ledger")
        assert here.page.get_by_role("link", name="Export").count() == 0
        here.open("/families/tests")
        assert here.page.get_by_role("button", name="Approve the raise").count() == 0
        assert here.page.get_by_role("button", name="Ask for a larger cap").count() == 0


def test_an_auditor_reads_verifies_and_exports_and_changes_nothing(served, browser):
    with visitor(served, browser, "Aud") as here:
        here.open(f"/candidates/{REFUSED.dataset}/{REFUSED.period}")
        assert here.page.get_by_role("button", name="Refuse…").count() == 0
        assert "compared with real rows" in here.text
        here.open("/ledger")
        with here.page.expect_download() as download:
            here.page.get_by_role("link", name="Export the ledger").click()
        assert verify_export(Path(download.value.path()).read_text(encoding="utf-8")).ok
        here.page.get_by_role("button", name="Verify the whole ledger").click()
        here.page.locator(".notice.green").wait_for()
        assert "whole" in here.page.inner_text(".notice.green")
        here.open("/families/tests")
        assert here.page.get_by_role("button", name="Approve the raise").count() == 0
        assert here.page.get_by_role("button", name="Ask for a larger cap").count() == 0


def test_a_reviewer_approves_a_larger_cap(served, browser):
    with visitor(served, browser) as here:
        here.open("/families/tests")
        here.page.get_by_role("button", name="Approve the raise").click()
        dialog = here.page.get_by_role("dialog")
        dialog.get_by_role("button", name="Approve the raise").click()
        dialog.get_by_text("The cap of tests is now epsilon 3").wait_for()


def test_a_reviewer_asks_for_a_larger_cap_and_cannot_approve_it(served, browser):
    ledger = Ledger(served.deployment.settings.ledger_url)
    with visitor(served, browser) as here:
        here.open("/families/clinic")
        here.page.get_by_role("button", name="Ask for a larger cap").click()
        dialog = here.page.get_by_role("dialog")
        dialog.get_by_label("New epsilon").fill("four")
        dialog.get_by_label("Reason").fill("one more year of visits")
        before = len(ledger.history())
        dialog.get_by_role("button", name="Ask for a larger cap").click()
        dialog.get_by_text("Epsilon: 'four'; accepted").wait_for()
        assert here.violations() == []
        assert len(ledger.history()) == before
        dialog.get_by_label("New epsilon").fill("4")
        dialog.get_by_role("button", name="Ask for a larger cap").click()
        dialog.get_by_text("Rita asks for epsilon 4").wait_for()
        (event,) = ledger.history()[before:]
        assert (event.kind, event.payload["by"]) == ("raise-asked", "Rita")
        dialog.get_by_role("link", name="Continue").click()
        here.page.get_by_text("one more year of visits").wait_for()
        assert "another person approves it" in here.text
        assert here.page.get_by_role("button", name="Approve the raise").count() == 0


def test_what_has_no_page_is_told_in_the_frame(served, browser):
    with visitor(served, browser) as here:
        for address in ("/releases/none-such", "/families/none-such", "/ledger/none-such", "/lineage?node=none-such"):
            answer = here.page.goto(served.url + address)
            here.settle()
            assert answer is not None and answer.status == 404, address
            assert here.heading == "Not found"
            assert here.page.locator("header nav").count() == 1
        here.open("/releases?page=abc&state=<b>&text=%22%3E%3Cscript%3E")
        assert "No release matches." in here.text


def test_a_tampered_dossier_shows_as_broken(served, browser, release):
    settings = served.deployment.settings
    dossier = settings.home / "public" / "people" / release / "dossier.json"
    kept = dossier.read_bytes()
    dossier.write_bytes(kept.replace(b'"epsilon": 1.0', b'"epsilon": 0.1').replace(b'"epsilon":1.0', b'"epsilon":0.1'))
    assert dossier.read_bytes() != kept
    try:
        with visitor(served, browser) as here:
            here.open(f"/releases/{release}")
            assert "this release is not what was signed" in here.page.get_by_role("alert").inner_text()
            assert "dossier.json" in here.page.inner_text("#verification ~ div")
            assert "0.1" not in here.page.inner_text(".facts")
            here.open("/releases")
            assert "damaged" in here.page.get_by_role("row").filter(has_text=release).inner_text()
            here.open("/")
            assert "damaged" in here.page.get_by_role("row").filter(has_text=release).inner_text()
    finally:
        dossier.write_bytes(kept)


def test_a_reviewer_walks_from_sign_in_to_a_withdrawal_without_a_shell(served, browser, release):
    """Sign-in, what waits, the verdict, the evidence, a comment; and a release is taken back on its page."""
    ledger = Ledger(served.deployment.settings.ledger_url)
    with visitor(served, browser, None) as here:
        sign_in(here, "Rita")
        here.open(f"/candidates/{REFUSED.dataset}/{REFUSED.period}")
        assert here.page.locator("ol.verdict > li").count() == 3
        assert "epsilon 1" in here.page.inner_text("ol.verdict")
        assert here.page.locator(".checks li").count() >= 8
        assert not here.page.locator("#audit table").is_visible()
        here.page.locator(".checks").get_by_role("link", name="The audit could").click()
        here.page.locator("#audit table").wait_for()
        here.page.get_by_role("button", name="Comment…").click()
        dialog = here.page.get_by_role("dialog")
        dialog.get_by_label("Comment").fill("what did the second reader see?")
        dialog.get_by_role("button", name="Comment", exact=True).click()
        dialog.get_by_role("link", name="Continue").click()
        here.page.get_by_text("what did the second reader see?").wait_for()
        assert "dpsynth " not in here.text and "DPSYNTH_HOME" not in here.text

        here.open(f"/releases/{release}")
        assert "dpsynth " not in here.text and "DPSYNTH_HOME" not in here.text
        here.page.get_by_role("button", name="Withdraw…").click()
        dialog.get_by_label("Reason").fill("a column too many")
        assert here.violations() == []
        dialog.get_by_role("button", name="Withdraw", exact=True).click()
        dialog.get_by_text("is withdrawn by Rita").wait_for()
        assert ledger.history()[-1].kind == "withdrawn"
        dialog.get_by_role("link", name="Continue").click()
        here.page.get_by_text("Reason: a column too many").wait_for()
        assert here.page.get_by_role("button", name="Withdraw…").count() == 0
        here.open("/")
        assert "Decide on people" not in here.text
        assert here.complaints == []


def test_a_session_that_has_ended_does_nothing_more(served, browser):
    ledger = Ledger(served.deployment.settings.ledger_url)
    with visitor(served, browser) as here:
        here.open(f"/candidates/{REFUSED.dataset}/{REFUSED.period}")
        here.page.get_by_role("button", name="Refuse…").click()
        dialog = here.page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("too late")
        before = len(ledger.history())
        served.expire_sessions()
        dialog.get_by_role("button", name="Refuse", exact=True).click()
        here.page.wait_for_url("**/sign-in**")
        assert len(ledger.history()) == before
        here.page.goto(f"{served.url}/ledger")
        assert "/sign-in" in here.page.url


@pytest.mark.parametrize("header", USUAL_HEADERS)
def test_a_forged_header_of_identity_is_refused(served, browser, header):
    with visitor(served, browser, None) as here:
        here.page.set_extra_http_headers({header: "reviewer"})
        answer = here.page.goto(f"{served.url}/")
        assert answer is not None and answer.status == 401
        assert "Overview" not in here.page.locator("h1").inner_text()
