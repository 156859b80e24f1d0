"""`accelerate launch` itself, with the package's files: two processes on CPUs, stopped and resumed.

What two processes learn is compared with one process in `tests/test_sharding.py`, `tests/test_ilql.py` and
`tests/test_ppo.py`; here it is the launcher, the files and the signals that are tried, so one run is compared with
another. With `fsdp2.yaml` the weights are divided in truth, see `tests/fsdp_on_cpus.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

TESTS = Path(__file__).parent
CONFIGS = TESTS.parent / "trainers/configs"
TIMEOUT = 300  # seconds until a run counts as hung
START = {"ddp.yaml": ["-m", "trainers"], "fsdp2.yaml": [str(TESTS / "fsdp_on_cpus.py")]}

ENVIRONMENT = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
LMRL = [sys.executable, "-c", "import sys; from env_servers.cli import main; main()"]
SMALL_PPO = [
    *("--rounds", "3", "--rollouts", "12", "--slots", "6", "--num-ppo-epochs", "2", "--num-mini-batches", "2"),
    *("--lr", "1e-3", "--response-length", "3", "--max-episode-tokens", "60", "--reward-scale", "0.05"),
]


def launch(file: str, words: list[str], output: Path) -> subprocess.Popen[bytes]:
    """Start a training of two processes; what it prints goes to a file beside its output."""
    settings = ["--config_file", str(CONFIGS / file), "--num_processes", "2", "--mixed_precision", "no"]
    training = [*START[file], *words, "--task", "maze", "--seed", "3", "--output", str(output)]
    command = [sys.executable, "-m", "accelerate.commands.launch", *settings, *training]
    with open(f"{output}.txt", "ab") as printed:
        return subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=ENVIRONMENT)


def printed_by(output: Path) -> str:
    return Path(f"{output}.txt").read_text()


def finish(process: subprocess.Popen[bytes], output: Path) -> None:
    assert process.wait(TIMEOUT) == 0, printed_by(output)[-3000:]


def stop_when(condition: Callable[[], bool], process: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert process.poll() is None and time.monotonic() < end, printed_by(output)[-3000:]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait(TIMEOUT)
    assert any((output / "checkpoints").glob("checkpoint-*")) and not (output / "policy.json").exists()


def assert_same(one: Path, other: Path, *, within: float = 0.0) -> None:
    """Bit for bit by default. Parts of a model are added up in another order, which Adam makes much of."""
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    assert max((first[name] - second[name]).abs().max().item() for name in first) <= within


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the dataset `maze` and the policy `bc`."""
    made = tmp_path_factory.mktemp("launch")
    data, bc = str(made / "maze"), str(made / "bc")
    build = ["data", "build", "maze", "--train", "90", "--validation", "10", "--workers", "1", "--output", data]
    learn = ["train", "bc", "--task", "maze", "--dataset", data, "--init", "tiny", "--steps", "4"]
    for words in (build, [*learn, "--batch-size", "16", "--output", bc]):
        subprocess.run([*LMRL, *words], check=True, capture_output=True, env=ENVIRONMENT)
    return made


@pytest.mark.slow
def test_every_file_learns_the_same_also_when_stopped_and_resumed(folder: Path) -> None:
    words = ["ilql", "--dataset", str(folder / "maze"), "--init", str(folder / "bc"), "--steps", "60"]
    words += ["--batch-size", "16", "--lr", "1e-3"]
    weights = list[Path]()
    for file in START:
        whole, cut = folder / f"ilql-{file}-whole", folder / f"ilql-{file}-cut"
        finish(launch(file, words, whole), whole)
        stop_when(lambda at=cut: "'loss'" in printed_by(at), launch(file, words, cut), cut)  # type: ignore[misc]
        finish(launch(file, words, cut), cut)
        assert_same(whole / "values.safetensors", cut / "values.safetensors")
        weights.append(whole / "values.safetensors")
    assert_same(*weights, within=1e-3)
    assert printed_by(folder / "ilql-fsdp2.yaml-whole").count("in parts: True") == 2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_online_methods_play_and_learn_the_same_with_weights_in_parts(folder: Path, algorithm: str) -> None:
    """PPO is stopped while it plays its second round, and goes on amid the passes over it."""
    small = SMALL_PPO if algorithm == "ppo" else ["--steps", "3", "--episodes", "8", "--num-generations", "4"]
    small += [] if algorithm == "ppo" else ["--lr", "1e-4", "--response-length", "3", "--max-completion-length", "60"]
    words = [algorithm, "--model", str(folder / "bc"), *small]
    weights = list[Path]()
    for file in START:
        whole = folder / f"{algorithm}-{file}-whole"
        finish(launch(file, words, whole), whole)
        weights.append(whole / "model.safetensors")
    assert_same(*weights, within=1e-4)
    assert printed_by(folder / f"{algorithm}-fsdp2.yaml-whole").count("in parts: True") == 2
    if algorithm == "ppo":
        cut = folder / "ppo-cut"
        playing = cut / "checkpoints/rounds/00001-0.jsonl"
        stop_when(lambda: playing.exists() and b"\n" in playing.read_bytes(), launch("fsdp2.yaml", words, cut), cut)
        assert any((cut / "checkpoints").glob("checkpoint-[567]")), "in the middle of the second round's passes"
        finish(launch("fsdp2.yaml", words, cut), cut)
        assert_same(weights[-1], cut / "model.safetensors")
