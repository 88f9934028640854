"""Families, requests and people for the ledger's tests."""

import hashlib
import math

import numpy as np

from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.renyi import zcdp_curve

DELTA = 1e-6
KEYS = ("key-1", "key-2")


def family(name, *, mode, epsilon=4.0, delta=1e-5, **changes):
    values = {"unit": "user", "adjacency": "add-or-remove", "namespace": "person"} | changes
    return FamilyBudget(family=name, mode=mode, cap={"epsilon": epsilon, "delta": delta}, **values)


def request(
    rho=0.03,
    *,
    dataset="census",
    period=None,
    plan="plan",
    runner="runner",
    delta=DELTA,
    adjacency="add-or-remove",
):
    """A Gaussian mechanism of zCDP cost rho; its plan digest follows from its name."""
    event = DiscreteGaussianCountsEvent(1 / math.sqrt(2 * rho), adjacency, 1)
    return CostRequest.of(
        event,
        dataset=dataset,
        period=period,
        guarantee=Guarantee(max(1.0, zcdp_curve(rho).epsilon(delta)), delta, "user", adjacency, 1),
        plan_digest=hashlib.sha256(f"{plan}{rho}".encode()).hexdigest(),
        runner=runner,
    )


def people(*numbers):
    """The set of fingerprints of some numbered owners."""
    raw = b"".join(hashlib.sha256(str(number).encode()).digest()[:16] for number in numbers)
    return np.unique(np.frombuffer(raw, dtype="S16"))
