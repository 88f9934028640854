"""Pages of releases and candidates: the list, one release's dossier, one candidate's evidence and the decision on it.

What belongs here: their order on the page, and what a decision's dialog asks. What does not: what they say (`views`).
"""

from __future__ import annotations

from typing import cast, get_args

from fastapi import Request
from markupsafe import Markup
from nicegui import ui

from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.pages.asking import Answer, Question, Said, asking
from dpsynth_platform.console.pages.frame import Here, month_ago, page, shown
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import candidates
from dpsynth_platform.console.views import releases as views
from dpsynth_platform.console.views.listing import ReleaseState
from dpsynth_platform.foundation.addresses import candidate_page, dataset_page, release_page
from dpsynth_platform.foundation.settings import Settings

_AFTER_WITHDRAWAL = "A release of this content was withdrawn before; I approve it all the same."


def register(settings: Settings) -> None:
    """Puts the pages at their addresses."""

    @page("/releases")
    async def releases(request: Request) -> None:
        await shown(settings, request, "Releases", _listed, _list)

    @page("/releases/{release}")
    async def release(request: Request, release: str) -> None:
        await shown(
            settings,
            request,
            "Releases",
            lambda here: views.release(here.settings, here.identity.actions, release),
            _release,
        )

    @page("/candidates/{dataset}")
    async def candidate(request: Request, dataset: str) -> None:
        await _candidate_page(settings, request, dataset, None)

    @page("/candidates/{dataset}/{period}")
    async def candidate_of_period(request: Request, dataset: str, period: str) -> None:
        await _candidate_page(settings, request, dataset, period)


def _listed(here: Here) -> views.ReleasesView:
    state = here.asked.get("state", "")
    return views.releases(
        here.settings,
        here.identity.actions,
        text=here.asked.get("text", ""),
        state=cast("ReleaseState", state) if state in get_args(ReleaseState) else None,
        since=here.asked.get("since") or None,
        page=here.page_number,
    )


def _list(here: Here, view: views.ReleasesView) -> None:
    here.heading("Releases")
    here.html("releases.html.j2", view=view, states=get_args(ReleaseState), month_ago=month_ago())


def _release(here: Here, view: views.ReleaseView) -> None:
    here.heading(f"Release {view.row.id}", (("Releases", "/releases"),))
    graph = Markup(view.dossier.graph) if view.dossier else None  # noqa: S704 - made and escaped in `release.drawing`
    here.html("release.html.j2", view=view, graph=graph)


async def _candidate_page(settings: Settings, request: Request, dataset: str, period: str | None) -> None:
    await shown(
        settings,
        request,
        "Releases",
        lambda here: candidates.candidate(here.settings, here.identity.actions, dataset, period),
        _candidate,
    )


def _candidate(here: Here, view: candidates.CandidateView) -> None:
    here.heading(f"Candidate {view.place}", (("Releases", "/releases"), (view.dataset, dataset_page(view.dataset))))
    here.html("candidate.html.j2", view=view)
    if view.seen is None:
        return
    if here.identity.may(Action.DECIDE):
        _decide(here, view, view.seen)
    else:
        here.html("note.html.j2", words="Approving and refusing is for reviewers.")
    here.html("candidate_evidence.html.j2", view=view)


def _decide(here: Here, view: candidates.CandidateView, seen: str) -> None:
    """The two buttons. Whether somebody may say it, and what it means, the library decides when they do."""

    def approve(who: Identity, said: Said) -> Answer:
        done = candidates.approve(
            here.settings,
            who.actions,
            who.name,
            view.dataset,
            view.period,
            seen=seen,
            reason=said.reason,
            after_withdrawal=said.ticked,
        )
        return _answer(done, view)

    def refuse(who: Identity, said: Said) -> Answer:
        done = candidates.refuse(
            here.settings, who.actions, who.name, view.dataset, view.period, seen=seen, reason=said.reason
        )
        return _answer(done, view)

    name = here.identity.name
    last = view.approvals + 1 >= view.approvals_needed
    follows = "It is the last one needed: the release is published at once." if last else "Others are needed, too."
    with ui.element("section").props("aria-labelledby=decide"):
        here.html("decide.html.j2", view=view)
        with ui.element("div").classes("actions"):
            if view.release is None or view.after_withdrawal:
                asking(
                    here,
                    Action.DECIDE,
                    Question(
                        verb="Approve",
                        title=f"Approve {view.place}?",
                        words=(f"You approve exactly this content, as {name}. {follows}",),
                        reason_needed=False,
                        tick=_AFTER_WITHDRAWAL if view.after_withdrawal else None,
                    ),
                    approve,
                )
            if view.state != "published":
                asking(
                    here,
                    Action.DECIDE,
                    Question(
                        verb="Refuse",
                        title=f"Refuse {view.place}?",
                        words=(f"You refuse this content, as {name}. A later approval takes it back.",),
                        reason_needed=True,
                        harm=True,
                    ),
                    refuse,
                )


def _answer(done: candidates.Decided, view: candidates.CandidateView) -> Answer:
    published = (f"Published as release {done.release}.",) if done.release else ()
    return Answer(
        words=(f"{done.decision.capitalize()} by {done.by}: it is in the ledger.", *published, *done.next_steps),
        failures=tuple(f"{step}: {message}" for step, message in done.failures),
        address=release_page(done.release) if done.release else candidate_page(view.dataset, view.period),
    )
