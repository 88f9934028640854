"""Pages of releases and candidates: the list, one release's dossier, one candidate's evidence and the decision on it.

What belongs here: their order on the page, and the dialogs of a decision. What does not: what they say (`views`).
"""

from __future__ import annotations

from typing import cast, get_args

from markupsafe import Markup
from nicegui import ui

from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.pages.dialog import Answer, Entered, Field, Question, confirm_button
from dpsynth_platform.console.pages.frame import PageContext, add_page, month_ago
from dpsynth_platform.console.pages.markup import plain
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import candidates
from dpsynth_platform.console.views import releases as views
from dpsynth_platform.console.views.listing import ReleaseState
from dpsynth_platform.foundation.addresses import candidate_page, dataset_page, release_page
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.foundation.people import same_person
from dpsynth_platform.foundation.settings import Settings

_UNPUBLISHED = "It stays in this deployment and is never published; it must hold no data."
_PUBLISHED_REASON = "It is published with the release for ever, so it must hold no data."
_LEFT = "a place that may still hold rows, or an event that was not delivered."
_AFTER_WITHDRAWAL = "A release of this content was withdrawn before; I approve it all the same."


def register(settings: Settings) -> None:
    """Registers the pages."""
    add_page(settings, "Releases", "/releases", _releases, _list)
    add_page(
        settings,
        "Releases",
        "/releases/{release}",
        lambda context: context.read(views.release, context.path["release"]),
        _release,
    )
    for path in ("/candidates/{dataset}", "/candidates/{dataset}/{period}"):
        add_page(
            settings,
            "Releases",
            path,
            lambda context: context.read(candidates.candidate, context.path["dataset"], context.path.get("period")),
            _candidate,
        )


def _releases(context: PageContext) -> views.ReleasesView:
    state = context.query.get("state", "")
    return context.read(
        views.releases,
        text=context.query.get("text", ""),
        state=cast("ReleaseState", state) if state in get_args(ReleaseState) else None,
        since=context.query.get("since") or None,
        page=context.page_number,
    )


def _list(context: PageContext, view: views.ReleasesView) -> None:
    context.heading("Releases")
    context.html("releases.html.j2", view=view, states=get_args(ReleaseState), month_ago=month_ago())


def _release(context: PageContext, view: views.ReleaseView) -> None:
    context.heading(f"Release {view.row.id}", (("Releases", "/releases"),))
    graph = Markup(view.dossier.graph) if view.dossier else None  # noqa: S704 - made and escaped in `release.drawing`
    context.html("release.html.j2", view=view, graph=graph)
    if context.identity.may(Action.DECIDE) and view.row.state not in ("withdrawn", "unrecorded"):
        _withdraw(context, view)


def _withdraw(context: PageContext, view: views.ReleaseView) -> None:
    """The button that takes a release back, or finishes that."""
    release = view.row.id

    def withdraw(who: Identity, entered: Entered) -> Answer:
        done = views.withdraw(context.settings, who.actions, who.name, release, reason=entered.reason)
        words = f"Release {done.release} is withdrawn by {done.by}: it is in the ledger, and its rows are deleted."
        left = (f"{number_of(done.left, 'thing')} left for an engineer: {_LEFT}",) if done.left else ()
        return Answer((words,), release_page(release), left)

    with ui.element("section").props("aria-labelledby=withdraw"):
        context.html("withdraw.html.j2")
        with ui.element("div").classes("actions"):
            confirm_button(
                context,
                Action.DECIDE,
                Question(
                    verb="Withdraw",
                    title=f"Withdraw {release}?",
                    words=(f"You withdraw it for ever, as {context.identity.name}. Its rows are deleted.",),
                    reason_needed=True,
                    harm=True,
                    hint=_PUBLISHED_REASON,
                ),
                withdraw,
            )


def _candidate(context: PageContext, view: candidates.CandidateView) -> None:
    context.heading(f"Candidate {view.place}", (("Releases", "/releases"), (view.dataset, dataset_page(view.dataset))))
    context.html("candidate.html.j2", view=view)
    if view.seen is None:
        return
    if context.identity.may(Action.COMMENT):
        _discuss(context, view)
    if context.identity.may(Action.DECIDE):
        _decide(context, view, view.seen)
    else:
        context.html("note.html.j2", words="Approving and refusing is for reviewers.")


def _discuss(context: PageContext, view: candidates.CandidateView) -> None:
    """Comments, and who looks at it."""
    settings, dataset, period = context.settings, view.dataset, view.period
    address = candidate_page(dataset, period)  # a part of it (#...) would not be loaded anew

    def comment(who: Identity, entered: Entered) -> Answer:
        candidates.comment(settings, who.actions, who.name, dataset, period, text=entered.reason)
        return Answer(("Your comment is kept.",), address)

    def assign(who: Identity, entered: Entered) -> Answer:
        done = candidates.assign(settings, who.actions, who.name, dataset, period, to=entered.fields["to"])
        return Answer((f"{done.text} looks at it.",), address)

    with ui.element("section").props("aria-labelledby=discussion"):
        context.html("discussion.html.j2", view=view)
        with ui.element("div").classes("actions"):
            confirm_button(
                context,
                Action.COMMENT,
                Question(
                    verb="Comment",
                    title=f"Comment on {view.place}",
                    words=(f"You comment as {context.identity.name}.",),
                    reason_needed=True,
                    label="Comment",
                    hint=_UNPUBLISHED,
                ),
                comment,
            )
            if context.identity.may(Action.DECIDE):
                confirm_button(
                    context,
                    Action.DECIDE,
                    Question(
                        verb="Say who looks at it",
                        title=f"Who looks at {view.place}?",
                        words=("It changes nobody's rights: every reviewer can still decide.",),
                        reason_needed=False,
                        fields=(Field("to", "Name", value=context.identity.name),),
                        label=None,
                    ),
                    assign,
                )


def _decide(context: PageContext, view: candidates.CandidateView, seen: str) -> None:
    """The two buttons. The library decides whether a person's decision is accepted, and what follows."""
    settings, dataset, period = context.settings, view.dataset, view.period

    def approve(who: Identity, entered: Entered) -> Answer:
        reason, confirmed = entered.reason, entered.ticked
        done = candidates.approve(
            settings, who.actions, who.name, dataset, period, seen=seen, reason=reason, after_withdrawal=confirmed
        )
        return _answer(done, view)

    def refuse(who: Identity, entered: Entered) -> Answer:
        done = candidates.refuse(settings, who.actions, who.name, dataset, period, seen=seen, reason=entered.reason)
        return _answer(done, view)

    name = context.identity.name
    last = view.approvals + 1 >= view.approvals_needed
    follows = "It is the last one needed: the release is published at once." if last else "More are needed."
    with ui.element("section").props("aria-labelledby=decide"):
        own = any(same_person(name, runner) for runner in view.runners)
        context.html("decide.html.j2", view=view, own=own)
        with ui.element("div").classes("actions"):
            if view.release is None or view.after_withdrawal:
                confirm_button(
                    context,
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
                confirm_button(
                    context,
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
        words=(
            f"{done.decision.capitalize()} by {done.by}: it is in the ledger.",
            *published,
            *map(plain, done.next_steps),
        ),
        failures=tuple(f"{step}: {plain(message)}" for step, message in done.failures),
        address=release_page(done.release) if done.release else candidate_page(view.dataset, view.period),
    )
