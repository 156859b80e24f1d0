"""`lmrl demo`: the whole chain on Maze, from generated episodes to a report, each step by the project's own parts.

Without `--hub` it starts a small Hub of its own on this machine (`tests/hub_server.py` of the checkout), so nothing
leaves it and no account is needed; the clients that publish and load are the real ones. Every step can be
interrupted, and the same command goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)

TASK = "maze"
TAG = "v1.0"
FILTER = "top:20"
LOCAL_NAMESPACE, LOCAL_TOKEN = "lmrl", "hf_alice"  # as tests/hub_server.py knows them
HUB_SERVER = Path(__file__).resolve().parent.parent / "tests" / "hub_server.py"


@app.command(name="demo", epilog="Example: lmrl demo --output lmrl_demo")
def demo(
    output: Annotated[Path, typer.Option(help="Folder for data, models, logs and report.")] = Path("lmrl_demo"),
    episodes: Annotated[int, typer.Option(help="Test episodes that each policy plays; 25 starts in turn.")] = 800,
    hub: Annotated[bool, typer.Option("--hub", help="Publish to the real Hub, with your token.")] = False,
    namespace: Annotated[str | None, typer.Option(help="User or organisation there; you by default.")] = None,
) -> None:
    """Generate the Maze data, publish it, load it, train on it, evaluate, and write a report. About two minutes."""
    begin = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    if hub:
        report = _run(output, namespace or _own_namespace(), episodes)
    else:
        with local_hub(output / "hub") as url:
            typer.echo(f"a Hub on this machine: {url}")
            # The clients read these when they are imported, which is only below.
            os.environ |= {"HF_ENDPOINT": url, "HF_TOKEN": LOCAL_TOKEN, "HF_HOME": str((output / "cache").resolve())}
            os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
            os.environ.pop("HF_HUB_OFFLINE", None)
            report = _run(output, LOCAL_NAMESPACE, episodes)
    typer.echo(f"done in {time.monotonic() - begin:.0f} s; open the report in a browser: {report.resolve()}")


def _run(output: Path, namespace: str, episodes: int) -> Path:
    """All steps; returns the report's path."""
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    from datasets import load_dataset
    from rich.console import Console

    from eval_harness.report import to_table
    from eval_harness.report_page import write_html
    from eval_harness.results import push_results
    from eval_harness.run import run
    from hub_datasets.build import build
    from hub_datasets.cli import print_statistics
    from hub_datasets.plan import make_plan
    from hub_datasets.publish import publish
    from trainers.bc import train_bc

    console = Console()
    repository = f"{namespace}/{TASK}"

    console.rule("1. generate the dataset", align="left")
    manifest = build(make_plan(TASK), output / "data" / TASK, progress=True)
    print_statistics(manifest)

    console.rule(f"2. publish it with its card as {repository}", align="left")
    with console.status("uploading, then reading back and comparing"):
        published = publish(output / "data" / TASK, repository, tag=TAG)
    console.print(f"{repository} at commit {published.revision[:8]}, tag {TAG}")

    console.rule("3. load it back", align="left")
    dataset = load_dataset(repository, revision=TAG)
    rows = ", ".join(f"{split} {part.num_rows:,} episodes" for split, part in dataset.items())
    console.print(f'load_dataset("{repository}", revision="{TAG}"): {rows}')

    console.rule("4. train two small GPT-2 from scratch: BC and filtered BC", align="left")
    models: list[str] = []
    for name, rule in (("bc", None), ("filtered-bc", FILTER)):
        done = train_bc(
            TASK,
            repository,
            output / "models" / name,
            revision=TAG,
            rule=rule,
            push_to_hub=f"{namespace}/{TASK}-{name}",
        )
        assert done.revision is not None, "one process pushes what it is told to push"
        model = f"{namespace}/{TASK}-{name}"
        _tag_policy(model, done.folder, done.revision)
        models.append(f"{model}@{TAG}")
        console.print(f"{model}: loss {done.loss:.3f}, {done.seconds:.0f} s, pushed, tag {TAG}")

    console.rule(f"5. evaluate on the same {episodes} test episodes", align="left")
    names = ["scripted:random", "scripted:behavior", *models, "scripted:optimal"]
    scored = []
    for number, model in enumerate(names):
        folder = output / "runs" / f"{number}-{model.partition('@')[0].replace('/', '-').replace(':', '-')}"
        scored.append(run(TASK, model, episodes=episodes, starts_from=f"{repository}@{TAG}", output=folder).scored)
    for model, result in zip(names, scored, strict=True):
        if model in models:
            push_results(result, model.partition("@")[0])

    console.rule("6. report", align="left")
    console.print(to_table(scored))
    report = output / "report.html"
    write_html(scored, report)
    return report


@contextmanager
def local_hub(root: Path) -> Iterator[str]:
    """A Hub server of this machine while the block runs; gives its address.

    Raises:
        RuntimeError: This is not a checkout of the project, or the server did not start.
    """
    if not HUB_SERVER.exists():
        raise RuntimeError(
            "the local Hub is part of the project's checkout: clone it and run `make demo` there, or pass --hub to "
            "publish to the real Hub with your token"
        )
    root.mkdir(parents=True, exist_ok=True)
    port_file, log = root / "port", root / "log.txt"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, str(HUB_SERVER), "--port", "0", "--root", str(root), "--port-file", str(port_file)]
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 30
        while not port_file.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the local Hub did not start; it wrote:\n{log.read_text()}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text().strip()}"
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _tag_policy(repo_id: str, folder: Path, revision: str) -> None:
    """Name the commit that brought a policy: results are committed after it, and a second demo plays the same one."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    from hub_datasets.manifest import file_sha256

    api, weights = HfApi(), "model.safetensors"
    if TAG in [ref.name for ref in api.list_repo_refs(repo_id).tags]:
        (tagged,) = api.get_paths_info(repo_id, [weights], revision=TAG)
        if isinstance(tagged, RepoFile) and tagged.lfs and tagged.lfs.sha256 == file_sha256(folder / weights):
            return
        api.delete_tag(repo_id, tag=TAG)
    api.create_tag(repo_id, tag=TAG, revision=revision)


def _own_namespace() -> str:
    from huggingface_hub import HfApi, get_token

    if get_token() is None:
        raise PermissionError("--hub needs a token with the role `write`; log in with `hf auth login`, or set HF_TOKEN")
    name: str = HfApi().whoami()["name"]
    return name
