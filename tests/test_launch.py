"""`accelerate launch` itself, with the package's files: two processes on CPUs, stopped and resumed.

What two processes learn is compared with one process in `tests/test_sharding.py` and `tests/test_ilql.py`; here it is
the launcher, the files and the signals that are tried, so one run is compared with another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

CONFIGS = Path(__file__).parent.parent / "trainers/configs"
TIMEOUT = 300  # seconds until a run counts as hung
FIRST_STEPS = "'loss'"  # what a run prints once it has made some

ENVIRONMENT = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}


def launch(file: str, data: Path, bc: Path, output: Path, steps: int) -> subprocess.Popen[bytes]:
    """Start a training of two processes; what it prints goes to a file beside its output."""
    words = ["--config_file", str(CONFIGS / file), "--num_processes", "2", "--mixed_precision", "no"]
    training = ["-m", "trainers", "ilql", "--task", "maze", "--dataset", str(data), "--init", str(bc), "--seed", "3"]
    options = ["--steps", str(steps), "--batch-size", "16", "--lr", "1e-3", "--output", str(output)]
    command = [sys.executable, "-m", "accelerate.commands.launch", *words, *training, *options]
    with open(f"{output}.txt", "ab") as printed:
        return subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=ENVIRONMENT)


def finish(process: subprocess.Popen[bytes], output: Path) -> None:
    assert process.wait(TIMEOUT) == 0, Path(f"{output}.txt").read_text()[-3000:]


def stop_after_first_steps(process: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while FIRST_STEPS not in Path(f"{output}.txt").read_text():
        assert process.poll() is None and time.monotonic() < end, Path(f"{output}.txt").read_text()[-3000:]
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.wait(TIMEOUT)


@pytest.mark.slow
def test_every_file_learns_the_same_also_when_stopped_and_resumed(tmp_path: Path) -> None:
    code = "import sys; from env_servers.cli import main; main()"
    lmrl = [sys.executable, "-c", code]
    data, bc = tmp_path / "maze", tmp_path / "bc"
    build = ["data", "build", "maze", "--train", "90", "--validation", "10", "--workers", "1", "--output", str(data)]
    learn = ["train", "bc", "--task", "maze", "--dataset", str(data), "--init", "tiny", "--steps", "4"]
    for words in (build, [*learn, "--batch-size", "16", "--output", str(bc)]):
        subprocess.run([*lmrl, *words], check=True, capture_output=True, env=ENVIRONMENT)

    weights = []
    for file in ("ddp.yaml", "fsdp2.yaml"):
        whole, cut = tmp_path / f"{file}-whole", tmp_path / f"{file}-cut"
        finish(launch(file, data, bc, whole, 200), whole)
        stop_after_first_steps(launch(file, data, bc, cut, 200), cut)
        assert not (cut / "values.safetensors").exists() and any((cut / "checkpoints").iterdir())
        finish(launch(file, data, bc, cut, 200), cut)
        weights += [load_file(folder / "values.safetensors") for folder in (whole, cut)]
    for other in weights[1:]:
        assert other.keys() == weights[0].keys()
        assert all((other[name] == tensor).all() for name, tensor in weights[0].items())
