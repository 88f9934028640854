"""Pages of releases and candidates: the list, one release's dossier, one candidate's evidence and the decision on it.

What belongs here: their order on the page, and what a decision's dialog asks. What does not: what they say (`views`).
"""

from __future__ import annotations

from typing import cast, get_args

from fastapi import Request
from markupsafe import Markup

from dpsynth_platform.console.addresses import candidate_page, dataset_page, release_page
from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.pages.asking import Answer, Question, asking
from dpsynth_platform.console.pages.frame import Here, month_ago, page, shown
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import releases as views
from dpsynth_platform.settings import Settings


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
        state=cast("views.ReleaseState", state) if state in get_args(views.ReleaseState) else None,
        since=here.asked.get("since") or None,
        page=here.number("page", 1, 1, 10**6),
    )


def _list(here: Here, view: views.ReleasesView) -> None:
    here.heading("Releases")
    here.html("releases.html.j2", view=view, states=get_args(views.ReleaseState), month_ago=month_ago())


def _release(here: Here, view: views.ReleaseView) -> None:
    here.heading(f"Release {view.row.id}", (("Releases", "/releases"),))
    graph = Markup(view.dossier.graph) if view.dossier else None  # noqa: S704 - made and escaped in `release.drawing`
    here.html("release.html.j2", view=view, graph=graph)


async def _candidate_page(settings: Settings, request: Request, dataset: str, period: str | None) -> None:
    await shown(
        settings,
        request,
        "Releases",
        lambda here: views.candidate(here.settings, here.identity.actions, dataset, period),
        _candidate,
    )


def _candidate(here: Here, view: views.CandidateView) -> None:
    here.heading(f"Candidate {view.place}", (("Releases", "/releases"), (view.dataset, dataset_page(view.dataset))))
    here.html("candidate.html.j2", view=view)
    if view.candidate is None:
        return
    if here.identity.may(Action.DECIDE):
        _decide(here, view, view.candidate)
    else:
        here.html("note.html.j2", words="Approving and refusing is for reviewers.")
    here.html("candidate_evidence.html.j2", view=view)


def _decide(here: Here, view: views.CandidateView, candidate: str) -> None:
    """The two buttons. Whether somebody may say it, and what it means, the library decides when they do."""

    def approve(who: Identity, reason: str, after_withdrawal: bool) -> Answer:
        done = views.approve(
            here.settings,
            who.actions,
            who.name,
            view.dataset,
            view.period,
            candidate=candidate,
            reason=reason,
            after_withdrawal=after_withdrawal,
        )
        return _answer(done, view)

    def refuse(who: Identity, reason: str, _: bool) -> Answer:
        done = views.refuse(
            here.settings, who.actions, who.name, view.dataset, view.period, candidate=candidate, reason=reason
        )
        return _answer(done, view)

    name = here.identity.name
    if view.release is None or view.after_withdrawal:
        last = view.approvals + 1 >= view.approvals_needed
        follows = (
            "It is the last one needed, so the release is published at once." if last else "Others are needed too."
        )
        asking(
            here,
            Action.DECIDE,
            Question(
                verb="Approve",
                title=f"Approve {view.place}?",
                words=(f"You approve exactly this content, as {name}. {follows}",),
                reason_needed=False,
                tick="A release of this content was withdrawn before; I approve it all the same."
                if view.after_withdrawal
                else None,
            ),
            approve,
        )
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


def _answer(done: views.Decided, view: views.CandidateView) -> Answer:
    published = (f"Published as release {done.release}.",) if done.release else ()
    return Answer(
        words=(f"{done.decision.capitalize()} by {done.by}: it is in the ledger.", *published, *done.next_steps),
        failures=tuple(f"{step}: {message}" for step, message in done.failures),
        address=release_page(done.release) if done.release else candidate_page(view.dataset, view.period),
    )
