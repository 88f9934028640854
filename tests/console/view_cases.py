"""All read models of the console, each as a function of what somebody may do.

What belongs here: calling every view on the filled deployment. What does not: assertions.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection
from typing import Any

from filled_cases import PEOPLE, PRODUCT, SECOND, WAITING

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import candidates, datasets, families, ledger, lineage, overview, releases
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.reviewing.chronicle import chronicle

Show = Callable[[Collection[Action]], Any]


def release_of(settings: Settings, dataset: str) -> str:
    """Id of a dataset's last release."""
    return chronicle(settings).published_of(dataset)[-1].release


def entry_of(settings: Settings, dataset: str) -> str:
    """Id of a dataset's last ledger entry."""
    return [item.entry_id for item in chronicle(settings).entries.values() if item.request.dataset == dataset][-1]


def readings(settings: Settings) -> dict[str, Show]:
    """Every view that those may read who may `READ`."""
    people, visits = release_of(settings, "people"), release_of(settings, "visits")
    return {
        "overview": lambda may: overview.overview(settings, may),
        "families": lambda may: families.families(settings, may),
        "family": lambda may: families.family(settings, may, "tests"),
        "family per owner": lambda may: families.family(settings, may, "clinic"),
        "datasets": lambda may: datasets.datasets(settings, may),
        "dataset": lambda may: datasets.dataset(settings, may, "people"),
        "dataset with periods": lambda may: datasets.dataset(settings, may, "visits"),
        "releases": lambda may: releases.releases(settings, may),
        "release": lambda may: releases.release(settings, may, people),
        "release per owner": lambda may: releases.release(settings, may, visits),
        "candidate": lambda may: candidates.candidate(settings, may, SECOND.dataset),
        "candidate of a period": lambda may: candidates.candidate(settings, may, WAITING.dataset, WAITING.period),
        "candidate that is published": lambda may: candidates.candidate(settings, may, PEOPLE.dataset),
        "no candidate": lambda may: candidates.candidate(settings, may, "visits", "2025-11"),
        "ledger": lambda may: ledger.entries(settings, may),
        "entry": lambda may: ledger.entry(settings, may, entry_of(settings, "people")),
        "graph": lambda may: lineage.graph(settings, may),
        "graph in full": lambda may: lineage.graph(settings, may, people, up=9, down=9, collapse=False),
        "path": lambda may: lineage.path(settings, may, "people", PRODUCT),
        "search": lambda may: lineage.search(settings, may, "people"),
        "search for tags": lambda may: lineage.search(settings, may, "identifier"),
        "graph of months": lambda may: lineage.graph(settings, may, "visits", up=9, down=9, periods=False),
        "columns": lambda may: lineage.columns(settings, may, "people/scrubbed"),
        "trace": lambda may: lineage.trace(settings, may, "people", "person"),
        "trace of a release": lambda may: lineage.trace(settings, may, visits, "score"),
        "trace of a dataset": lambda may: lineage.trace(settings, may, "visits"),
        "node": lambda may: lineage.node(settings, may, people),
        "step's node": lambda may: lineage.node(settings, may, "people/scrubbed"),
        "product's node": lambda may: lineage.node(settings, may, PRODUCT),
    }


def others(settings: Settings) -> dict[Action, dict[str, Show]]:
    """The views that ask for another action."""
    people = release_of(settings, "people")
    return {
        Action.READ_SPEND: {"plan": lambda may: datasets.plan(settings, may, "people")},
        Action.READ_QUALITY: {
            "reviewers' dossier": lambda may: candidates.reviewers_dossier(settings, may, SECOND.dataset)
        },
        Action.VERIFY: {
            "verify": lambda may: releases.verify(settings, may, people),
            "verify the ledger": lambda may: ledger.verify(settings, may),
        },
        Action.EXPORT: {"export": lambda may: ledger.export(settings, may)},
    }


def json_of(shown: Any) -> str:
    """What a view says, as the API would send it."""
    return json.dumps(shown, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else repr(value)
