"""Notices to receivers: events of candidates and releases, and failed runs with job, step and code only.

What belongs here: the intervals, which of Dagster's runs failed, and what of it is public. What does not: delivery
(`dpsynth_platform.notices.notifying`). Failed runs are read without the ledger: it may be the reason of a failure.

Only operators may read the message of a failure. Runs refused by the budget have a notice of their own, where the
verdict depends on public facts; so failed runs with that code are left out.
"""

import datetime as dt
from collections.abc import Iterator

import dagster as dg

from dpsynth_platform.contracts.periods import cadence_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import STEPS, Place
from dpsynth_platform.notices.notifying import SENTENCES, DeliveryReport, Stream, StreamEvent, link_to
from dpsynth_platform.notices.receivers import Notice
from dpsynth_platform.worker.codes import KILLED, code_of, status_of
from sensors.safe import safe_sensor

EVENT = "run-failed"
_PAGE = 100


def notification_sensor(settings: Settings) -> dg.SensorDefinition:
    """Sends notices of candidates and releases. Each receiver's cursor is a file: a failed tick loses nothing."""

    @safe_sensor(
        settings, "notifications", "Sends notices of candidates and releases to the deployment's receivers.", seconds=30
    )
    def sensor() -> dg.SkipReason:
        from dpsynth_platform.notices.notifying import notify

        return _summary(notify(settings))

    return sensor


def failure_sensor(settings: Settings) -> dg.SensorDefinition:
    """Sends notices of failed runs, with cursors like `notification_sensor`."""

    @safe_sensor(
        settings, "run_failures", "Sends notices of failed runs, with step and code, to the receivers.", seconds=30
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from dpsynth_platform.notices.notifying import deliver

        return _summary(deliver(settings, failed_runs(context.instance, settings.console_url), name="runs"))

    return sensor


def _summary(report: DeliveryReport) -> dg.SkipReason:
    report.raise_if_stuck()
    waiting = sum(len(notices) for notices in report.waiting.values())
    return dg.SkipReason(f"{sum(report.sent.values())} notices sent, {waiting} wait")


def failed_runs(instance: dg.DagsterInstance, console: str = "") -> Stream:
    """The failed runs, in the order of Dagster's records. `console` is the console's address, for links."""

    def stream(after: int) -> Iterator[StreamEvent]:
        while True:
            wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=after)
            page = instance.fetch_run_status_changes(wanted, limit=_PAGE, ascending=True)
            for record in page.records:
                after = record.storage_id
                at = dt.datetime.fromtimestamp(record.timestamp, dt.UTC).isoformat()
                yield StreamEvent(after, at, _notice(instance, record.event_log_entry.run_id, at, console))
            if not page.has_more:
                return

    return stream


def _notice(instance: dg.DagsterInstance, run_id: str, at: str, console: str) -> Notice | None:
    """The notice of a failed run; None if the budget refused it, or Dagster no longer has the run."""
    run = instance.get_run_by_id(run_id)
    if run is None:
        return None
    asset, code = _first_failure(instance, run_id)
    if code == "budget":
        return None
    period = run.tags.get("dagster/partition", "")
    dataset, _, step = asset.partition("__")
    place = Place(dataset, period if cadence_of(period) else None) if step in STEPS else None
    sentence = SENTENCES[EVENT]["in-step" if place else "outside"]
    text = sentence.format(job=run.job_name, step=step, code=code, run=run_id)
    return Notice(
        id=f"run-{run_id}",
        event=EVENT,
        at=at,
        dataset=place.dataset if place else None,
        period=place.period if place else None,
        release=None,
        text=f"{place.label}: {text}" if place else text,
        link=link_to(console, place) if place else console or None,
    )


def _first_failure(instance: dg.DagsterInstance, run_id: str) -> tuple[str, str]:
    """Key and code of the step that failed first."""
    from dpsynth_platform.operations.running import recorded_failures

    for asset, _, code in recorded_failures(instance, run_id):
        return asset, code if code == KILLED else code_of(status_of(code))
    return "", KILLED
