"""One trajectory, from seed to score, through every room and the Hub, by the unmodified clients.

Like test_publish.py this file is also the script that runs in a subprocess against the test Hub.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, client_environment

EPISODES = {"train": 60, "validation": 10}


def walk(folder: Path) -> Any:
    """The chain; every step reads only what the step before left behind."""
    import evaluate
    from huggingface_hub import HfApi

    from env_servers.play import episode_starts, play, replay
    from env_servers.seeding import episode_seed
    from env_servers.tasks import load_task, make_policy
    from eval_harness.log import read_episodes
    from eval_harness.results import push_results
    from eval_harness.run import run
    from hub_datasets.build import build

    # From a seed by hand to the same trajectory as the generator's.
    from hub_datasets.generators import load_generator
    from hub_datasets.load import load_trajectories
    from hub_datasets.plan import make_plan
    from hub_datasets.publish import publish
    from hub_datasets.rows import from_row, to_row
    from trainers.bc import train_bc
    from trainers.load import load_policy
    from trainers.tokens import encode

    starts = episode_starts("maze", "train", range(EPISODES["train"]))
    played = play("maze", make_policy("maze", "behavior"), starts, stop=load_generator("maze").stop, slots=5)
    by_hand = sorted((p.trajectory for p in played), key=lambda t: t.index)
    assert by_hand[0].seed == episode_seed("maze", load_task("maze").spec.version, "train", 0)

    build(make_plan("maze", episodes=EPISODES), folder / "data", workers=1)
    published = publish(folder / "data", "lmrl/maze", tag="v1.0")
    loaded = list(load_trajectories("maze", revision="v1.0"))
    assert loaded == by_hand
    assert [from_row(to_row(t)) for t in loaded] == loaded

    done = train_bc(
        "maze", "maze", folder / "model", revision="v1.0", init="tiny", steps=40, push_to_hub="lmrl/maze-bc"
    )  # fmt: skip
    policy = load_policy("lmrl/maze-bc", task="maze", revision=done.revision)
    for trajectory in loaded:
        sequences = encode(trajectory, policy.renderer)
        assert sum(sum(s.action_mask) for s in sequences) == sum(
            len(policy.renderer.action_ids(turn.action)) for turn in trajectory.turns
        )
        assert sum(sum(s.rewards) for s in sequences) == trajectory.episode_return

    model = f"lmrl/maze-bc@{done.revision}"
    result = run("maze", model, episodes=12, starts_from="lmrl/maze@v1.0", output=folder / "run", progress=False)
    episodes = [logged.trajectory for logged in read_episodes(folder / "run")]
    assert all(replay(trajectory) is None for trajectory in episodes)
    assert [t.index for t in episodes] == list(range(12))
    # The metric as a Space of the Hub, the way `evaluate` finds community metrics.
    space = Path(__file__).parent.parent / "eval_harness" / "lmrl_score"
    HfApi().create_repo("lmrl/lmrl_score", repo_type="space", space_sdk="gradio")
    HfApi().upload_folder(
        repo_id="lmrl/lmrl_score", repo_type="space", folder_path=space, ignore_patterns="__pycache__/*"
    )
    metric = evaluate.load("lmrl/lmrl_score")
    scored = metric.compute(predictions=[to_row(t) for t in episodes], task="maze")
    pushed = push_results(result.scored, "lmrl/maze-bc")

    header = json.loads((folder / "run" / "header.json").read_text())
    record = json.loads((folder / "model" / "policy.json").read_text())
    return {
        "published": published.revision,
        "record": record,
        "header": header,
        "mean": [
            result.scored.summary.mean_return,
            scored["mean_return"],
            sum(t.episode_return for t in episodes) / 12,
        ],
        "model": done.revision,
        "pushed": pushed.revision,
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps(walk(Path(sys.argv[1]))))
    sys.exit()


def test_one_trajectory_from_seed_to_score(tmp_path: Path) -> None:
    with HubServer(tmp_path / "hub") as hub:
        environment = client_environment(hub, tmp_path / "home")
        done = subprocess.run(
            [sys.executable, __file__, str(tmp_path)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-5000:]
        saw = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("RESULT ")).removeprefix("RESULT "))
        card = hub.read_file("model", "lmrl/maze-bc", "README.md").decode()
        results = [
            path for path in hub.repository("model", "lmrl/maze-bc").commit_at("main").files if "eval_results" in path
        ]
    # Every record names what it was made from, down to the commit.
    assert saw["record"]["dataset"] == {"source": "lmrl/maze", "revision": saw["published"]}
    assert saw["record"]["task"] == "maze" and saw["record"]["task_version"] == "1.0"
    text = json.dumps(saw["header"])
    assert saw["model"] in text and saw["published"] in text
    assert saw["mean"][0] == pytest.approx(saw["mean"][1]) == pytest.approx(saw["mean"][2])
    assert results and "lmrl/maze" in card and f"{saw['mean'][0]:.2f}" in card
