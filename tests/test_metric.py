"""The `evaluate` metric: loaded by path, from a copy outside the checkout, and equal to the scores."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from env_servers.scores import normalize, summarize
from env_servers.tasks import load_task
from eval_harness.log import read_episodes, read_rows
from eval_harness.run import run

SPACE = Path(__file__).parent.parent / "eval_harness" / "lmrl_score"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metric") / "r"
    return run("maze", "scripted:random", episodes=40, output=path, progress=False).folder


@pytest.fixture(scope="module")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The metric from a copy of its Space."""
    import evaluate

    home = tmp_path_factory.mktemp("space")
    shutil.copytree(SPACE, home / "lmrl_score", ignore=shutil.ignore_patterns("__pycache__"))
    return evaluate.load(str(home / "lmrl_score"), cache_dir=str(home / "cache"))


def test_the_metric_is_summarize(metric: Any, folder: Path) -> None:
    summary = summarize(episode.trajectory for episode in read_episodes(folder))
    expected = {name: list(v) if isinstance(v, tuple) else v for name, v in summary._asdict().items()}
    rows = list(read_rows(folder))
    assert metric.compute(predictions=rows) == expected
    scales = load_task("maze").spec.normalisations
    normalized = {name: normalize(summary.mean_return, scale) for name, scale in scales.items()}
    assert metric.compute(predictions=rows, task="maze") == {**expected, "normalized": normalized}


def test_rows_datasets_columns_and_batches_give_the_same(metric: Any, folder: Path) -> None:
    from datasets import Dataset

    from hub_datasets.rows import EPISODE_FEATURES

    rows = list(read_rows(folder))
    expected = metric.compute(predictions=rows, task="maze")
    dataset = Dataset.from_list(rows, features=EPISODE_FEATURES)
    assert metric.compute(predictions=dataset, task="maze") == expected
    assert metric.compute(predictions=dataset[:], task="maze") == expected
    for start in range(0, len(rows), 16):
        metric.add_batch(predictions=rows[start : start + 16])
    assert metric.compute(task="maze") == expected
    for row in rows:
        metric.add(prediction=row)
    assert metric.compute(task="maze") == expected


def test_one_episode_and_wrong_ones(metric: Any) -> None:
    episode = {"episode_return": -7.0, "success": True, "num_turns": 8, "num_invalid": 2}
    scores = metric.compute(predictions=[episode], task="maze")
    assert (scores["mean_return"], scores["success_rate"], scores["invalid_rate"]) == (-7.0, 1.0, 0.25)
    assert math.isnan(scores["return_interval"][0])
    with pytest.raises(ValueError, match="an episode lacks num_turns, num_invalid; it needs episode_return, success,"):
        metric.compute(predictions=[{"episode_return": 1.0, "success": True}])
    with pytest.raises(ValueError, match="unknown task 'mase'; did you mean 'maze'"):
        metric.compute(predictions=[episode], task="mase")


def test_it_loads_from_the_checkout_by_path() -> None:
    import evaluate

    metric = evaluate.load(str(SPACE))
    assert metric.name == "lmrl_score"
    assert set(metric.features["predictions"]) == {"episode_return", "success", "num_turns", "num_invalid"}


def test_the_spaces_card_and_page(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    front = yaml.safe_load((SPACE / "README.md").read_text().split("---")[1])
    assert front["sdk"] == "gradio" and front["app_file"] == "app.py" and front["tags"] == ["evaluate", "metric"]
    assert len(front["title"]) <= 60 and (SPACE / front["app_file"]).exists()
    assert "lmrl" in (SPACE / "requirements.txt").read_text().split()
    monkeypatch.syspath_prepend(str(SPACE))
    import app  # type: ignore[import-not-found]

    scores = app.score_text(app.EXAMPLE, " maze ")
    assert scores["mean_return"] == -55.5 and scores["episodes"] == 2
    json.dumps(scores)
    assert "unknown task" in app.score_text(app.EXAMPLE, "mase")["error"]
    for text in ("[", "[]", "7", "[7]", '[{"success": true}]'):
        assert set(app.score_text(text, "")) == {"error"}
