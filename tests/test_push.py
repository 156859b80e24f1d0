"""A run as a dataset and its report as a Space, through the unmodified clients against the test Hub.

This file is also the script that runs beside it, since the clients read the Hub's address when they are imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, client_environment

from eval_harness.log import EPISODES, read_header, read_rows
from eval_harness.push import config_name, push_run
from eval_harness.run import run


def error_of(action: Any) -> list[str]:
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["none", ""]


def script(folder: Path) -> Any:
    from datasets import load_dataset
    from huggingface_hub import HfApi

    from eval_harness.push import push_report
    from eval_harness.score import score
    from hub_datasets.verify import verify

    api = HfApi()
    first = push_run(folder / "optimal", "alice/maze-runs")
    again = push_run(folder / "optimal", "alice/maze-runs")
    push_run(folder / "random", "alice/maze-runs", config="noise")
    rows = load_dataset("alice/maze-runs", "scripted-optimal-seed3", split="test")
    verified = verify("alice/maze-runs")
    runs = [score(folder / name) for name in ("optimal", "random")]
    page = push_report(runs, "alice/report")
    repeated = push_report(runs, "alice/report")
    api.create_repo("alice/other", repo_type="space", space_sdk="static")
    api.upload_file(path_or_fileobj=b"x", path_in_repo="app.js", repo_id="alice/other", repo_type="space")
    return {
        "first": first,
        "again": again,
        "rows": [rows[number] for number in range(len(rows))],
        "noise": len(load_dataset("alice/maze-runs", "noise", split="test")),
        "verified": [verified.episodes, verified.problem],
        "card": Path(api.hf_hub_download("alice/maze-runs", "README.md", repo_type="dataset")).read_text(),
        "header": Path(api.hf_hub_download("alice/maze-runs", "noise/header.json", repo_type="dataset")).read_text(),
        "page": page,
        "repeated": repeated,
        "html": Path(api.hf_hub_download("alice/report", "index.html", repo_type="space")).read_text(),
        "about": Path(api.hf_hub_download("alice/report", "README.md", repo_type="space")).read_text(),
        "foreign": error_of(lambda: push_report(runs, "alice/other")),
        "another's": error_of(lambda: push_report(runs, "bob/report")),
        "forced": push_report(runs, "alice/other", force=True).changed,
        "files": sorted(api.list_repo_files("alice/other", repo_type="space")),
    }


def test_a_run_and_its_report_are_what_was_pushed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for name, seed in (("optimal", 3), ("random", 0)):
        run("maze", f"scripted:{name}", episodes=4, seed=seed, output=runs / name, progress=False)
    with HubServer(tmp_path / "hub") as hub:
        environment = client_environment(hub, tmp_path / "home")
        done = subprocess.run([sys.executable, __file__, str(runs)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])

    assert told["rows"] == json.loads(json.dumps(list(read_rows(runs / "optimal"))))
    assert (told["noise"], told["verified"]) == (4, [8, None])
    assert told["first"][2] and not told["again"][2] and told["again"][1] == told["first"][1]
    assert "`scripted:optimal`" in told["card"] and "Evaluated episodes: `scripted-optimal-seed3`" in told["card"]
    assert str(tmp_path) not in told["card"] + told["header"]
    assert json.loads(told["header"])["starts"] == read_header(runs / "random").starts

    assert told["page"][2] and not told["repeated"][2]
    assert told["html"].startswith("<!doctype html>") and "scripted:optimal" in told["html"]
    assert "sdk: static" in told["about"] and "| scripted:random |" in told["about"]
    assert told["foreign"][0] == "FileExistsError" and "app.js" in told["foreign"][1]
    assert told["another's"][0] == "PermissionError"
    assert told["forced"] and {"app.js", "index.html", "README.md"} <= set(told["files"])


def test_what_is_not_pushed(tmp_path: Path) -> None:
    folder = run("maze", "scripted:random", episodes=3, output=tmp_path / "r", progress=False).folder
    with pytest.raises(ValueError, match="config is 'a b'"):
        push_run(folder, "alice/x", config="a b")
    lines = (folder / EPISODES).read_bytes().splitlines(keepends=True)
    (folder / EPISODES).write_bytes(b"".join(lines[:2]))
    with pytest.raises(ValueError, match="holds 2 of 3 episodes"):
        push_run(folder, "alice/x")


def test_a_configuration_is_named_after_the_model_not_after_its_place(tmp_path: Path) -> None:
    folder = run("maze", "scripted:random", episodes=1, output=tmp_path / "r", progress=False).folder
    header = read_header(folder)
    assert config_name(header) == "scripted-random-seed0"
    own = {**header.__dict__, "model": {"name": str(tmp_path / "my policy")}, "seed": 7}
    assert config_name(type(header)(**own)) == "my-policy-seed7"


if __name__ == "__main__":
    print(json.dumps(script(Path(sys.argv[1]))))
