"""The test Hub, used by the unmodified clients, with Xet off ("lfs") and on ("xet").

The clients read HF_ENDPOINT, HF_HOME and HF_HUB_DISABLE_XET when they are imported, so this file is also a
script: ``python test_hub_server.py <flow>`` runs one flow against the Hub of its environment and prints what
it saw as JSON. The tests run each flow once per mode, then look at what it saw and at the Hub's state.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, client_environment
from hub_store import HubError
from hub_xet import lz4_block, lz4_frame, regroup_bytes

MULTIPART_OVER = 5_000_000
BIG = random.Random(1).randbytes(13_000_000)
BIG_SHA = hashlib.sha256(BIG).hexdigest()
# Text, numbers and noise, so that a xorb of it has chunks of every compression scheme.
MIXED = (
    b"".join(b"step %d: move north; " % number for number in range(60_000))
    + b"".join(number.to_bytes(4, "little") for number in range(1_000_000, 1_200_000))
    + random.Random(2).randbytes(800_000)
)
CHANGED = MIXED[:700_000] + b"a change" + MIXED[700_000:]
METRIC = """
import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        number = datasets.Value("int64")
        features = datasets.Features({"predictions": number, "references": number})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        return {"share": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""


# ---- flows: run in a subprocess, see above


def outcome(action: Callable[[], Any]) -> list[Any]:
    """Run an action of a client; return ["ok"] or the error's class and HTTP status."""
    try:
        action()
    except Exception as error:
        return [type(error).__name__, getattr(getattr(error, "response", None), "status_code", None)]
    return ["ok"]


def control(**body: Any) -> dict[str, Any]:
    """Post to the control endpoint of the Hub."""
    url = os.environ["HF_ENDPOINT"] + "/_control"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def sha256_of(path: str) -> str:
    """Checksum of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def repository_flow() -> dict[str, Any]:
    """Repositories, rights, references, pull requests and concurrent commits."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    alice, reader, bob = HfApi(), HfApi(token="hf_alice_ro"), HfApi(token="hf_bob")
    nobody, wrong = HfApi(token=False), HfApi(token="hf_wrong")
    maze: dict[str, Any] = {"repo_id": "lmrl/maze", "repo_type": "dataset"}
    seen: dict[str, Any] = {}

    def add(api: Any, path: str, content: bytes, **arguments: Any) -> Any:
        return api.upload_file(path_or_fileobj=content, path_in_repo=path, **{**maze, **arguments})

    me = alice.whoami()
    seen["whoami"] = [me["name"], [org["name"] for org in me["orgs"]], me["auth"]["accessToken"]["role"]]
    seen["create"] = [
        str(alice.create_repo(**maze)),
        outcome(lambda: alice.create_repo(**maze)),
        outcome(lambda: alice.create_repo(**maze, exist_ok=True)),
        outcome(lambda: bob.create_repo("lmrl/other")),
        outcome(lambda: reader.create_repo("alice/other")),
        outcome(lambda: nobody.create_repo("alice/other")),
    ]

    first = add(alice, "README.md", b"---\ntags:\n- rl\n---\n# Maze\n")
    alice.create_tag(**maze, tag="v1")
    second = add(alice, "notes.txt", b"second")
    alice.create_branch(**maze, branch="dev/one", revision=first.oid)
    on_branch = add(alice, "branch.txt", b"on a branch", revision="dev/one")
    refs = alice.list_repo_refs(**maze)
    seen["refs"] = {
        "commits": [first.oid, second.oid, on_branch.oid],
        "branches": {item.name: item.target_commit for item in refs.branches},
        "tags": {item.name: item.target_commit for item in refs.tags},
        "files at v1": sorted(alice.list_repo_files(**maze, revision="v1")),
        "files at dev/one": sorted(alice.list_repo_files(**maze, revision="dev/one")),
        "same tag": outcome(lambda: alice.create_tag(**maze, tag="v1")),
        "same branch": outcome(lambda: alice.create_branch(**maze, branch="dev/one")),
        "unknown": outcome(lambda: alice.list_repo_files(**maze, revision="v9")),
        "missing file": outcome(lambda: alice.hf_hub_download(**maze, filename="none.txt")),
        "history": [item.title for item in alice.list_repo_commits(**maze)],
    }
    alice.delete_branch(**maze, branch="dev/one")
    seen["deleted branch"] = outcome(lambda: alice.list_repo_files(**maze, revision="dev/one"))
    seen["info"] = [alice.dataset_info("lmrl/maze").sha == second.oid, alice.dataset_info("lmrl/maze").tags]
    seen["listing"] = [[item.id for item in alice.list_datasets(author=name)] for name in ("lmrl", "bob")]

    # Sixty files take two pages of fifty; no change leaves the history as it is; folders can be deleted.
    additions = [CommitOperationAdd(f"pages/{number:02}.txt", b"page") for number in range(60)]
    alice.create_commit(**maze, operations=additions, commit_message="pages")
    before = len(alice.list_repo_commits(**maze))
    add(alice, "notes.txt", b"second")
    items = list(alice.list_repo_tree(**maze, recursive=True, expand=True))
    seen["pages"] = {
        "files": sum(item.path.startswith("pages/") and item.path != "pages" for item in items),
        "last commit": {item.path: item.last_commit.title for item in items}["pages/07.txt"],
        "new commits": len(alice.list_repo_commits(**maze)) - before,
        "paths info": [item.path for item in alice.get_paths_info(**maze, paths=["pages", "notes.txt", "no"])],
    }
    deletion = [CommitOperationDelete("pages/", is_folder=True)]
    alice.create_commit(**maze, operations=deletion, commit_message="no pages")
    seen["files"] = sorted(alice.list_repo_files(**maze))

    alice.create_repo("alice/secret", private=True)
    alice.upload_file(path_or_fileobj=b"hidden", path_in_repo="a.txt", repo_id="alice/secret")
    seen["private"] = {
        name: [
            outcome(lambda api=api: api.model_info("alice/secret")),
            outcome(
                lambda api=api: api.upload_file(path_or_fileobj=b"mine", path_in_repo="b.txt", repo_id="alice/secret")
            ),
        ]
        for name, api in (
            ("alice", alice),
            ("reader", reader),
            ("bob", bob),
            ("nobody", nobody),
            ("wrong", wrong),
        )
    }
    alice.move_repo("alice/secret", "alice/moved")
    seen["moved"] = [alice.model_info("alice/secret").id, outcome(lambda: bob.model_info("alice/secret"))]
    alice.delete_repo("alice/moved")
    seen["deleted"] = outcome(lambda: alice.model_info("alice/moved"))

    alice.create_repo("acme/gated")
    alice.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id="acme/gated")
    alice.update_repo_settings("acme/gated", gated="auto")

    def config(api: Any, cache: str) -> list[Any]:
        return outcome(lambda: api.hf_hub_download("acme/gated", "config.json", cache_dir=cache))

    seen["gated"] = [
        outcome(lambda: bob.model_info("acme/gated")),
        config(alice, "alice"),
        config(bob, "bob"),
        config(nobody, "nobody"),
    ]
    control(settings={"type": "model", "id": "acme/gated", "granted": ["bob"]})
    seen["granted"] = config(bob, "bob")

    folder = Path("proposal")
    folder.mkdir()
    (folder / "idea.txt").write_text("an idea")
    (folder / "idea.bin").write_bytes(MIXED[-5000:])
    seen["direct"] = outcome(lambda: add(bob, "idea.txt", b"an idea"))
    proposal = bob.upload_folder(**maze, folder_path=str(folder), create_pr=True, commit_message="An idea")
    on_main = set(alice.list_repo_files(**maze))
    merged = outcome(lambda: bob.merge_pull_request("lmrl/maze", proposal.pr_num, repo_type="dataset"))
    alice.comment_discussion("lmrl/maze", proposal.pr_num, "Thank you", repo_type="dataset")
    alice.merge_pull_request("lmrl/maze", proposal.pr_num, repo_type="dataset")
    details = alice.get_discussion_details("lmrl/maze", proposal.pr_num, repo_type="dataset")
    seen["proposal"] = {
        "url": proposal.pr_url,
        "revision": proposal.pr_revision,
        "files": sorted(set(bob.list_repo_files(**maze, revision="refs/pr/1")) - on_main),
        "merge by bob": merged,
        "events": [event.type for event in details.events],
        "status": details.status,
        "listed": [item.title for item in alice.get_repo_discussions("lmrl/maze", repo_type="dataset")],
        "new on main": sorted(set(alice.list_repo_files(**maze)) - on_main),
    }

    with ThreadPoolExecutor(4) as pool:
        free = list(pool.map(lambda n: outcome(lambda: add(alice, f"t{n}.txt", b"%d" % n)), range(4)))
        parent = alice.dataset_info("lmrl/maze").sha
        bound = list(
            pool.map(lambda n: outcome(lambda: add(alice, f"u{n}.txt", b"%d" % n, parent_commit=parent)), range(4))
        )
    seen["concurrent"] = [free, sorted(bound)]
    return seen


def transfer_flow() -> dict[str, Any]:
    """Large files: parts, deduplication, cut downloads, lost answers, retries."""
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    api = HfApi()
    repo: dict[str, Any] = {"repo_id": "alice/files"}
    api.create_repo(**repo)
    seen: dict[str, Any] = {}

    def sent(pattern: str) -> list[dict[str, Any]]:
        log = control(clear_log=True)["log"]
        return [entry for entry in log if pattern in f"{entry['method']} {entry['path']}"]

    # File objects go through LFS in both modes.
    control(clear_log=True)
    api.upload_file(path_or_fileobj=io.BytesIO(BIG), path_in_repo="big.bin", **repo)
    seen["parts"] = [entry["query"] for entry in sent("PUT /_lfs/")]
    control(faults=[{"match": r"^GET /alice/files/resolve/.*/big\.bin$", "cut": 11_500_000}], clear_log=True)
    seen["big"] = sha256_of(hf_hub_download(**repo, filename="big.bin"))
    seen["ranges"] = [entry["range"] for entry in sent("GET /alice/files/resolve/main/big.bin")]

    # A file that grew by eight bytes: nearly all of its chunks are known.
    folder = Path("folder")
    folder.mkdir()
    for name, content in (("v1", MIXED), ("v2", CHANGED)):
        (folder / "mixed.bin").write_bytes(content)
        control(clear_log=True)
        seen[f"commit {name}"] = api.upload_folder(**repo, folder_path=str(folder)).oid
        seen[f"uploads {name}"] = [entry["path"].split("/")[2] for entry in sent("") if entry["path"][:2] == "/_"]
    control(faults=[{"match": "^GET /_xet/xorbs/", "cut": 1000}], clear_log=True)
    for name in ("v1", "v2"):
        path = snapshot_download(**repo, revision=seen[f"commit {name}"], allow_patterns="*.bin")
        seen[f"download {name}"] = [sha256_of(f"{path}/{file}") for file in ("big.bin", "mixed.bin")]
    log = sent("")
    seen["xorb downloads"] = sum(entry["path"].startswith("/_xet/xorbs/") for entry in log)
    seen["plain downloads"] = sum(entry["method"] == "GET" and "/resolve/" in entry["path"] for entry in log)
    seen["cuts"] = sum(entry["fault"] for entry in log)

    def upload(name: str) -> list[Any]:
        (folder / name).write_text(name)
        return outcome(lambda: api.upload_folder(**repo, folder_path=str(folder), commit_message=name))

    def upload_one(name: str) -> list[Any]:
        return outcome(lambda: api.upload_file(path_or_fileobj=name.encode(), path_in_repo=name, **repo))

    commit, preupload = "^POST /api/models/alice/files/commit/", "^POST /api/models/alice/files/preupload/"
    control(faults=[{"match": commit, "status": 409}, {"match": commit, "status": 412}])
    seen["409, 412, ok"] = [upload_one("a.txt"), upload_one("a.txt"), upload_one("a.txt")]
    control(faults=[{"match": preupload, "status": 429, "retry_after": 0}], clear_log=True)
    seen["429"] = [upload_one("b.txt"), [entry["status"] for entry in sent("/preupload/")]]
    control(faults=[{"match": preupload, "status": 503}], clear_log=True)
    seen["503"] = [upload_one("c.txt"), [entry["status"] for entry in sent("/preupload/")]]
    control(faults=[{"match": commit, "status": 503, "after": True}])
    seen["lost answer"] = upload("d.txt")
    seen["history"] = [item.title for item in api.list_repo_commits(**repo)]
    # The last change of this Hub's state, so that no later one saves it by the way.
    api.create_tag(**repo, tag="last")
    return seen


def datasets_flow() -> dict[str, Any]:
    """push_to_hub, upload_folder and load_dataset."""
    from datasets import Dataset, DatasetDict, load_dataset
    from huggingface_hub import HfApi

    api = HfApi()
    rows = [{"messages": [{"role": "user", "content": f"go {i}"}], "rewards": [0.0, float(i)]} for i in range(20)]
    splits = DatasetDict(train=Dataset.from_list(rows[:15]), test=Dataset.from_list(rows[15:]))
    pushed = splits.push_to_hub("lmrl/pushed")
    loaded = load_dataset("lmrl/pushed")
    streamed = list(load_dataset("lmrl/pushed", split="test", streaming=True))
    seen: dict[str, Any] = {
        "pushed": pushed.oid == api.dataset_info("lmrl/pushed").sha,
        "files": sorted(api.list_repo_files("lmrl/pushed", repo_type="dataset")),
        "splits": {name: split.num_rows for name, split in loaded.items()},
        "equal": loaded["train"].to_list() == rows[:15] and streamed == rows[15:],
    }

    folder = Path("folder")
    card = "---\nconfigs:\n- config_name: all\n  data_files:\n  - split: train\n    path: data/*.parquet\n---\n"
    shas = []
    for count in (3, 7):
        Dataset.from_list(rows[:count]).to_parquet(folder / "data" / "train.parquet")
        (folder / "README.md").write_text(card)
        api.create_repo("lmrl/maze-v", repo_type="dataset", exist_ok=True)
        commit = api.upload_folder(repo_id="lmrl/maze-v", repo_type="dataset", folder_path=str(folder))
        shas.append(commit.oid)
        api.create_tag("lmrl/maze-v", repo_type="dataset", tag=f"v{count}", revision=commit.oid)
    revisions = {"tag v3": "v3", "first sha": shas[0], "tag v7": "v7", "main": "main"}
    seen["rows"] = {
        name: load_dataset("lmrl/maze-v", revision=revision, split="train").num_rows
        for name, revision in revisions.items()
    }

    for name in ("lmrl/closed", "lmrl/guarded"):
        api.create_repo(name, repo_type="dataset", private=name == "lmrl/closed")
        api.upload_file(path_or_fileobj=b'{"n": 1}', path_in_repo="a.jsonl", repo_id=name, repo_type="dataset")
    seen["unknown revision"] = outcome(lambda: load_dataset("lmrl/maze-v", revision="v9"))
    seen["private"] = [
        outcome(lambda token=token: load_dataset("lmrl/closed", token=token))
        for token in (False, "hf_bob", "hf_wrong", "hf_alice_ro")
    ]
    api.update_repo_settings("lmrl/guarded", repo_type="dataset", gated="manual")
    seen["gated"] = [
        outcome(lambda token=token: load_dataset("lmrl/guarded", token=token)) for token in ("hf_bob", "hf_alice")
    ]
    return seen


def models_flow() -> dict[str, Any]:
    """A tiny GPT-2, its tokenizer, and a metric from a Space."""
    import evaluate
    import torch
    from huggingface_hub import HfApi
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GPT2Config,
        GPT2LMHeadModel,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=64, n_positions=32, vocab_size=8000))
    words = Tokenizer(models.WordLevel({"<unk>": 0, "go": 1, "north": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    model.push_to_hub("alice/tiny")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").push_to_hub("alice/tiny")
    loaded = AutoModelForCausalLM.from_pretrained("alice/tiny")
    pairs = zip(model.state_dict().values(), loaded.state_dict().values(), strict=True)
    api = HfApi()
    seen = {
        "equal": all(torch.equal(left, right) for left, right in pairs),
        "tokens": AutoTokenizer.from_pretrained("alice/tiny")("go north now")["input_ids"],
        "files": sorted(api.list_repo_files("alice/tiny")),
    }
    api.create_repo("alice/share", repo_type="space", space_sdk="static")
    api.upload_file(path_or_fileobj=METRIC.encode(), path_in_repo="share.py", repo_id="alice/share", repo_type="space")
    seen["metric"] = evaluate.load("alice/share").compute(predictions=[1, 2, 3, 4], references=[1, 2, 3, 0])
    return seen


def restart_flow() -> dict[str, Any]:
    """Look at the repositories of the other flows after the Hub was started again."""
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi()
    path = snapshot_download("alice/files", allow_patterns="*.bin")
    pull = api.get_discussion_details("lmrl/maze", 1, repo_type="dataset")
    return {
        "files": [sha256_of(f"{path}/{file}") for file in ("big.bin", "mixed.bin")],
        "history": [item.title for item in api.list_repo_commits("alice/files")],
        "tags": [item.name for item in api.list_repo_refs("alice/files").tags],
        "pull request": [pull.title, pull.status, pull.author],
        "upload": outcome(
            lambda: api.upload_file(path_or_fileobj=b"new", path_in_repo="new.txt", repo_id="alice/files")
        ),
    }


# ---- tests


def run_flow(hub: HubServer, folder: Path, name: str, mode: str) -> dict[str, Any]:
    """Run one flow in a subprocess with an empty HF_HOME."""
    folder.mkdir()
    process = subprocess.run(
        [sys.executable, __file__, name],
        env=client_environment(hub, folder / "home", xet=mode == "xet"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["lfs", "xet"])
def mode(request: pytest.FixtureRequest) -> str:
    """How clients upload large files."""
    return request.param


@pytest.fixture(scope="module")
def hub(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """The Hub of the flows about repositories and transfers."""
    with HubServer(tmp_path_factory.mktemp(mode) / "hub", multipart_over=MULTIPART_OVER) as server:
        yield server


@pytest.fixture(scope="module")
def library_hub(mode: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """The Hub of the flows about datasets and models, whose requests stay out of the other log."""
    with HubServer(tmp_path_factory.mktemp(f"{mode}-libraries") / "hub") as server:
        yield server


@pytest.fixture(scope="module")
def flows(hub: HubServer, library_hub: HubServer, mode: str) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """What each flow saw. They run in the background, one at a time on each Hub."""

    def start(pool: ThreadPoolExecutor, server: HubServer, name: str) -> Future[dict[str, Any]]:
        return pool.submit(run_flow, server, server.store.root.parent / name, name, mode)

    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as library_pool:
        yield {
            "repository": start(pool, hub, "repository"),
            "transfer": start(pool, hub, "transfer"),
            "datasets": start(library_pool, library_hub, "datasets"),
            "models": start(library_pool, library_hub, "models"),
        }


@pytest.fixture
def repositories(flows: dict[str, Future[dict[str, Any]]]) -> dict[str, Any]:
    """What the flow about repositories saw."""
    return flows["repository"].result()


@pytest.fixture
def transfers(flows: dict[str, Future[dict[str, Any]]]) -> dict[str, Any]:
    """What the flow about large files saw."""
    return flows["transfer"].result()


def test_create(hub: HubServer, repositories: dict[str, Any]) -> None:
    assert repositories["whoami"] == ["alice", ["acme", "lmrl"], "write"]
    assert repositories["create"] == [
        f"{hub.url}/datasets/lmrl/maze",
        ["HfHubHTTPError", 409],
        ["ok"],
        ["HfHubHTTPError", 403],
        ["HfHubHTTPError", 403],
        ["HfHubHTTPError", 401],
    ]


def test_branches_and_tags(repositories: dict[str, Any]) -> None:
    refs = repositories["refs"]
    first, second, on_branch = refs["commits"]
    assert len({first, second, on_branch}) == 3
    assert refs["branches"] == {"main": second, "dev/one": on_branch}
    assert refs["tags"] == {"v1": first}
    assert refs["files at v1"] == [".gitattributes", "README.md"]
    assert refs["files at dev/one"] == [".gitattributes", "README.md", "branch.txt"]
    assert refs["same tag"] == ["HfHubHTTPError", 409]
    assert refs["same branch"] == ["HfHubHTTPError", 409]
    assert refs["unknown"] == ["RevisionNotFoundError", 404]
    assert refs["missing file"] == ["RemoteEntryNotFoundError", 404]
    assert refs["history"] == [
        "Upload notes.txt with huggingface_hub", "Upload README.md with huggingface_hub", "initial commit",
    ]  # fmt: skip
    assert repositories["deleted branch"] == ["RevisionNotFoundError", 404]
    assert repositories["info"] == [True, ["rl"]]
    assert repositories["listing"] == [["lmrl/maze"], []]


def test_trees(repositories: dict[str, Any]) -> None:
    assert repositories["pages"] == {
        "files": 60,
        "last commit": "pages",
        "new commits": 0,
        "paths info": ["pages", "notes.txt"],
    }
    assert repositories["files"] == [".gitattributes", "README.md", "notes.txt"]


def test_private_repository(repositories: dict[str, Any]) -> None:
    assert repositories["private"] == {
        "alice": [["ok"], ["ok"]],
        "reader": [["ok"], ["HfHubHTTPError", 403]],
        "bob": [["RepositoryNotFoundError", 404], ["RepositoryNotFoundError", 404]],
        "nobody": [["RepositoryNotFoundError", 401], ["RepositoryNotFoundError", 401]],
        "wrong": [["HfHubHTTPError", 401], ["HfHubHTTPError", 401]],
    }
    assert repositories["moved"] == ["alice/moved", ["RepositoryNotFoundError", 404]]
    assert repositories["deleted"] == ["RepositoryNotFoundError", 404]


def test_gated_repository(repositories: dict[str, Any]) -> None:
    assert repositories["gated"] == [["ok"], ["ok"], ["GatedRepoError", 403], ["GatedRepoError", 401]]
    assert repositories["granted"] == ["ok"]


def test_pull_request(hub: HubServer, repositories: dict[str, Any]) -> None:
    assert repositories["direct"] == ["HfHubHTTPError", 403]
    assert repositories["proposal"] == {
        "url": f"{hub.url}/datasets/lmrl/maze/discussions/1",
        "revision": "refs/pr/1",
        "files": ["idea.bin", "idea.txt"],
        "merge by bob": ["HfHubHTTPError", 403],
        "events": ["comment", "commit", "comment", "status-change"],
        "status": "merged",
        "listed": ["An idea"],
        "new on main": ["idea.bin", "idea.txt"],
    }
    assert hub.read_file("dataset", "lmrl/maze", "idea.bin") == MIXED[-5000:]


def test_concurrent_commits(hub: HubServer, repositories: dict[str, Any]) -> None:
    free, bound = repositories["concurrent"]
    assert free == [["ok"]] * 4
    assert bound == [["HfHubHTTPError", 412]] * 3 + [["ok"]]
    repository = hub.repository("dataset", "lmrl/maze")
    head = repository.commit_at("main")
    assert {f"t{number}.txt" for number in range(4)} <= head.files.keys()
    # One history without forks, of which each commit added one file.
    sizes = [len(commit.files) for commit in repository.history(head)[:6]]
    assert sizes == [sizes[0] - number for number in range(6)]
    assert sum(name.startswith("u") for name in head.files) == 1


def test_multipart_upload_and_resumed_download(hub: HubServer, transfers: dict[str, Any]) -> None:
    assert sorted(transfers["parts"]) == ["part=1", "part=2", "part=3"]
    assert hub.repository("model", "alice/files").commit_at("main").files["big.bin"].sha256 == BIG_SHA
    # The client notes its progress every 10 MiB, so that is where it goes on.
    assert transfers["ranges"] == [None, "bytes=10485760-"]
    assert transfers["big"] == BIG_SHA


def test_changed_file(hub: HubServer, mode: str, transfers: dict[str, Any]) -> None:
    old, new = (hashlib.sha256(content).hexdigest() for content in (MIXED, CHANGED))
    assert transfers["download v1"] == [BIG_SHA, old]
    assert transfers["download v2"] == [BIG_SHA, new]
    if mode == "lfs":
        assert transfers["uploads v1"] == [old, "verify"]
        assert transfers["uploads v2"] == [new, "verify"]
        assert transfers["xorb downloads"] == transfers["cuts"] == 0
        assert transfers["plain downloads"] == 2
        return
    assert transfers["plain downloads"] == 0
    assert transfers["xorb downloads"] >= 3
    assert transfers["cuts"] == 1
    assert hub.store.xet_hashes.keys() >= {old, new}
    sizes = sorted((path.stat().st_size for path in (hub.store.root / "xorbs").iterdir()), reverse=True)
    # The second upload sent only the chunks around the change.
    first_upload = sizes[0]
    assert first_upload > 800_000
    assert sum(sizes[1:]) < first_upload / 2
    fetched = hub.app.xet.reconstruction(hub.store.xet_hashes[new], None, hub.url)
    assert len({term["hash"] for term in fetched["terms"]}) == 2
    assert sum(term["unpacked_length"] for term in fetched["terms"]) == len(CHANGED)
    # A range gets the terms that overlap it, and how much of the first one to skip.
    first = 700_004
    part = hub.app.xet.reconstruction(hub.store.xet_hashes[new], f"bytes={first}-{first}", hub.url)
    before = fetched["terms"][: fetched["terms"].index(part["terms"][0])]
    assert len(part["terms"]) == 1
    assert part["offset_into_first_range"] == first - sum(term["unpacked_length"] for term in before)
    assert 0 < part["offset_into_first_range"] < part["terms"][0]["unpacked_length"]
    with pytest.raises(HubError) as error:
        hub.app.xet.reconstruction(hub.store.xet_hashes[new], f"bytes={len(CHANGED)}-", hub.url)
    assert error.value.status == 416


def test_faults(hub: HubServer, mode: str, transfers: dict[str, Any]) -> None:
    assert transfers["409, 412, ok"] == [["HfHubHTTPError", 409], ["HfHubHTTPError", 412], ["ok"]]
    assert transfers["429"] == [["ok"], [429, 200]]
    assert transfers["503"] == [["ok"], [503, 200]]
    # upload_folder with Xet tries again, and so commits twice; without Xet it fails, though it did commit.
    assert transfers["lost answer"] == (["ok"] if mode == "xet" else ["HfHubHTTPError", 503])
    assert transfers["history"].count("d.txt") == (2 if mode == "xet" else 1)
    assert hub.read_file("model", "alice/files", "d.txt") == b"d.txt"


def test_datasets(library_hub: HubServer, flows: dict[str, Future[dict[str, Any]]], mode: str) -> None:
    seen = flows["datasets"].result()
    assert seen == {
        "pushed": True,
        "files": [
            ".gitattributes",
            "README.md",
            "data/test-00000-of-00001.parquet",
            "data/train-00000-of-00001.parquet",
        ],
        "splits": {"train": 15, "test": 5},
        "equal": True,
        "rows": {"tag v3": 3, "first sha": 3, "tag v7": 7, "main": 7},
        "unknown revision": ["DatasetNotFoundError", None],
        "private": [
            ["DatasetNotFoundError", None],
            ["DatasetNotFoundError", None],
            ["HfHubHTTPError", 401],
            ["ok"],
        ],
        "gated": [["DatasetNotFoundError", None], ["ok"]],
    }
    parquet = (
        library_hub.repository("dataset", "lmrl/pushed").commit_at("main").files["data/train-00000-of-00001.parquet"]
    )
    assert (parquet.sha256 in library_hub.store.xet_hashes) == (mode == "xet")


def test_models_and_metrics(library_hub: HubServer, flows: dict[str, Future[dict[str, Any]]], mode: str) -> None:
    seen = flows["models"].result()
    assert seen["equal"] is True
    assert seen["tokens"] == [1, 2, 0]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(seen["files"])
    assert seen["metric"] == {"share": 0.75}
    weights = library_hub.repository("model", "alice/tiny").commit_at("main").files["model.safetensors"]
    assert weights.size > 2_000_000
    assert (weights.sha256 in library_hub.store.xet_hashes) == (mode == "xet")


def test_state_survives_a_restart(
    hub: HubServer, mode: str, repositories: dict[str, Any], transfers: dict[str, Any]
) -> None:
    with HubServer(hub.store.root) as again:
        assert again.port != hub.port
        for key, repository in hub.store.repositories.items():
            assert again.repository(*key).to_json() == repository.to_json()
            assert again.repository(*key).commits == repository.commits
        assert again.store.xet_hashes == hub.store.xet_hashes
        seen = run_flow(again, hub.store.root.parent / "restart", "restart", mode)
    assert seen == {
        "files": [BIG_SHA, hashlib.sha256(CHANGED).hexdigest()],
        "history": transfers["history"],
        "tags": ["last"],
        "pull request": ["An idea", "merged", "bob"],
        "upload": ["ok"],
    }


# ---- without clients


def fetch(url: str, method: str = "GET", token: str | None = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Send one request; return status, body and headers (lower case)."""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return (
                answer.status,
                answer.read(),
                {name.lower(): value for name, value in answer.headers.items()},
            )
    except urllib.error.HTTPError as error:
        return error.code, error.read(), {name.lower(): value for name, value in error.headers.items()}


@pytest.fixture
def small_hub(tmp_path: Path) -> Iterator[HubServer]:
    """A Hub with one dataset with one file of ten bytes."""
    with HubServer(tmp_path / "hub") as server:
        server.upload("dataset", "alice/ten", {"a/ten.txt": b"0123456789"})
        yield server


def test_ranges(small_hub: HubServer) -> None:
    url = f"{small_hub.url}/datasets/alice/ten/resolve/main/a/ten.txt"
    status, body, headers = fetch(url)
    assert (status, body, headers["content-length"]) == (200, b"0123456789", "10")
    # What `git hash-object` prints for the file.
    blob = hashlib.sha1(b"blob 10\x00" + b"0123456789").hexdigest()
    assert headers["etag"] == f'"{blob}"'
    assert headers["x-repo-commit"] == small_hub.repository("dataset", "alice/ten").branches["main"]
    status, body, headers = fetch(url, "HEAD")
    assert (status, body, headers["content-length"], headers["accept-ranges"]) == (200, b"", "10", "bytes")
    for wanted, content in (("2-5", b"2345"), ("7-", b"789"), ("-2", b"89"), ("8-99", b"89")):
        status, body, headers = fetch(url, Range=f"bytes={wanted}")
        assert (status, body) == (206, content)
        assert headers["content-range"].endswith("/10")
    status, _, headers = fetch(url, Range="bytes=10-")
    assert (status, headers["content-range"]) == (416, "bytes */10")


def test_error_headers(small_hub: HubServer) -> None:
    url = small_hub.url
    status, body, headers = fetch(f"{url}/datasets/alice/ten/resolve/main/no.txt")
    assert (status, headers["x-error-code"], headers["x-error-message"]) == (
        404,
        "EntryNotFound",
        "Entry not found",
    )
    assert json.loads(body) == {"error": "Entry not found"}
    assert "x-repo-commit" in headers
    status, _, headers = fetch(f"{url}/api/datasets/alice/ten/revision/no")
    assert (status, headers["x-error-code"]) == (404, "RevisionNotFound")
    assert fetch(f"{url}/api/models/gpt2")[0] == 401
    status, _, headers = fetch(f"{url}/api/models/gpt2", token="hf_bob")
    assert (status, headers["x-error-code"]) == (404, "RepoNotFound")
    status, _, headers = fetch(f"{url}/api/datasets/alice/ten", token="hf_nobody")
    assert (status, headers["x-error-message"]) == (401, "Invalid credentials in Authorization header")


def test_xet_needs_tokens(small_hub: HubServer) -> None:
    url = small_hub.url
    tokens = f"{url}/api/datasets/alice/ten/xet"
    assert fetch(f"{tokens}-write-token/main", token="hf_bob")[0] == 403
    assert fetch(f"{tokens}-write-token/main?create_pr=1", token="hf_bob")[0] == 200
    read = json.loads(fetch(f"{tokens}-read-token/main")[1])
    assert read["casUrl"] == f"{url}/_xet"
    shards = f"{url}/_xet/v1/shards"
    assert fetch(shards, "POST")[0] == 401
    assert fetch(shards, "POST", token=read["accessToken"])[0] == 403
    write = json.loads(fetch(f"{tokens}-write-token/main", token="hf_alice")[1])
    assert fetch(shards, "POST", token=write["accessToken"])[0] == 400  # an empty body is no shard
    assert fetch(f"{url}/_xet/xorbs/{'0' * 64}?signature=guess")[0] == 403


def test_fault_rules(small_hub: HubServer) -> None:
    url = f"{small_hub.url}/datasets/alice/ten/resolve/main/a/ten.txt"
    busy = {"status": 429, "retry_after": 7, "code": "Busy"}
    small_hub.faults(
        [
            {"match": r"^HEAD ", "status": 500, "times": 99},
            {"match": r"^GET .*ten\.txt$", "skip": 1, "times": 2, **busy},
            {"match": r"^GET .*ten\.txt$", "delay": 0.3, "cut": 4},
        ]
    )
    assert fetch(url, "HEAD")[0] == 500
    # The first request passes the second rule over, and is taken by the third.
    start = time.monotonic()
    with pytest.raises(Exception, match="IncompleteRead\\(4 bytes read, 6 more expected\\)"):
        fetch(url)
    assert time.monotonic() - start >= 0.3
    for _ in range(2):
        status, _, headers = fetch(url)
        assert (status, headers["retry-after"], headers["x-error-code"]) == (429, "7", "Busy")
    assert fetch(url)[:2] == (200, b"0123456789")
    assert [(entry["status"], entry["fault"]) for entry in small_hub.requests(r"^GET .*ten\.txt$")] == [
        (200, True), (429, True), (429, True), (200, False),
    ]  # fmt: skip
    small_hub.faults([{"match": "^DELETE", "status": 503, "after": True}])
    request = urllib.request.Request(
        f"{small_hub.url}/api/repos/delete",
        b'{"name": "ten", "type": "dataset"}',
        {"Authorization": "Bearer hf_alice", "Content-Type": "application/json"},
        method="DELETE",
    )
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(request)
    assert small_hub.store.repositories == {}


def test_upload_without_client(small_hub: HubServer) -> None:
    content = b"PAR1" + bytes(20)
    sha = small_hub.upload("space", "evaluate-metric/x", {"a.parquet": content, "x.py": b"1"}, private=True)
    repository = small_hub.repository("space", "evaluate-metric/x")
    files = repository.commit_at(sha).files
    assert repository.private
    assert files["a.parquet"].sha256 == hashlib.sha256(content).hexdigest()
    assert files["x.py"].sha256 is None
    assert small_hub.read_file("space", "evaluate-metric/x", "a.parquet", sha) == content


def test_commits_from_threads(small_hub: HubServer) -> None:
    store, repository = small_hub.store, small_hub.repository("dataset", "alice/ten")
    user, parent = store.users["hf_alice"], repository.branches["main"]

    def commit(number: int, **header: str) -> bool:
        operations = [
            {"key": "header", "value": {"summary": f"commit {number}", **header}},
            {"key": "file", "value": {"path": f"{number}.txt", "content": str(number)}},
        ]
        try:
            store.commit(repository, "main", operations, user)
        except HubError as error:
            assert error.status == 412
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        bound = list(pool.map(lambda number: commit(number, parentCommit=parent), range(8)))
        free = list(pool.map(commit, range(100, 160)))
    assert sorted(bound) == [False] * 7 + [True]
    assert all(free)
    head = repository.commit_at("main")
    assert len(repository.history(head)) == 2 + 1 + 60
    assert len(head.files) == 2 + 1 + 60


def test_failed_commit_changes_nothing(small_hub: HubServer) -> None:
    store, repository = small_hub.store, small_hub.repository("dataset", "alice/ten")
    before = repository.to_json()
    operations = [
        {"key": "header", "value": {"summary": "half"}},
        {"key": "file", "value": {"path": "b.txt", "content": "b"}},
        {"key": "lfsFile", "value": {"path": "c.bin", "oid": "0" * 64}},
    ]
    with pytest.raises(Exception, match=r"does not exist: c\.bin"):
        store.commit(repository, "main", operations, store.users["hf_alice"])
    assert repository.to_json() == before
    assert len(repository.commits) == 2


def test_pages_for_people(small_hub: HubServer) -> None:
    status, body, headers = fetch(small_hub.url)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert '<a href="/datasets/alice/ten">alice/ten</a>' in body.decode()
    small_hub.upload("dataset", "alice/ten", {"<b>.txt": b"x"})
    page = fetch(f"{small_hub.url}/datasets/alice/ten")[1].decode()
    assert "a/ten.txt (10 bytes)" in page
    assert "&lt;b&gt;.txt (1 bytes)" in page
    assert "<b>" not in page
    small_hub.configure("dataset", "alice/ten", private=True)
    assert "alice/ten" not in fetch(small_hub.url)[1].decode()
    assert fetch(f"{small_hub.url}/datasets/alice/ten")[0] == 401


def test_command_line(tmp_path: Path) -> None:
    script = Path(__file__).with_name("hub_server.py")
    options = ["--port", "0", "--root", str(tmp_path / "hub"), "--port-file", str(tmp_path / "port")]
    process = subprocess.Popen([sys.executable, str(script), *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    killer = threading.Timer(20, process.kill)
    killer.start()
    try:
        line = process.stdout.readline()
        port = int((tmp_path / "port").read_text())
        assert line.startswith(f"Hub at http://127.0.0.1:{port},")
        assert fetch(f"http://127.0.0.1:{port}/api/datasets")[:2] == (200, b"[]")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 0
    finally:
        killer.cancel()
        process.kill()
        process.stdout.close()


def test_decompression() -> None:
    # Three literals, then a match of eight bytes at distance three, which reads its own output; then "!".
    block = bytes([0x34]) + b"abc" + bytes([3, 0]) + bytes([0x10]) + b"!"
    target = bytearray()
    lz4_block(block, target)
    assert bytes(target) == b"abcabcabcab!"
    header = b"\x04\x22\x4d\x18" + bytes([0x60, 0x40, 0])
    raw = (5 | 1 << 31).to_bytes(4, "little") + b"01234"
    frame = header + len(block).to_bytes(4, "little") + block + raw + bytes(4)
    assert lz4_frame(frame) == b"abcabcabcab!01234"
    with pytest.raises(ValueError, match="outside"):
        lz4_block(bytes([0x10]) + b"a" + bytes([2, 0]), bytearray())
    assert regroup_bytes(b"aeibfjcgdh") == b"abcdefghij"


FLOWS = {
    "repository": repository_flow,
    "transfer": transfer_flow,
    "datasets": datasets_flow,
    "models": models_flow,
    "restart": restart_flow,
}

if __name__ == "__main__":
    print(json.dumps(FLOWS[sys.argv[1]]()))
