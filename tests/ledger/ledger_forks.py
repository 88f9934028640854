"""Processes on one ledger, each a program of a test: forks of one that has imported the ledger and opened none."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent

FORKING = """
import json, os, signal, traceback
from ledger_cases import KEYS, family, people, request
from dpsynth_platform.foundation.errors import BudgetExceeded, SpendRepeated
from dpsynth_platform.ledger import Ledger, chain, reservations

def begun(program, arguments, said):
    child = os.fork()
    if child:
        return child
    try:
        for number, name in enumerate(said, start=1):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<process>", "exec"), {"__name__": "__main__", "sys": sys})
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)

for line in sys.stdin:
    children = [begun(*asked) for asked in json.loads(line)]
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


class Processes:
    """Processes that begin together."""

    def __init__(self, directory):
        self._directory = directory
        preamble = f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]\n"
        self._parent = subprocess.Popen(
            [sys.executable, "-c", preamble + FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, program, *each):
        """Runs `program` once for each list of arguments, all at once; (exit code, output, errors) of each."""
        said = [[str(self._directory / f"{number}.{kind}") for kind in ("out", "err")] for number in range(len(each))]
        asked = [
            (textwrap.dedent(program), [*map(str, arguments)], files)
            for arguments, files in zip(each, said, strict=True)
        ]
        print(json.dumps(asked), file=self._parent.stdin, flush=True)
        codes = json.loads(self._parent.stdout.readline())
        return [(code, *(Path(file).read_text() for file in files)) for code, files in zip(codes, said, strict=True)]

    def end(self):
        self._parent.communicate(timeout=60)


def outputs(ended):
    for code, _, error in ended:
        assert code == 0, error
    return [output.split() for _, output, _ in ended]
