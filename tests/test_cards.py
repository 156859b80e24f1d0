"""Cards: their YAML is what datasets reads, their numbers are the manifest's, their snippets run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_server import DEFAULT_TOKENS, HubServer, client_environment

from dataset_cards.render import COLUMNS, edited_by_hand, prose, render_card, size_category
from env_servers.tasks import task_ids
from hub_datasets.build import build
from hub_datasets.manifest import read_manifests
from hub_datasets.plan import make_plan
from hub_datasets.rows import EPISODE_FEATURES

# A tiny model of the kind and name that the card's TRL snippet asks for, so that the snippet runs as it stands.
TINY_QWEN = """
import sys
from importlib.resources import files
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
tokenizer = Tokenizer(models.BPE(vocab={s: n for n, s in enumerate(symbols)}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
                               additional_special_tokens=special)
fast.chat_template = files("trl").joinpath("chat_templates/qwen3.jinja").read_text()
config = Qwen3Config(vocab_size=len(fast), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=4096)
Qwen3ForCausalLM(config).push_to_hub("Qwen/Qwen3-0.6B")
fast.push_to_hub("Qwen/Qwen3-0.6B")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("card")
    build(make_plan("maze", episodes={"train": 12, "validation": 4}), path, workers=1)
    build(make_plan("maze", config="expert", policy="optimal", episodes={"train": 3}), path, workers=1)
    return path


def metadata(card: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return loaded


def test_metadata(folder: Path) -> None:
    yaml_block = metadata(render_card("lmrl/maze", read_manifests(folder)))
    assert yaml_block["license"] == "mit"
    assert yaml_block["size_categories"] == ["n<1K"]
    assert yaml_block["task_categories"] == ["reinforcement-learning", "text-generation"]
    assert [(c["config_name"], c.get("default", False)) for c in yaml_block["configs"]] == [
        ("episodes", True),
        ("expert", False),
        ("tasks", False),
    ]
    by_name = {info["config_name"]: info for info in yaml_block["dataset_info"]}
    assert [split["num_examples"] for split in by_name["episodes"]["splits"]] == [12, 4]
    assert {feature["name"] for feature in by_name["episodes"]["features"]} == set(EPISODE_FEATURES)
    sizes = [path.stat().st_size for path in (folder / "episodes").glob("*.parquet")]
    assert by_name["episodes"]["download_size"] == sum(sizes)
    assert by_name["tasks"]["splits"][0]["num_examples"] == 800


def test_body(folder: Path) -> None:
    manifests = read_manifests(folder)
    card = render_card("me/mine", manifests)
    assert 'load_dataset("me/mine"' in card and "lmrl/maze" not in card
    assert "https://arxiv.org/abs/2311.18232" in card
    assert f"| `episodes` all | 16 | {manifests[0]['summary']['mean_return']:.2f} |" in card
    assert "| the paper's data (Table 1) | 1,240 | -19.70 | 24.50 |" in card
    assert "| `optimal` | 800 | -6.84 |" in card
    assert "![Returns of expert](expert/returns.png)" in card
    assert set(COLUMNS) == set(EPISODE_FEATURES), "every column is explained"
    assert (folder / "README.md").read_text() == render_card("lmrl/maze", manifests)


def test_histogram_is_a_picture(folder: Path) -> None:
    picture = (folder / "episodes/returns.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(picture[a : a + 4], "big") for a in (16, 20))
    assert (width, height) == (960, 450)


@pytest.mark.parametrize("task", task_ids())
def test_every_task_has_prose(task: str) -> None:
    words = prose(task)
    for heading in ("## The task", "## How the episodes were collected", "## Limits"):
        assert heading in words


def test_edits_by_hand_are_noticed(folder: Path) -> None:
    card = render_card("lmrl/maze", read_manifests(folder))
    assert not edited_by_hand(card)
    assert edited_by_hand(card.replace("## Limits", "## Known limits"))
    assert edited_by_hand(card + "\nMy words\n")
    assert edited_by_hand("# A card of somebody else\n")


@pytest.mark.parametrize(
    ("episodes", "category"), [(999, "n<1K"), (1000, "1K<n<10K"), (100_000, "100K<n<1M"), (1_100_000, "1M<n<10M")]
)
def test_size_categories(episodes: int, category: str) -> None:
    assert size_category(episodes) == category


def test_two_tasks_in_one_repository_are_refused(folder: Path) -> None:
    manifests = [dict(m) for m in read_manifests(folder)]
    manifests[1]["task"] = "maze_po"
    with pytest.raises(ValueError, match="a repository holds one task, got maze, maze_po"):
        render_card("lmrl/maze", manifests)


def test_the_snippets_run_as_they_stand(folder: Path, tmp_path: Path) -> None:
    """Against the test Hub, with the dataset published and a tiny model under the name that the snippet uses."""
    card = (folder / "README.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    commands = [line for block in re.findall(r"```sh\n(.*?)```", card, re.DOTALL) for line in block.splitlines()]
    assert len(snippets) == 3 and len(commands) == 2
    tokens = {**DEFAULT_TOKENS, "hf_qwen": {"name": "maker", "orgs": ["Qwen"], "role": "write"}}
    with HubServer(tmp_path / "hub", tokens=tokens) as hub:
        environment = client_environment(hub, tmp_path / "home")
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

        def run(code: str, **more: str) -> str:
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment | more, cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout

        run(TINY_QWEN, HF_TOKEN="hf_qwen")
        run(
            "from pathlib import Path\nfrom hub_datasets.publish import publish\n"
            f"publish(Path({str(folder)!r}), 'lmrl/maze')"
        )
        output = run("\n".join(snippets))
        assert "user: The goal is at position 8, 6." in output
        assert "rewards [-1.0" in output or "rewards [0.0" in output
        evaluation = subprocess.run(
            [*commands[1].split(), "--episodes", "5"], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert evaluation.returncode == 0, evaluation.stderr
