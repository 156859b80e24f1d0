"""`lmrl reproduce`: the order of its commands, what a failure and a second call do, and the numbers of its table."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import eval_harness.reproduce as reproduce
from env_servers.scores import summarize
from env_servers.tasks import make_policy
from eval_harness.log import read_episodes
from eval_harness.run import evaluate_policy
from eval_harness.suites import SUITES, Method, Study
from trainers.cli import app as train_app
from trainers.curves import write_log

STUDY = Study(
    "maze",
    "--train 4",
    "--episodes 5",
    {
        "bc": Method("bc", "--steps 3", paper=-72.1),
        "filtered_bc": Method("bc", "--filter top:20"),
        "mc": Method("mc", "--lr 1e-3", base="bc", trunk="filtered_bc"),
    },
)
# In the place of `lmrl`: leaves the file that shows success, and a line in a list, unless told to fail.
STAND_IN = """
import sys
from pathlib import Path
words = sys.argv[1:]
here = Path({folder!r})
with (here / "called").open("a") as called:
    called.write(" ".join(words[:3]) + "\\n")
if (here / "fail").exists() and (here / "fail").read_text() in " ".join(words):
    print("no luck")
    sys.exit(3)
out = Path(words[words.index("--output") + 1])
out.mkdir(parents=True, exist_ok=True)
name = {{"data": "README.md", "train": "policy.json", "eval": "results.json"}}[words[0]]
(out / name).write_text("x")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "stand_in.py").write_text(STAND_IN.format(folder=str(tmp_path)))
    monkeypatch.setattr(reproduce, "LMRL", (sys.executable, str(tmp_path / "stand_in.py")))
    return tmp_path


def run(folder: Path, workers: int = 1, seeds: int = 2) -> tuple[list[str], list[str]]:
    """Names that failed, and the commands that were called, in order."""
    (folder / "called").unlink(missing_ok=True)
    jobs = list(reproduce.make_jobs([STUDY], seeds, folder))
    failed = reproduce.run_jobs(jobs, folder / "logs", workers, Console(quiet=True))
    called = folder / "called"
    return failed, called.read_text().splitlines() if called.exists() else []


def test_commands_name_data_seed_and_what_they_begin_with(tmp_path: Path) -> None:
    jobs = {job.name: job for job in reproduce.make_jobs([STUDY], 2, tmp_path)}
    assert len(jobs) == 1 + 2 * 3 * 2
    assert jobs["maze-data"].words == ("data", "build", "maze", "--train", "4", "--output", str(tmp_path / "data/maze"))
    values, models = jobs["maze-mc-1"], tmp_path / "models/maze"
    assert values.needs == ("maze-bc-1", "maze-filtered_bc-1")
    assert values.words[:4] == ("train", "mc", "--lr", "1e-3")
    assert values.words[4:8] == ("--init", str(models / "bc-1"), "--trunk", str(models / "filtered_bc-1"))
    assert values.words[values.words.index("--seed") + 1] == "1"
    assert jobs["maze-mc-1-eval"].needs == ("maze-mc-1",)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_command_runs_once_after_what_it_needs(folder: Path, workers: int) -> None:
    failed, called = run(folder, workers)
    assert failed == [] and len(called) == 13
    assert called[0] == "data build maze"
    assert called.index("train mc --lr") > called.index("train bc --steps")
    assert run(folder, workers) == ([], []), "a second call has nothing to do"
    shutil.rmtree(folder / "runs/maze/mc-1")
    assert run(folder, workers) == ([], ["eval --task maze"]), "what is missing is done again"


def test_a_failure_leaves_out_only_what_needs_it(folder: Path) -> None:
    (folder / "fail").write_text("models/maze/bc-0")
    failed, _ = run(folder, workers=2)
    assert sorted(failed) == ["maze-bc-0", "maze-bc-0-eval", "maze-mc-0", "maze-mc-0-eval"]
    assert "no luck" in (folder / "logs/maze-bc-0.txt").read_text()
    (folder / "fail").unlink()
    assert run(folder)[0] == [] and (folder / "runs/maze/mc-0/results.json").exists()


def test_the_table_has_the_mean_over_seeds_and_its_interval(tmp_path: Path) -> None:
    """Two seeds of Maze's scripted policies; t(0.975, 1) = 12.706."""
    means = []
    for seed, scripted in enumerate(("behavior", "random")):
        run_folder = tmp_path / f"runs/maze/bc-{seed}"
        evaluate_policy("maze", make_policy("maze", scripted), episodes=6, output=run_folder, progress=False)
        means.append(summarize(trajectory for trajectory, _ in read_episodes(run_folder)).mean_return)
        policy = tmp_path / f"models/maze/bc-{seed}"
        policy.mkdir(parents=True)
        (policy / "policy.json").write_text("{}")
        log: list[dict[str, float]] = [{"step": 2, "eval_return": -90.0 + seed}, {"step": 4, "eval_return": -50.0}]
        write_log(policy, [*log, {"step": 4, "train_runtime": 10.0 + 2 * seed}])
    reproduce.write_results([STUDY], 3, tmp_path, "lmrl reproduce --suite cpu")
    result = json.loads((tmp_path / "results.json").read_text())["results"]["maze"]
    assert list(result) == ["bc"], "what has not been measured is left out"
    assert result["bc"]["returns"] == pytest.approx(means) and result["bc"]["seconds"] == 11.0
    mean, half = sum(means) / 2, 12.7062 * abs(means[0] - means[1]) / 2
    text = (tmp_path / "results.md").read_text()
    assert f"| BC | {mean:.2f} [{mean - half:.2f}, {mean + half:.2f}] | {means[0]:.2f}, {means[1]:.2f} |" in text
    assert "| 11 s | -72.1 |" in text and "lmrl train bc --steps 3" in text
    assert (tmp_path / "curves-maze.png").read_bytes().startswith(b"\x89PNG")


def test_names_that_there_are_not() -> None:
    with pytest.raises(ValueError, match="unknown suite 'cpus'"):
        reproduce.choose("cpus", None)
    with pytest.raises(ValueError, match="unknown task 'mazes'"):
        reproduce.choose("cpu", "maze,mazes")
    assert [study.task for study in reproduce.choose("cpu", "maze")] == ["maze"]


def options_of(algorithm: str) -> set[str]:
    import typer

    command: Any = typer.main.get_command(train_app)
    return {name for parameter in command.commands[algorithm].params for name in parameter.opts}


@pytest.mark.parametrize("study", SUITES["cpu"], ids=lambda study: study.task)
def test_the_suites_options_are_those_of_the_commands(study: Study) -> None:
    seen: set[str] = set()
    for name, method in study.methods.items():
        words = [word for word in method.options.split() if word.startswith("--")]
        assert {*words, "--model", "--init"} <= options_of(method.algorithm), name
        assert len(words) == len(set(words)), "each once"
        assert {method.base, method.trunk} - {None} <= seen
        assert name in reproduce.TITLES
        seen.add(name)
