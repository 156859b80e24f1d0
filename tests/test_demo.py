"""`lmrl demo` from another folder: the whole chain on its own Hub, its table and report, and a second run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LMRL = Path(sys.executable).parent / "lmrl"
MODELS = ["scripted:random", "scripted:behavior", "lmrl/maze-bc", "lmrl/maze-filtered-bc", "scripted:optimal"]


def demo(folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [str(LMRL), "demo", "--episodes", "25", "--output", str(folder / "demo")]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_demo_twice(tmp_path: Path) -> None:
    output = demo(tmp_path)
    rows = {
        line.split()[0]: line.split()[1]
        for line in output.splitlines()
        if line.split()[:1] and line.split()[0] in MODELS
    }
    assert list(rows) == MODELS, "one table, in this order"
    assert rows["scripted:optimal"] == "-6.84"
    assert float(rows["scripted:random"]) < float(rows["lmrl/maze-bc"]) < float(rows["lmrl/maze-filtered-bc"])
    last = output.rstrip().splitlines()[-1]
    report = Path(re.findall(r"open the report in a browser: (.*)$", last)[0])
    page = report.read_text()
    assert all(model in page for model in MODELS)
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page), "the page asks nothing from outside"
    again = demo(tmp_path)
    table = [line for line in output.splitlines() if line.split()[:1] and line.split()[0] in MODELS]
    assert [line for line in again.splitlines() if line in table] == table, "nothing is trained or played again"
