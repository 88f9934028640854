"""A private Spark driver: a Java process with the lifetime of one engine.

What belongs here: starting the process so that it prints nothing and leaves no files, connecting to it, and ending it
with its child processes. What does not: its session and settings (`spark_engine`).

PySpark has one `SparkSession` for a Python process, which outlives its use: the memory of the next one could not be
chosen, nor the files of this one removed. So this module starts the driver itself and controls it through py4j,
PySpark's bridge to Java. The driver does all the work: only the value of a `scalar` passes through py4j, and no Python
runs on Spark's workers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpsynth_platform.compute.engine import Value
from dpsynth_platform.foundation.errors import EngineError
from dpsynth_platform.foundation.permissions import PRIVATE_UMASK, no_core_dumps
from dpsynth_platform.foundation.settings import inherited_environment

START_SECONDS = 120.0


def missing_for_spark() -> str | None:
    """What this machine lacks for Spark and how to provide it, or None."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed; install the extra `spark`"
    environment = inherited_environment()
    home = environment.get("JAVA_HOME")
    if shutil.which("java", path=str(Path(home) / "bin") if home else environment.get("PATH")) is None:
        return "there is no Java; install Java 17 or later, and set JAVA_HOME if it is not on PATH"
    return None


class SparkDriver:
    """The process and the connection to it.

    Args:
        directory: private, for all files of Spark; the working directory of its processes.
        launch: settings that are needed before Java starts.
        environment: variables in addition to the inherited ones.

    Attributes:
        jvm: py4j's view of the process's Java classes.

    Raises:
        EngineError: Spark did not start.
    """

    def __init__(self, directory: Path, launch: Mapping[str, str], environment: Mapping[str, str]) -> None:
        address = directory / f"address-{secrets.token_hex(8)}"
        # Workers on this machine write below SPARK_HOME, so it lies in the private directory.
        home = _spark_home(directory / "home")
        settings = [word for key, value in launch.items() for word in ("--conf", f"{key}={value}")]
        no_core_dumps()  # of this process, which passes rows, of Java and of its workers
        self._process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), *settings, "pyspark-shell"],
            # The driver notices the end of this process by this pipe, also after a kill.
            stdin=subprocess.PIPE,
            # Java's output may quote rows.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            env={
                **inherited_environment(),
                **environment,
                "SPARK_HOME": str(home),
                "SPARK_CONNECT_MODE": "0",
                "PYSPARK_PIN_THREAD": "true",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address),
            },
            umask=PRIVATE_UMASK,
            start_new_session=True,
        )
        self._gateway: Any = None
        try:
            self._gateway = self._connect(address)
        except BaseException:
            self.end()
            raise
        self.jvm = self._gateway.jvm

    def objects(self, values: Sequence[Value]) -> Any:
        """A Java array of values."""
        return self._array(self.jvm.java.lang.Object, values)

    def texts(self, values: Sequence[str]) -> Any:
        """A Java array of strings."""
        return self._array(self.jvm.java.lang.String, values)

    def end(self) -> None:
        """Kills the process and its workers on this machine."""
        if self._gateway is not None:
            with contextlib.suppress(Exception):
                self._gateway.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _array(self, kind: Any, values: Sequence[Value]) -> Any:
        array = self._gateway.new_array(kind, len(values))
        for position, value in enumerate(values):
            array[position] = value
        return array

    def _connect(self, address: Path) -> Any:
        from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

        deadline = time.monotonic() + START_SECONDS
        while not address.is_file():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise EngineError("Spark did not start; it needs Java 17 or later")
            time.sleep(0.05)
        content = address.read_bytes()
        address.unlink()
        port, length = struct.unpack(">ii", content[:8])
        token = content[8 : 8 + length].decode()
        return ClientServer(
            java_parameters=JavaParameters(port=port, auth_token=token),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )


def _spark_home(home: Path) -> Path:
    """A Spark home with links to PySpark's programs."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EngineError("PySpark is not installed; install the extra `spark`")
    home.mkdir(mode=0o700)
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(spec.origin).parent / part)
    return home
