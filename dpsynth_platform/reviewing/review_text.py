"""A candidate in text, as reviewers read it on a terminal."""

from __future__ import annotations

from dpsynth_platform.foundation.output import Output
from dpsynth_platform.reviewing.decisions import AUDIT_HEADER, AUDIT_LEGEND, QUALITY_HEADER, Review


def review_text(output: Output, review: Review) -> None:
    """Prints a candidate, for the demonstration and `dpsynth release show`."""
    output.heading("Purpose and recipients")
    output.print(review.purpose or "the contract declares no purpose")
    output.print(f"for {'; '.join(review.recipients)}" if review.recipients else "the contract declares no recipients")
    output.heading("Guarantee")
    for sentence in review.guarantee:
        output.print(sentence)
    if review.against:
        output.table(("against", "epsilon", "delta", "rests on"), review.against)
    output.heading("Audit")
    output.print(review.audit_summary)
    output.table(AUDIT_HEADER, review.audit_rows)
    output.print(AUDIT_LEGEND)
    output.heading("Quality (restricted: compares with real data)")
    if review.against:
        output.print("not measured: the real rows stay with the participants")
    else:
        output.table(QUALITY_HEADER, review.quality_rows)
    if review.quality_rows:
        output.print(review.quality_legend)
    if review.paid:
        output.heading("Quality that the public dossier shows (bought)")
        for sentence in review.paid:
            output.print(sentence)
    if review.pictures:
        output.heading("Pictures of the source (restricted)")
        for sentence in review.pictures:
            output.print(sentence)
    if review.mostly_missing:
        output.heading("Columns with hardly any usable value")
        for sentence in review.mostly_missing:
            output.print(sentence)
    output.heading("Decision")
    output.print(f"candidate {review.candidate}; run by {', '.join(review.runners)}")
    for approval in review.approvals:
        output.print(approval)
    if review.release is not None:
        output.print(f"published as release {review.release}; how it is now: dpsynth release verify {review.release}")
    output.print(review.standing)
    output.print(f"all of it, with exact counts, spend and clearance (restricted): {review.dossier}")
