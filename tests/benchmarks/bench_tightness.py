"""How much of the true epsilon an audit proves, and with how many trials. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_tightness.py --trials 1000 10000 --repeats 5

What belongs here: lower bounds of four kinds on the product's own training, once as a Gaussian mechanism (all canaries
in one batch, one step) and once as DP-SGD, whose true epsilon is the platform's accountant's, at 1, 4 and 10. What does
not: mistakes (`bench_mistakes.py`).

A trial is one canary of a white-box training. Clopper-Pearson and Gaussian bounds take trials for independent, as runs
of their own would be, which costs a training for each; the two bounds of one run need one training for all. Thresholds
and numbers of guesses are fixed by another training as large. The bounds by Gaussian curves hold of mechanisms whose
whole curve is a Gaussian one's: of DP-SGD with few steps that is not quite so, and shares near or above 100% there are
no proof of more than is claimed.

What others report, where it is known for certain: Steinke, Nasr & Jagielski (NeurIPS 2023) prove 1.8 of 4, 45%,
white-box on a WideResNet and CIFAR-10 in one run. Nasr et al. ("Tight Auditing", USENIX Security 2023) and Mahloujifar,
Melis & Chaudhuri (ICML 2025) show curves for other models; no number for these settings is known here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from dpsynth_platform.audit import bounds, fdp
from dpsynth_platform.audit.gradient_canaries import Attacker, TrainingAudit
from dpsynth_platform.audit.laboratory import Trials, best_guess
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.training.plan import TrainingPlan

DELTA, CONFIDENCE = 1e-5, 0.95
EPSILONS = (1.0, 4.0, 10.0)
SHARES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Of canaries that are guessed in, and as many out."""
SCORE = "likelihood ratio"
STEPS, SAMPLED = 20, 10
"""Of DP-SGD: steps, and one in how many canaries is in a batch."""
Bound = Callable[..., float]


@dataclass(frozen=True)
class Method:
    """A kind of bound: what it proves of trials, with what was chosen on others."""

    name: str
    prove: Callable[[Trials, Trials], float]


def clopper_pearson(chosen_on: Trials, trials: Trials) -> float:
    guess = best_guess(chosen_on, delta=DELTA, confidence=CONFIDENCE)
    return guess.prove(trials, delta=DELTA, confidence=CONFIDENCE).epsilon


def gaussian(chosen_on: Trials, trials: Trials) -> float:
    return fdp.gaussian_runs_bound(trials.scores[SCORE], trials.included, delta=DELTA, confidence=CONFIDENCE)


def one_run(bound: Bound) -> Callable[[Trials, Trials], float]:
    def at(trials: Trials, share: float) -> float:
        canaries = trials.included.size
        each = int(share * canaries)
        right = bounds.count_right(trials.scores[SCORE], trials.included, guess_in=each, guess_out=each)
        return bound(canaries=canaries, guesses=2 * each, right=right, delta=DELTA, confidence=CONFIDENCE)

    def prove(chosen_on: Trials, trials: Trials) -> float:
        return at(trials, max(SHARES, key=lambda share: at(chosen_on, share)))

    return prove


METHODS = (
    Method("Clopper-Pearson", clopper_pearson),
    Method("Gaussian", gaussian),
    Method("one run", one_run(bounds.epsilon_lower_bound)),
    Method("one run, by curves", one_run(fdp.gaussian_epsilon_bound)),
)


def plan_of(mechanism: str, target: float, canaries: int) -> TrainingPlan:
    """The least noise for an epsilon at DELTA."""
    steps, part = (1, 1) if mechanism == "Gaussian" else (STEPS, SAMPLED)
    return TrainingPlan.calibrated(
        Guarantee(target, DELTA, "example", "add-or-remove", 1),
        units=canaries,
        batch_size=canaries // part,
        steps=steps,
        optimizer="sgd",
        learning_rate=1e-6,
    )


def main() -> None:
    """Prints, for every setting, the median share of the true epsilon that each method proves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        f"{'mechanism':<10}{'epsilon':>8}{'trials':>8}" + "".join(f"{m.name:>20}" for m in METHODS) + f"{'seconds':>9}"
    )
    for mechanism in ("Gaussian", "DP-SGD"):
        for target in EPSILONS:
            for canaries in options.trials:
                plan = plan_of(mechanism, target, canaries)
                true, start = epsilon(plan.event, DELTA).epsilon, time.process_time()
                attacker, training = Attacker.believing(plan), TrainingAudit(plan, canaries)
                shares: dict[str, list[float]] = {method.name: [] for method in METHODS}
                for _ in range(options.repeats):
                    chosen_on, trials = (attacker.trials(training.watch()) for _ in range(2))
                    for method in METHODS:
                        shares[method.name].append(method.prove(chosen_on, trials) / true)
                row = "".join(f"{statistics.median(found):>20.0%}" for found in shares.values())
                seconds = (time.process_time() - start) / options.repeats
                print(f"{mechanism:<10}{true:>8.2f}{canaries:>8}{row}{seconds:>9.1f}", flush=True)


if __name__ == "__main__":
    main()
