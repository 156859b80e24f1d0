"""Publishing and loading through the unmodified clients against the test Hub, with Xet off and on.

The clients read the Hub's address and their cache's place when they are imported, so what talks with the Hub runs
in a subprocess: this file is also that script (`python test_publish.py <flow> <folder>`), printing what it saw.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, client_environment

# Flows: run in the subprocess -------------------------------------------------------------------------------------


def error_of(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["none", ""]


def flow_publish(folder: Path) -> Any:
    from datasets import load_dataset

    from hub_datasets.load import load_starts, load_trajectories, resolve
    from hub_datasets.publish import publish
    from hub_datasets.verify import verify

    first = publish(folder, "lmrl/maze", tag="v1.0")
    again = publish(folder, "lmrl/maze", tag="v1.0")
    plain = load_dataset("lmrl/maze", revision="v1.0")
    streamed = load_dataset("lmrl/maze", split="validation", revision=first.revision, streaming=True)
    local = list(load_trajectories(str(folder)))
    verified = verify("maze", revision="v1.0")
    return {
        "first": first,
        "again": again,
        "resolved": [resolve("maze"), resolve("maze", "v1.0"), resolve("lmrl/maze@v1.0")],
        "rows": {split: rows.num_rows for split, rows in plain.items()},
        "streamed": [row["episode_id"] for row in streamed],
        "equal": list(load_trajectories("maze", revision="v1.0")) == local,
        "equal_streaming": list(load_trajectories("lmrl/maze", streaming=True)) == local,
        "starts": len(load_starts("maze")),
        "verified": [verified.episodes, verified.starts, verified.problem],
        "no_revision": error_of(lambda: resolve("maze", "v9")),
        "no_repository": error_of(lambda: resolve("lmrl/nothing")),
        "no_config": error_of(lambda: list(load_trajectories("maze", config="expert"))),
        "no_split": error_of(lambda: list(load_trajectories("maze", "dev"))),
    }


def flow_overwrite(folder: Path) -> Any:
    """A second dataset for a repository that has one: refused without force, replaced with it."""
    from huggingface_hub import HfApi

    from hub_datasets.build import build
    from hub_datasets.plan import make_plan
    from hub_datasets.publish import publish

    api = HfApi()
    publish(folder, "alice/maze", tag="v1")
    other = folder.parent / "other"
    build(make_plan("maze", policy="optimal", episodes={"train": 4}), other, workers=1)
    refused = error_of(lambda: publish(other, "alice/maze"))
    head = api.dataset_info("alice/maze").sha
    # The tag is in the way of new data too, and that is told before anything is committed.
    third = folder.parent / "third"
    build(make_plan("maze", config="third", policy="random", episodes={"train": 2}), third, workers=1)
    moved = error_of(lambda: publish(third, "alice/maze", tag="v1"))
    kept = api.dataset_info("alice/maze").sha
    forced = publish(other, "alice/maze", tag="v1", force=True)
    files = api.list_repo_files("alice/maze", repo_type="dataset")
    card = Path(api.hf_hub_download("alice/maze", "README.md", repo_type="dataset")).read_text()
    api.upload_file(
        path_or_fileobj=(card + "\nMy own words.\n").encode(), path_in_repo="README.md", repo_id="alice/maze",
        repo_type="dataset",
    )  # fmt: skip
    extra = folder.parent / "extra"
    build(make_plan("maze", config="expert", policy="optimal", episodes={"train": 3}), extra, workers=1)
    edited = error_of(lambda: publish(extra, "alice/maze"))
    api.create_repo("alice/thesis", repo_type="dataset")
    api.upload_file(path_or_fileobj=b"x", path_in_repo="episodes/mine.txt", repo_id="alice/thesis", repo_type="dataset")
    foreign = error_of(lambda: publish(folder, "alice/thesis"))
    (other / "episodes/train-00000-of-00001.parquet").write_bytes(b"not parquet")
    damaged = error_of(lambda: publish(other, "alice/maze", force=True))
    return {
        "refused": refused, "kept": [head, kept], "moved": moved, "forced": forced, "files": files, "edited": edited,
        "foreign": foreign, "damaged": damaged,
    }  # fmt: skip


def flow_rights(folder: Path) -> Any:
    """What people run into: no token, a token that only reads, somebody else's namespace, a pull request, privacy."""
    from huggingface_hub import HfApi

    from hub_datasets.load import load_trajectories, resolve
    from hub_datasets.publish import publish

    publish(folder, "alice/secret", private=True)
    publish(folder, "alice/open")
    pull_request = publish(folder, "alice/open", create_pr=True)
    # Other content as a pull request of another user.
    from hub_datasets.build import build
    from hub_datasets.plan import make_plan

    other = folder.parent / "proposal"
    build(make_plan("maze", policy="optimal", episodes={"train": 4}, config="expert"), other, workers=1)
    proposed = publish(other, "alice/open", create_pr=True, token="hf_bob")
    publish(folder, "alice/guarded")
    HfApi().update_repo_settings("alice/guarded", repo_type="dataset", gated="manual")
    return {
        "no_token": error_of(lambda: publish(folder, "alice/new", token=False)),
        "bad_token": error_of(lambda: publish(folder, "alice/new", token="hf_nobody")),
        "read_only": error_of(lambda: publish(folder, "alice/new", token="hf_alice_ro")),
        "foreign": error_of(lambda: publish(folder, "alice/new", token="hf_bob")),
        "missing_for_pr": error_of(lambda: publish(folder, "alice/absent", create_pr=True)),
        "private_without_token": error_of(lambda: resolve("alice/secret", token=False)),
        "private_of_another": error_of(lambda: resolve("alice/secret", token="hf_bob")),
        "private_bad_token": error_of(lambda: resolve("alice/secret", token="hf_nobody")),
        "private_with_token": len(list(load_trajectories("alice/secret", token="hf_alice_ro"))),
        "same_content_pr": pull_request,
        "proposed": proposed,
        "proposed_rows": len(list(load_trajectories("alice/open", config="expert", revision="refs/pr/1"))),
    }


def flow_gated(_: Path) -> Any:
    from hub_datasets.load import load_trajectories

    return error_of(lambda: list(load_trajectories("alice/guarded")))


def flow_one_config(folder: Path) -> Any:
    from hub_datasets.publish import publish

    return publish(folder, "lmrl/crowd")


if __name__ == "__main__":
    print("RESULT " + json.dumps(globals()[f"flow_{sys.argv[1]}"](Path(sys.argv[2]))))
    sys.exit()


# Tests ------------------------------------------------------------------------------------------------------------


def start_flow(
    name: str, folder: Path, hub: HubServer, home: Path, xet: bool = False, token: str = "hf_alice"
) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, name, str(folder)]
    environment = client_environment(hub, home, token=token, xet=xet)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> Any:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return json.loads(next(line for line in output.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))


def run_flow(name: str, folder: Path, hub: HubServer, home: Path, xet: bool) -> Any:
    return result_of(start_flow(name, folder, hub, home, xet))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with HubServer(tmp_path / "hub") as server:
        yield server


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hub_datasets.build import build
    from hub_datasets.plan import make_plan

    folder = tmp_path_factory.mktemp("publish") / "maze"
    build(make_plan("maze", episodes={"train": 40, "validation": 10}, shard_episodes=25), folder, workers=1)
    return folder


def own_copy(dataset: Path, tmp_path: Path) -> Path:
    """The flows build beside the folder and change it."""
    import shutil

    return Path(shutil.copytree(dataset, tmp_path / "work" / "maze"))


@pytest.mark.parametrize("xet", [False, True], ids=["lfs", "xet"])
def test_publish_tag_reload_and_the_same_again_is_no_commit(
    dataset: Path, hub: HubServer, tmp_path: Path, xet: bool
) -> None:
    # A busy Hub, and one answer lost after its commit was made: both are got over, with one commit in all.
    hub.faults([
        {"match": "POST /api/datasets/lmrl/maze/commit", "status": 503, "times": 1},
        {"match": "POST /api/datasets/lmrl/maze/commit", "status": 503, "times": 1, "after": True},
    ])  # fmt: skip
    saw = run_flow("publish", dataset, hub, tmp_path / "home", xet)
    repo_id, revision, _, _ = saw["first"]
    assert repo_id == "lmrl/maze"
    assert saw["again"] == ["lmrl/maze", revision, False, None]
    assert saw["resolved"] == [["lmrl/maze", revision]] * 3
    assert saw["rows"] == {"train": 40, "validation": 10}
    assert saw["streamed"] == [f"maze-behavior-validation-{n:07d}" for n in range(10)]
    assert saw["equal"] and saw["equal_streaming"]
    assert saw["starts"] == 800
    assert saw["verified"] == [50, 800, None]
    assert saw["no_revision"] == ["FileNotFoundError", saw["no_revision"][1]]
    assert "lmrl/maze has no revision 'v9'" in saw["no_revision"][1]
    assert (
        saw["no_repository"][0] == "FileNotFoundError" and "lmrl/nothing does not exist, or" in saw["no_repository"][1]
    )
    assert saw["no_config"][0] == "ValueError" and "episodes" in saw["no_config"][1]
    assert saw["no_split"][0] == "ValueError" and "validation" in saw["no_split"][1]
    commits = [entry for entry in hub.log() if entry["method"] == "POST" and "/commit/" in entry["path"]]
    assert len(commits) == 2, "the same content again must be no commit"


def test_other_data_edited_cards_and_damaged_files_are_refused(dataset: Path, hub: HubServer, tmp_path: Path) -> None:
    saw = run_flow("overwrite", own_copy(dataset, tmp_path), hub, tmp_path / "home", False)
    kind, message = saw["refused"]
    assert kind == "FileExistsError"
    assert "already has another dataset 'episodes' (policy: 'behavior' there, 'optimal' here" in message
    assert "pass --force" in message
    assert saw["moved"][0] == "FileExistsError" and "has the tag 'v1' at commit" in saw["moved"][1]
    assert saw["kept"][0] == saw["kept"][1]
    assert saw["forced"][2] is True
    assert [f for f in saw["files"] if f.startswith("episodes/")] == [
        "episodes/returns.png",
        "episodes/stats.json",
        "episodes/train-00000-of-00001.parquet",
    ], "shards of the replaced data must be gone"
    assert saw["edited"][0] == "FileExistsError" and "edited by hand" in saw["edited"][1]
    assert saw["foreign"][0] == "FileExistsError" and "episodes/mine.txt, which is not from lmrl" in saw["foreign"][1]
    assert saw["damaged"][0] == "ValueError" and "is not the file that was built" in saw["damaged"][1]


def test_rights_and_pull_requests(dataset: Path, hub: HubServer, tmp_path: Path) -> None:
    saw = run_flow("rights", own_copy(dataset, tmp_path), hub, tmp_path / "home", False)
    for name, kind, words in [
        ("no_token", "PermissionError", "there is no token; log in"),
        ("bad_token", "PermissionError", "does not know your token"),
        ("read_only", "PermissionError", "the token of alice only reads"),
        ("foreign", "PermissionError", "bob cannot publish to 'alice'; allowed: bob"),
        ("missing_for_pr", "FileNotFoundError", "alice/absent does not exist"),
        ("private_without_token", "FileNotFoundError", "private and your token may not read it"),
        ("private_of_another", "FileNotFoundError", "private and your token may not read it"),
        ("private_bad_token", "PermissionError", "hf auth login"),
    ]:
        assert saw[name][0] == kind, (name, saw[name])
        assert words in saw[name][1], (name, saw[name])
    assert saw["private_with_token"] == 40
    assert saw["same_content_pr"][2:] == [False, None]
    assert saw["proposed"][3].endswith("/discussions/1")
    assert saw["proposed_rows"] == 4
    # With a cache of its own: datasets falls back to what the machine already has.
    kind, message = result_of(start_flow("gated", dataset, hub, tmp_path / "home-of-bob", token="hf_bob"))
    assert (kind, message[:51]) == ("PermissionError", "dataset alice/guarded is gated: ask for access on i"), message


@pytest.mark.parametrize("xet", [False, True], ids=["lfs", "xet"])
def test_four_processes_publish_to_one_repository_at_once(hub: HubServer, tmp_path: Path, xet: bool) -> None:
    from hub_datasets.build import build
    from hub_datasets.plan import make_plan

    names = ["episodes", "random", "expert", "mixed"]
    policies = ["behavior", "random", "optimal", "behavior"]
    for name, policy in zip(names, policies, strict=True):
        plan = make_plan("maze", config=name, policy=policy, episodes={"train": 5 + len(name)})
        build(plan, tmp_path / name, workers=1)
    running = [start_flow("one_config", tmp_path / name, hub, tmp_path / f"home-{name}", xet) for name in names]
    published = [result_of(process) for process in running]
    assert all(changed for _, _, changed, _ in published)
    card = hub.read_file("dataset", "lmrl/crowd", "README.md").decode()
    for name in names:
        manifest = json.loads(hub.read_file("dataset", "lmrl/crowd", f"{name}/stats.json"))
        assert manifest["splits"]["train"]["episodes"] == 5 + len(name)
        local = (tmp_path / name / name / "train-00000-of-00001.parquet").read_bytes()
        assert hub.read_file("dataset", "lmrl/crowd", f"{name}/train-00000-of-00001.parquet") == local
        assert f"- config_name: {name}\n" in card
    revisions = {revision for _, revision, _, _ in published}
    assert len(revisions) == 4, "four commits, one on top of the other"
