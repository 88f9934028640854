"""The console's REST API: everything that the pages show and do, for programs.

What belongs here: addresses, parameters and answers. What does not: the content and who may see it (`views`), and
access control (`access`). Every error answer is problem JSON (RFC 9457).

Programs sign in as browsers do, or through the trusted proxy. Changes and slow computations are POST requests with the
header `X-CSRF-Token` (`csrf` of `GET /api/v1/session`) and an `Origin` of the console's own. They check session and
roles again, since either may have changed since the token was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyCookie, APIKeyHeader
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from dpsynth_platform.console.access import CSRF_HEADER, AccessServices
from dpsynth_platform.console.identity import Identity, acting, signed_in
from dpsynth_platform.console.problems import MEDIA_TYPE
from dpsynth_platform.console.roles import ROLES, Action, Role
from dpsynth_platform.console.views import candidates, datasets, families, ledger, lineage, overview, raises, releases
from dpsynth_platform.console.views.candidates import CandidateView, Decided
from dpsynth_platform.console.views.datasets import DatasetsView, DatasetView, PlanView
from dpsynth_platform.console.views.dossiers import VerificationView
from dpsynth_platform.console.views.families import FamiliesView, FamilyView
from dpsynth_platform.console.views.ledger import EntryView, LedgerVerificationView, LedgerView
from dpsynth_platform.console.views.lineage import (
    DEEPEST,
    ColumnsView,
    GraphView,
    NodeView,
    PathView,
    SearchView,
    TraceView,
)
from dpsynth_platform.console.views.listing import ReleaseState
from dpsynth_platform.console.views.overview import Overview
from dpsynth_platform.console.views.raises import Asked, Raised
from dpsynth_platform.console.views.releases import ReleasesView, ReleaseView, WithdrawnView
from dpsynth_platform.contracts.periods import PERIOD_PATTERN
from dpsynth_platform.foundation.people import MOST_CHARACTERS
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.reviewing.discussion import Remark

PREFIX = "/api/v1"
_LONGEST_NAME = 2000
_LAST_PAGE = 1_000_000
_LAST_EVENT = 2**31

_NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,62}$"
Dataset = Annotated[str, Path(pattern=_NAME, description="A dataset's name.")]
Family = Annotated[str, Path(pattern=_NAME, description="A family's name.")]
ReleaseId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,200}$", description="A release's id.")]
EntryId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,200}$", description="A ledger entry's id.")]
EventNumber = Annotated[int, Path(ge=0, le=_LAST_EVENT, description="Number of an event in the ledger's chain.")]
Period = Annotated[str | None, Query(pattern=PERIOD_PATTERN, description="Period, for datasets with a cadence.")]
Text = Annotated[str, Query(max_length=200, description="Part of the text to find.")]
Page = Annotated[int, Query(ge=1, le=_LAST_PAGE, description="From 1 on.")]
NodeName = Annotated[str, Query(max_length=_LONGEST_NAME, description="A node's key or name.")]
Depth = Annotated[int, Query(ge=0, le=DEEPEST, description="Steps.")]
Reason = Annotated[str, StringConstraints(max_length=MOST_CHARACTERS)]

_PROBLEMS = {
    401: "No session, or the request claims an identity that only the proxy may claim.",
    403: "Not allowed for this role, or the request does not come from the console's own pages.",
    404: "Nothing has this name.",
    408: "The request took too long to arrive.",
    409: "The present state does not allow it.",
    413: "The request is too large.",
    421: "The request is for another host.",
    422: "The request is not as described.",
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _OnCandidate(_Body):
    period: Annotated[str, StringConstraints(pattern=PERIOD_PATTERN)] | None = None


class _Decision(_OnCandidate):
    seen: Annotated[str, StringConstraints(max_length=200)] = Field(description="`seen` of GET of the candidate.")


class Approval(_Decision):
    """An approval of exactly the content that was seen. The reason is kept for ever and must hold no data."""

    reason: Reason = ""
    after_withdrawal: bool = Field(
        default=False, description="Explicit confirmation for content of which a release was withdrawn."
    )


class Refusal(_Decision):
    """A refusal of exactly the content that was seen. The reason is kept for ever and must hold no data."""

    reason: Reason


class Comment(_OnCandidate):
    """A comment on the present candidate. It stays in the deployment and must hold no data."""

    text: Reason


class Assignment(_OnCandidate):
    """Who is to look at the present candidate."""

    to: Reason = Field(description="A person's name.")


class Withdrawal(_Body):
    """The end of a release. The reason is published and must hold no data."""

    reason: Reason


class Cap(_Body):
    """A cap for life."""

    epsilon: float
    delta: float


class LargerCap(_Body):
    """A larger cap for life. Reasons are kept for ever and must hold no data."""

    seen: Cap = Field(description="The present one, from GET of the family.")
    epsilon: float = Field(gt=0, le=1e6, allow_inf_nan=False)
    delta: float = Field(gt=0, lt=1, allow_inf_nan=False)
    reason: Reason
    accept_weak_guarantee: Reason | None = Field(default=None, description="Why a weak guarantee is acceptable.")


class Seconding(_Body):
    """The reason for approving another person's request; kept for ever."""

    reason: Reason = ""


@dataclass(frozen=True)
class Session:
    """The signed-in person; `csrf` is the value of the header X-CSRF-Token for changes."""

    name: str
    roles: list[Role]
    how: str
    actions: list[Action]
    csrf: str


def router(settings: Settings, services: AccessServices) -> APIRouter:
    """The API of a deployment's console."""
    session = Depends(APIKeyCookie(name=services.cookie, scheme_name="session", auto_error=False))
    api = APIRouter(prefix=PREFIX, responses=_problems(), dependencies=[session])
    api.add_api_route("/session", _session, summary="Who is signed in, and what they may do", tags=["session"])
    for part in (_families, _datasets, _candidates, _releases, _lineage, _ledger):
        api.include_router(part(settings, services))

    @api.get("/overview", summary="What waits, the budgets, and the newest releases", tags=["overview"])
    def get_overview(who: _Reading) -> Overview:
        return overview.overview(settings, who.actions)

    return api


def _identity(request: Request) -> Identity:
    return signed_in(request).identity


def _acting(action: Action) -> Callable[..., Identity]:
    """A dependency that checks session and action anew."""

    def identity(
        request: Request, _csrf: Annotated[str | None, Depends(APIKeyHeader(name=CSRF_HEADER, auto_error=False))]
    ) -> Identity:
        return acting(request, action)

    return identity


_Reading = Annotated[Identity, Depends(_identity)]
_Deciding = Annotated[Identity, Depends(_acting(Action.DECIDE))]
_Commenting = Annotated[Identity, Depends(_acting(Action.COMMENT))]
_Raising = Annotated[Identity, Depends(_acting(Action.RAISE))]
_Verifying = Annotated[Identity, Depends(_acting(Action.VERIFY))]
_Planning = Annotated[Identity, Depends(_acting(Action.READ_SPEND))]


def _session(request: Request) -> Session:
    session = signed_in(request)
    who = session.identity
    return Session(
        name=who.name,
        roles=[role for role in ROLES if role in who.roles],
        how=who.how,
        actions=[action for action in Action if who.may(action)],
        csrf=session.csrf,
    )


def _families(settings: Settings, _: AccessServices) -> APIRouter:
    api = APIRouter(prefix="/families", tags=["families"])

    @api.get("", summary="Families' budgets by name, page by page")
    def get_families(who: _Reading, page: Page = 1) -> FamiliesView:
        return families.families(settings, who.actions, page)

    @api.get("/{family}", summary="One family's budget: over time, by owners, and what remains")
    def get_family(who: _Reading, family: Family) -> FamilyView:
        return families.family(settings, who.actions, family)

    @api.post("/{family}/raises", summary="Request a larger cap", status_code=201)
    def post_raise(who: _Raising, family: Family, asked: LargerCap) -> Asked:
        return raises.ask(
            settings,
            who.actions,
            who.name,
            family,
            seen=(asked.seen.epsilon, asked.seen.delta),
            epsilon=asked.epsilon,
            delta=asked.delta,
            reason=asked.reason,
            accept_weak=asked.accept_weak_guarantee,
        )

    @api.post("/{family}/raises/{event}/approve", summary="Raise a cap as another person requested")
    def post_raise_approval(who: _Raising, family: Family, event: EventNumber, body: Seconding) -> Raised:
        return raises.approve(settings, who.actions, who.name, family, event, reason=body.reason)

    return api


def _datasets(settings: Settings, services: AccessServices) -> APIRouter:
    api = APIRouter(prefix="/datasets", tags=["datasets"])

    @api.get("", summary="Datasets by name, page by page")
    def get_datasets(who: _Reading, text: Text = "", page: Page = 1) -> DatasetsView:
        return datasets.datasets(settings, who.actions, text, page)

    @api.get("/{dataset}", summary="One dataset: its contract in words, runs and releases")
    def get_dataset(who: _Reading, dataset: Dataset) -> DatasetView:
        return datasets.dataset(settings, who.actions, dataset)

    @api.post("/{dataset}/plan", summary="What a run would do and cost: computed now, and nothing is changed")
    async def post_plan(who: _Planning, dataset: Dataset, period: Period = None) -> PlanView:
        return await services.compute(datasets.plan, settings, who.actions, dataset, period)

    return api


def _candidates(settings: Settings, _: AccessServices) -> APIRouter:
    api = APIRouter(prefix="/candidates", tags=["candidates"])

    @api.get("/{dataset}", summary="The present candidate of a dataset, with its evidence")
    def get_candidate(who: _Reading, dataset: Dataset, period: Period = None) -> CandidateView:
        return candidates.candidate(settings, who.actions, dataset, period)

    @api.get("/{dataset}/dossier", summary="Its reviewers' dossier, which compares with real data")
    def get_dossier(who: _Reading, dataset: Dataset, period: Period = None) -> dict[str, Any]:
        return candidates.reviewers_dossier(settings, who.actions, dataset, period)

    @api.post("/{dataset}/approve", summary="Approve it; publishes if that was the last approval needed")
    def post_approval(who: _Deciding, dataset: Dataset, body: Approval) -> Decided:
        return candidates.approve(settings, who.actions, who.name, dataset, **body.model_dump())

    @api.post("/{dataset}/comments", summary="Comment on it; never published", status_code=201)
    def post_comment(who: _Commenting, dataset: Dataset, body: Comment) -> Remark:
        return candidates.comment(settings, who.actions, who.name, dataset, **body.model_dump())

    @api.post("/{dataset}/assign", summary="Say who looks at it")
    def post_assignment(who: _Deciding, dataset: Dataset, body: Assignment) -> Remark:
        return candidates.assign(settings, who.actions, who.name, dataset, **body.model_dump())

    @api.post("/{dataset}/refuse", summary="Refuse it, with a reason")
    def post_refusal(who: _Deciding, dataset: Dataset, body: Refusal) -> Decided:
        return candidates.refuse(settings, who.actions, who.name, dataset, **body.model_dump())

    return api


def _releases(settings: Settings, services: AccessServices) -> APIRouter:
    api = APIRouter(prefix="/releases", tags=["releases"])

    @api.get("", summary="Releases, the newest first, page by page")
    def get_releases(
        who: _Reading,
        text: Text = "",
        state: ReleaseState | None = None,
        since: Annotated[
            str | None, Query(max_length=10, description="Published on this day (YYYY-MM-DD) or later.")
        ] = None,
        page: Page = 1,
    ) -> ReleasesView:
        return releases.releases(settings, who.actions, text, state, since, page)

    @api.get("/{release}", summary="One release with its dossier, and whether it is what was signed")
    def get_release(who: _Reading, release: ReleaseId) -> ReleaseView:
        return releases.release(settings, who.actions, release)

    @api.post("/{release}/withdraw", summary="Withdraw it for ever, or finish that")
    def post_withdrawal(who: _Deciding, release: ReleaseId, body: Withdrawal) -> WithdrawnView:
        return releases.withdraw(settings, who.actions, who.name, release, reason=body.reason)

    @api.post("/{release}/verify", summary="Verify it anew, every byte")
    async def post_verification(who: _Verifying, release: ReleaseId) -> VerificationView:
        return await services.compute(releases.verify, settings, who.actions, release)

    return api


def _lineage(settings: Settings, _: AccessServices) -> APIRouter:
    api = APIRouter(prefix="/lineage", tags=["lineage"])

    @api.get("", summary="The neighbourhood of a node of the graph; without one, of the newest release")
    def get_graph(
        who: _Reading,
        node: NodeName = "",
        up: Depth = 2,
        down: Depth = 2,
        collapse: bool = True,
        periods: Annotated[bool, Query(description="Many months of a dataset as one place.")] = True,
    ) -> GraphView | None:
        return lineage.graph(settings, who.actions, node, up, down, collapse, periods)

    @api.get("/path", summary="A shortest path between two nodes")
    def get_path(who: _Reading, one: NodeName, other: NodeName) -> PathView:
        return lineage.path(settings, who.actions, one, other)

    @api.get("/columns", summary="The columns of a node: types, tags, and where each comes from")
    def get_columns(who: _Reading, node: NodeName) -> ColumnsView:
        return lineage.columns(settings, who.actions, node)

    @api.get("/trace", summary="Where a column comes from, and everything that is drawn from it")
    def get_trace(
        who: _Reading,
        node: NodeName,
        column: Annotated[str, Query(max_length=_LONGEST_NAME, description="Empty: the whole dataset.")] = "",
        collapse: Annotated[bool, Query(description="Months of a dataset as one part.")] = True,
    ) -> TraceView:
        return lineage.trace(settings, who.actions, node, column, collapse)

    @api.get("/search", summary="Nodes, columns and jobs by a part of a name or tag")
    def get_search(who: _Reading, text: Text) -> SearchView:
        return lineage.search(settings, who.actions, text)

    @api.get("/node", summary="One node with all records of it")
    def get_node(who: _Reading, name: NodeName) -> NodeView:
        return lineage.node(settings, who.actions, name)

    return api


def _ledger(settings: Settings, services: AccessServices) -> APIRouter:
    api = APIRouter(prefix="/ledger", tags=["ledger"])

    @api.get("", summary="The chain's events, the newest first, page by page")
    def get_events(
        who: _Reading,
        text: Text = "",
        kind: Annotated[str | None, Query(max_length=50, description="Only events of this kind.")] = None,
        page: Page = 1,
    ) -> LedgerView:
        return ledger.entries(settings, who.actions, text, kind, page)

    @api.get("/entries/{entry}", summary="One ledger entry")
    def get_entry(who: _Reading, entry: EntryId) -> EntryView:
        return ledger.entry(settings, who.actions, entry)

    @api.post("/verify", summary="Recompute the whole chain, and compare it with the published dossiers")
    async def post_verification(who: _Verifying) -> LedgerVerificationView:
        return await services.compute(ledger.verify, settings, who.actions)

    @api.get("/export", summary="The signed ledger for an auditor, without owners")
    def get_export(who: _Reading) -> JSONResponse:
        document = ledger.export(settings, who.actions)
        return JSONResponse(document, headers={"Content-Disposition": 'attachment; filename="ledger.json"'})

    return api


def _problems() -> dict[int | str, dict[str, Any]]:
    members = {"type": "string", "title": "string", "status": "integer", "detail": "string"}
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in members.items()},
        "required": list(members),
        "additionalProperties": False,
    }
    return {
        status: {"description": words, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status, words in _PROBLEMS.items()
    }
