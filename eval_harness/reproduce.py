"""`lmrl reproduce`: a suite's data, trainings and evaluations, and the table and curves that come of them.

    <output>/data/<task>/                     the dataset
    <output>/models/<task>/<method>-<seed>/   the policy, with its card and log
    <output>/runs/<task>/<method>-<seed>/     the evaluation's log
    <output>/logs/                            what each command printed
    <output>/results.md, results.json, curves-<task>.png

Each step is a command of its own, which the log names, and each goes on where it was stopped; so does the whole.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

app = typer.Typer(add_completion=False)

LMRL = (sys.executable, "-c", "from env_servers.cli import main; main()")
TITLES = {"bc": "BC", "filtered_bc": "filtered BC", "mc": "MC returns", "ilql": "ILQL"}


class Job(NamedTuple):
    """One command.

    Attributes:
        name: Unique; also the name of its log.
        words: What follows `lmrl`.
        done: A file that is there once it has succeeded.
        needs: Names of the jobs that come before it.
    """

    name: str
    words: tuple[str, ...]
    done: Path
    needs: tuple[str, ...] = ()


@app.command(name="reproduce", epilog="Example: lmrl reproduce --suite cpu --tasks maze --output reproduce")
def reproduce(
    suite: Annotated[str, typer.Option(help="Name of the suite.")] = "cpu",
    tasks: Annotated[str | None, typer.Option(help="Some of its tasks, with commas between; by default all.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0 on.", min=1)] = 3,
    workers: Annotated[int | None, typer.Option(help="Commands at the same time; by default one per core.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of everything; the same command again goes on there.")] = Path(
        "reproduce"
    ),
) -> None:
    """Learn the tasks of a suite from nothing, measure what was learned, and write the table and the curves."""
    from rich.console import Console

    console = Console(highlight=False)
    studies = choose(suite, tasks)
    folder = output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    jobs = list(make_jobs(studies, seeds, folder))
    count = workers or os.cpu_count() or 1
    console.print(f"{len(jobs)} commands, {count} at the same time; what they print is in {folder / 'logs'}")
    failed = run_jobs(jobs, folder / "logs", count, console)
    write_results(studies, seeds, folder, command_of(suite, tasks, seeds))
    console.print(f"wrote {folder / 'results.md'}")
    if failed:
        raise RuntimeError(f"{len(failed)} commands failed, and those that need them: {', '.join(failed)}")


def choose(suite: str, tasks: str | None) -> list[Any]:
    """The suite's studies, or some of them.

    Raises:
        ValueError: There is no such suite, or no such task in it.
    """
    from env_servers.tasks import unknown
    from eval_harness.suites import SUITES

    if suite not in SUITES:
        raise ValueError(unknown("suite", suite, SUITES))
    studies = {study.task: study for study in SUITES[suite]}
    if tasks is None:
        return list(studies.values())
    for task in (names := tasks.split(",")):
        if task not in studies:
            raise ValueError(unknown("task", task, studies))
    return [studies[task] for task in names]


def command_of(suite: str, tasks: str | None, seeds: int) -> str:
    """The command, without what does not change its results."""
    some = "" if tasks is None else f" --tasks {tasks}"
    return f"lmrl reproduce --suite {suite}{some} --seeds {seeds}"


def make_jobs(studies: Sequence[Any], seeds: int, folder: Path) -> Iterator[Job]:
    """All commands of some studies, each after what it needs."""
    for study in studies:
        task, data = study.task, folder / "data" / study.task
        build = Job(f"{task}-data", ("data", "build", task, *study.build.split(), "--output", str(data)),
                    data / "README.md")  # fmt: skip
        yield build
        for seed in range(seeds):
            for name, method in study.methods.items():
                policy = folder / "models" / task / f"{name}-{seed}"
                others = {"--init": method.base, "--trunk": method.trunk}
                used = [(option, other) for option, other in others.items() if other is not None]
                begin = [word for option, other in used for word in (option, str(policy.parent / f"{other}-{seed}"))]
                needs = [f"{task}-{other}-{seed}" for _, other in used] or [build.name]
                common = ("--task", task, "--dataset", str(data), "--seed", str(seed), "--output", str(policy))
                train = Job(f"{task}-{name}-{seed}",
                            ("train", method.algorithm, *method.options.split(), *begin, *common),
                            policy / "policy.json", tuple(needs))  # fmt: skip
                run = folder / "runs" / task / f"{name}-{seed}"
                words = ("eval", "--task", task, "--model", str(policy), *study.evaluate.split(), "--output", str(run))
                yield train
                yield Job(f"{train.name}-eval", words, run / "results.json", (train.name,))


def run_jobs(jobs: Sequence[Job], logs: Path, workers: int, console: Any) -> list[str]:
    """Run commands, each once all that it needs is done; what is done already is left.

    Args:
        jobs: In any order.
        logs: Folder for what they print.
        workers: How many at the same time; they share the cores evenly.
        console: Told of each that ends.

    Returns:
        The names of those that failed, or need one that did.

    Raises:
        KeyboardInterrupt: It was stopped. The commands were, too, and have saved what they had.
    """
    logs.mkdir(parents=True, exist_ok=True)
    done = {job.name for job in jobs if job.done.exists()}
    failed: list[str] = []
    waiting = [job for job in jobs if job.name not in done]
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "TQDM_DISABLE": "1"}
    stopped = threading.Event()
    running: dict[Future[int], tuple[Job, float]] = {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            while waiting or running:
                for job in [job for job in waiting if set(job.needs) & set(failed)]:
                    waiting.remove(job)
                    failed.append(job.name)
                ready = [job for job in waiting if set(job.needs) <= done][: workers - len(running)]
                for job in ready:
                    waiting.remove(job)
                    running[pool.submit(_call, job, logs, environment, stopped)] = job, time.monotonic()
                if not running:
                    continue
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job, began = running.pop(future)
                    ok = future.result() == 0 and job.done.exists()
                    (done.add if ok else failed.append)(job.name)
                    told = f"{time.monotonic() - began:.0f} s" if ok else f"FAILED, see {logs / job.name}.txt"
                    console.print(f"[{len(done) + len(failed)}/{len(jobs)}] {job.name}: {told}", soft_wrap=True)
        except KeyboardInterrupt:
            stopped.set()
            console.print("Stopping; the commands save what they have, and the same command goes on from there.")
            raise
    return failed


def _call(job: Job, logs: Path, environment: Mapping[str, str], stopped: threading.Event) -> int:
    """Run one command; its return code. Ctrl-C at a terminal reaches it as it does this process."""
    if stopped.is_set():
        return 1
    with (logs / f"{job.name}.txt").open("a", encoding="utf-8") as log:
        log.write(f"$ lmrl {shlex.join(job.words)}\n")
        log.flush()
        return subprocess.run([*LMRL, *job.words], stdout=log, stderr=subprocess.STDOUT, env=environment).returncode


class Result(NamedTuple):
    """One method on one task, over the seeds that are there.

    Attributes:
        returns: Mean return of each seed's policy.
        successes: Their success rates.
        invalid: Their shares of invalid actions.
        episodes: That each policy played.
        seconds: Mean time of training.
    """

    returns: list[float]
    successes: list[float]
    invalid: list[float]
    episodes: int
    seconds: float


def read_result(folder: Path, task: str, name: str, seeds: int) -> Result | None:
    """What the evaluations of one method found; None while there is none."""
    from eval_harness.score import score
    from trainers.curves import points, read_log

    found, seconds = [], []
    for seed in range(seeds):
        if not (folder / "runs" / task / f"{name}-{seed}" / "results.json").exists():
            continue
        found.append(score(folder / "runs" / task / f"{name}-{seed}").summary)
        log = read_log(folder / "models" / task / f"{name}-{seed}")
        seconds += points(log, "train_runtime")[1][-1:]
    if not found:
        return None
    return Result(
        [summary.mean_return for summary in found],
        [summary.success_rate for summary in found],
        [summary.invalid_rate for summary in found],
        found[0].episodes,
        sum(seconds) / len(seconds),
    )


def write_results(studies: Sequence[Any], seeds: int, folder: Path, command: str) -> None:
    """The tables as `results.md` and `results.json`, and a picture of each task's curves."""
    import datetime

    from hub_datasets.manifest import write_text
    from trainers.load import package_versions

    results = {
        study.task: {name: found for name in study.methods if (found := read_result(folder, study.task, name, seeds))}
        for study in studies
    }
    data = {task: {name: result._asdict() for name, result in row.items()} for task, row in results.items()}
    versions = package_versions()
    write_text(
        folder / "results.json",
        json.dumps({"command": command, "versions": versions, "results": data}, indent=2) + "\n",
    )
    lines = [f"Made by `{command}` on {datetime.date.today()}, {os.cpu_count()} cores; "
             f"{', '.join(f'{name} {number}' for name, number in versions.items())}.", ""]  # fmt: skip
    for study in studies:
        if results[study.task]:
            lines += [*table(study, results[study.task]), f"![Curves of {study.task}](curves-{study.task}.png)", ""]
            draw(study, seeds, folder)
    write_text(folder / "results.md", "\n".join(lines) + "\n")


def table(study: Any, results: Mapping[str, Result]) -> list[str]:
    """Lines of Markdown: mean over seeds with Student's 95 % interval of that mean, and each seed's return."""
    from env_servers.scores import mean_interval
    from env_servers.tasks import load_task

    spec = load_task(study.task).spec
    scale = spec.normalisations["lmrl"]
    episodes, build = next(iter(results.values())).episodes, f"lmrl data build {study.task} {study.build}".strip()
    lines = [
        f"## {spec.title} (`{study.task}`)",
        "",
        f"Data: `{build}`. Uniform random {scale.low:g}, the data's agent {scale.middle:g}, best scripted "
        f"{scale.high:g}. {episodes} episodes for each policy.",
        "",
        "| method | mean return over seeds, 95 % | each seed | success | invalid actions | training | paper |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, result in results.items():
        mean = sum(result.returns) / len(result.returns)
        low, high = mean_interval(result.returns)
        interval = f" [{low:.2f}, {high:.2f}]" if len(result.returns) > 1 else ""
        paper = study.methods[name].paper
        each = ", ".join(f"{value:.2f}" for value in result.returns)
        rates = [100 * sum(rates) / len(rates) for rates in (result.successes, result.invalid)]
        lines.append(
            f"| {TITLES[name]} | {mean:.2f}{interval} | {each} | {rates[0]:.1f} % | {rates[1]:.1f} % "
            f"| {result.seconds:.0f} s | {'' if paper is None else f'{paper:g}'} |"
        )
    lines += ["", "Commands, with `--task`, `--dataset`, `--seed` and `--output` besides:", "", "```sh"]
    for name, method in study.methods.items():
        begin = "" if method.base is None else f" --init models/{study.task}/{method.base}-SEED"
        begin += "" if method.trunk is None else f" --trunk models/{study.task}/{method.trunk}-SEED"
        lines.append(f"lmrl train {method.algorithm} {method.options}{begin}  # {TITLES[name]}")
    return [*lines, f"lmrl eval {study.evaluate}", "```", ""]


def draw(study: Any, seeds: int, folder: Path) -> None:
    """The mean returns of the episodes that the runs played, by step: a line for each method, a band of its seeds."""
    from matplotlib.figure import Figure  # no pyplot: no global state, no display

    from dataset_cards.figures import save_png
    from trainers.curves import points, read_log

    figure = Figure(figsize=(5.6, 3.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for number, name in enumerate(study.methods):
        curves = []
        for seed in range(seeds):
            policy = folder / "models" / study.task / f"{name}-{seed}"
            if (policy / "policy.json").exists():
                steps, values = points(read_log(policy), "eval_return")
                curves.append([(step / max(steps), value) for step, value in zip(steps, values, strict=True)])
        if not curves or not curves[0]:
            continue
        at = [place for place, _ in curves[0]]
        columns = list(zip(*([value for _, value in curve] for curve in curves), strict=False))
        colour = ("#3b6fb6", "#e08a2c", "#4f9d69", "#a4508b")[number % 4]
        axes.plot(at, [sum(column) / len(column) for column in columns], color=colour, marker="o", markersize=3,
                  label=TITLES[name])  # fmt: skip
        axes.fill_between(at, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15, lw=0)
    axes.set_xlabel("share of the training")
    axes.set_ylabel("mean return, validation episodes")
    axes.set_title(study.task, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    save_png(figure, folder / f"curves-{study.task}.png")
