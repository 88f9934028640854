"""One method on one table in a process of its own, so that its time and memory are its alone.

What belongs here: the process that `comparison` starts. What does not: the run (`run`), and what is measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.one_table.run import synthesize
from dpsynth_platform.one_table.task import Options

RESULT = "result.json"


def main(job: Path) -> None:
    """Makes the table of a job's `table`, `out` and `options`, and writes beside the job what came of it."""
    asked = json.loads(job.read_text(encoding="utf-8"))
    try:
        made = synthesize(asked["table"], asked["out"], Options(**asked["options"]))
        found = {"synthetic": str(made.synthetic), "method": made.method}
    except DpsynthError as error:
        found = {"refused": str(error)}
    write_durably(job.with_name(RESULT), json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
