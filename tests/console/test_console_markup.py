"""Words of the console's pages as HTML."""

from types import SimpleNamespace

import pytest

from dpsynth_platform.console.pages.markup import _environment, drawing, plain, query, tone
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.sign_in import sign_in_page
from dpsynth_platform.foundation.svg import bar_chart


def test_the_sign_in_page_escapes_what_it_is_given_and_asks_for_nothing_elsewhere() -> None:
    page = sign_in_page(
        csrf="token-1", onward='/releases?text="><script>', error="<b>no</b>", provider="Example & Sons"
    )
    assert "<script" not in page and "<b>" not in page
    assert 'name="csrf" value="token-1"' in page
    assert "Sign in with Example &amp; Sons" in page
    assert "http" not in page.replace("xmlns%3D%22http%3A//www.w3.org/2000/svg%22", "")


def test_without_local_users_the_sign_in_page_has_no_form() -> None:
    page = sign_in_page(csrf="t", onward="/", passwords=False, provider="Example")
    assert "<form" not in page and "/sign-in/oidc?next=%2F" in page


def test_a_query_keeps_what_is_not_empty() -> None:
    assert query({"text": "a&b", "state": None, "page": 2}, page=3) == "?text=a%26b&page=3"
    assert query({"text": ""}) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the evidence holds; 0 of 1 approval", "the evidence holds; 0 of 1 approval"),
        (
            "people: nothing was run yet; start with: dpsynth run people",
            "people: nothing was run yet. An engineer can do this.",
        ),
        ("More are needed (`dpsynth contract check` says how many). So.", "More are needed. So."),
        ("dpsynth ledger verify", "An engineer can do this."),
        ("${DPSYNTH_HOME}/public/census", "census"),
        ("/srv/data/a.yaml: is damaged", "a.yaml: is damaged"),
        ("s3://open-data/visits (delta)", "s3://open-data/visits (delta)"),
        ("1/2 of and/or", "1/2 of and/or"),
    ],
)
def test_readers_without_a_shell_see_no_command_and_no_path(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    "state, shade", [("published", "good"), ("Waiting", "care"), ("refused", "bad"), ("draft", "")]
)
def test_states_have_their_tone(state: str, shade: str) -> None:
    assert tone(state) == shade


@pytest.mark.parametrize("fault", ["<script>alert(1)</script>", '<a href="https://example.org"><text>x</text></a>'])
def test_only_plain_drawings_stand_in_a_page(fault: str) -> None:
    plain = bar_chart(["a"], {"n": [1.0]}, title="Bars", description="One bar.", x_label="x", y_label="y")
    assert drawing(plain, "Bars") == plain
    broken = plain.replace("</svg>", f"{fault}</svg>")
    shown = drawing(broken, "Bars")
    assert "<svg" not in shown and "example.org" not in shown and "alert" not in shown


@pytest.mark.parametrize("keys", [(), ("pairs",), ("accuracy",), ("pairs", "accuracy")], ids=" ".join)
def test_the_verdict_is_said_whatever_a_quality_report_lacks(keys: tuple[str, ...]) -> None:
    measures = [SimpleNamespace(key=key, synthetic=0.25, real=None, baseline=0.2) for key in keys]
    guarantee = SimpleNamespace(unit="user", max_contributions=2, factor=2.72, delta=1e-6, epsilon=1.0, tier="strong")
    view = SimpleNamespace(
        guarantee=guarantee,
        quality=SimpleNamespace(measures=measures),
        audit=SimpleNamespace(verdict="pass", canaries=60, epsilon_lower_bound=0.0, claimed_epsilon=1.0),
        **dict.fromkeys(("rows", "period", "recipients", "purpose", "budget")),
        dataset="people",
        units=3000,
    )
    page = '{% import "macros.html.j2" as m with context %}{% include "verdict.html.j2" %}'
    text = _environment().from_string(page).render(view=view, may=lambda _: True, Action=Action)
    assert ("pairs of columns are off by 0.250" in text) == ("pairs" in keys)
    assert ("is right in 25.0% of cases" in text) == ("accuracy" in keys)
    assert ("always guessing the commonest class is right in 20.0%" in text) == ("accuracy" in keys)
    assert ("how its rows compare with real ones is below" in text) == (not keys)
