"""A process that has imported what commands need and forks for each of them, since most of a short command is imports.

with Warm(environment, folder) as warm:
    status, output = warm.run(["lmrl", "tasks"])
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOADED = ("datasets", "evaluate", "transformers", "trainers.ilql", "trainers.mc", "trainers.cli", "eval_harness.cli",
             "hub_datasets.cli", "hub_datasets.publish", "hub_datasets.build", "env_servers.cli")  # fmt: skip


class Warm:
    """Runs `lmrl ...` and Python scripts in children of one process.

    Args:
        environment: Variables of the process, which are those of all commands.
        folder: Where commands run.
    """

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=dict(environment), cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        """Status, and what the command wrote to either of its outputs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(list(command)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process that runs commands ended with {self._process.wait()}"
        status, output = json.loads(answer)
        return status, output

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _child(command: Sequence[str], output: Path) -> None:
    """In the fork: become the command."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(old, new)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    sys.argv = list(command)
    if command[0] == "lmrl":
        from env_servers.cli import main

        main()
    else:
        import runpy

        sys.path.insert(0, str(Path(command[1]).parent))
        sys.argv = list(command[1:])
        runpy.run_path(command[1], run_name="__main__")


def _serve() -> None:
    import importlib
    import tempfile
    import traceback

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        for line in sys.stdin:
            child = os.fork()
            if not child:
                status = 1
                try:
                    _child(json.loads(line), output)
                    status = 0
                except SystemExit as end:
                    status = end.code if isinstance(end.code, int) else int(end.code is not None)
                except BaseException:
                    traceback.print_exc()
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(Exception):
                        stream.flush()
                os._exit(status)
            _, ended = os.waitpid(child, 0)
            print(json.dumps([os.waitstatus_to_exitcode(ended), output.read_text(errors="replace")]), file=answers)
            answers.flush()


if __name__ == "__main__":
    _serve()
