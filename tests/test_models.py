"""Models by name: what is read from it, what is loaded, what identifies it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eval_harness.log import read_episodes, read_header
from eval_harness.models import Decoding, ModelRef, load, parse_model
from eval_harness.run import run


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("scripted:optimal", ModelRef("optimal", scripted=True)),
        ("org/model", ModelRef("org/model")),
        ("org/model@v1.0", ModelRef("org/model", "v1.0")),
        ("gpt2", ModelRef("gpt2")),
        ("org/model@refs/pr/1", ModelRef("org/model", "refs/pr/1")),
    ],
)
def test_a_name_is_read_and_written_back(text: str, ref: ModelRef) -> None:
    assert parse_model(text) == ref
    assert str(ref) == text


def test_a_folder_may_have_an_at_in_its_name_and_no_revision(tmp_path: Path) -> None:
    folder = tmp_path / "model@home"
    folder.mkdir()
    assert parse_model(str(folder)) == ModelRef(str(folder))
    with pytest.raises(ValueError, match="is a folder, so it has no revision 'v1'"):
        parse_model(f"{tmp_path}@v1")


@pytest.mark.parametrize("text", ["", "scripted:", "@v1", "org/model@"])
def test_an_empty_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: scripted:<policy>, a folder, or a repository"):
        parse_model(text)


def test_a_scripted_policy_and_its_identity() -> None:
    loaded = load(parse_model("scripted:optimal"), "maze", Decoding(temperature=0.5))
    assert loaded.policy.name == "optimal"
    assert loaded.identity == {"kind": "scripted", "name": "scripted:optimal", "revision": None}
    with pytest.raises(ValueError, match=r"unknown scripted policy of task 'maze' 'optimum'; did you mean 'optimal'\?"):
        load(parse_model("scripted:optimum"), "maze")


def test_scripted_evaluation_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from eval_harness.run import run\n"
        "import eval_harness.report, eval_harness.results\n"
        "run('maze', 'scripted:optimal', episodes=1, output=sys.argv[1], progress=False)\n"
        "assert not {'torch', 'transformers', 'evaluate'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "r")], check=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 with random weights and a tokenizer of the maze's words, in a folder."""
    from trainers.scratch import new_model, train_tokenizer

    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train_tokenizer(["move up", "move down", "The goal is at position"], vocab_size=300)
    new_model("tiny", tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_language_model_is_identified_played_and_logged(model: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"episodes": 1, "batch": 2, "max_new_tokens": 2, "progress": False, "device": "cpu"}
    result = run("maze", str(model), output=tmp_path / "r", **settings)
    header = read_header(result.folder)
    assert header.model["kind"] == "language model"
    assert header.model["name"] == str(model)
    assert len(header.model["revision"]) == 64
    assert (header.model["dtype"], header.model["device"], header.model["rendering"]) == ("float32", "cpu", "plain")
    assert header.model["sampling"] == {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 2}
    assert {"torch", "transformers"} <= set(header.versions)
    for trajectory, actions in read_episodes(result.folder):
        assert all(action.tokens is not None and 1 <= action.tokens <= 2 for action in actions)
        assert {action.finish_reason for action in actions} <= {"stop", "length"}
        assert [action.legal for action in actions].count(False) == trajectory.num_invalid
    greedy = {**settings, "temperature": 0.0, "batch": 1}
    with pytest.raises(ValueError) as refused:
        run("maze", str(model), output=tmp_path / "r", **greedy)
    assert "model.sampling.temperature: 1.0 in the log, 0.0 now" in str(refused.value)
    assert "batch: 2 in the log, 1 now" in str(refused.value)
    # A checkpoint written over in place is another model.
    from transformers import AutoTokenizer

    from trainers.scratch import new_model

    new_model("tiny", AutoTokenizer.from_pretrained(model), seed=1).save_pretrained(model)
    with pytest.raises(ValueError, match=r"model\.revision: "):
        run("maze", str(model), output=tmp_path / "r", **settings)


def test_a_model_that_is_not_there_leaves_no_log(tmp_path: Path) -> None:
    with pytest.raises((FileNotFoundError, OSError)):
        run("maze", str(tmp_path / "nothing"), output=tmp_path / "r", episodes=1)
    assert not (tmp_path / "r").exists()
