"""Saving and loading policies: folders here, the Hub in a subprocess against tests/hub_server.py.

This file is also that subprocess's script: `python test_load_policy.py <folder>` prints what it saw.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import HubServer, client_environment
from tiny_models import CHATML, chat_tokenizer, plain_tokenizer

from trainers.load import (
    PolicyRecord,
    find_policy,
    hash_policy,
    load_policy,
    make_repository,
    push_policy,
    read_record,
    save_policy,
)
from trainers.policy import Sampling
from trainers.scratch import new_model


def record(**changes: Any) -> PolicyRecord:
    values = {
        "algorithm": "bc",
        "task": "maze_po",
        "task_version": "1.0",
        "rendering": "plain",
        "memory": 3,
        "max_length": 200,
        "action_room": 11,
        "dataset": {"source": "lmrl/maze_po", "revision": "a" * 40},
    }
    return PolicyRecord(**{**values, **changes})


def saved(folder: Path, chat: bool = False, **changes: Any) -> Path:
    tokenizer = chat_tokenizer() if chat else plain_tokenizer()
    save_policy(folder, new_model("tiny", tokenizer, 256), tokenizer, record(**changes))
    return folder


def error_of(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["none", ""]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine")
    policy = load_policy(str(folder), task="maze_po", device="cpu", sampling=Sampling(temperature=0.5))
    assert (policy.name, policy.revision) == ("mine", hash_policy(folder))
    assert (policy.dtype, policy.device, policy.rendering) == ("float32", "cpu", "plain")
    assert policy.sampling == Sampling(temperature=0.5)
    made = policy.renderer
    assert (made.memory, made.max_length, made.action_room, policy.max_new_tokens) == (3, 200, 11, 11)
    assert read_record(folder) == record()
    expected = new_model("tiny", plain_tokenizer(), 256)
    assert all(torch.equal(a, b) for a, b in zip(policy.model.parameters(), expected.parameters(), strict=True))
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_failed_save_leaves_no_record(tmp_path: Path) -> None:
    folder, tokenizer = saved(tmp_path), plain_tokenizer()

    class Broken:
        def save_pretrained(self, aside: Path) -> None:
            (Path(aside) / "config.json").write_text("{}")
            raise OSError("disk full")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OSError, match="disk full"):
        save_policy(folder, Broken(), tokenizer, record(memory=0))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_hash_is_of_what_decides_on_the_words(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    before = hash_policy(folder)
    (folder / "README.md").write_text("a card")
    (folder / "run.json").write_text("{}")
    assert hash_policy(folder) == before
    config = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps({**config, "memory": 4}))
    assert hash_policy(folder) != before


@pytest.mark.parametrize("chat", [False, True])
def test_a_model_without_record_gets_the_rendering_that_suits_it(tmp_path: Path, chat: bool) -> None:
    folder = saved(tmp_path, chat)
    (folder / "policy.json").unlink()
    policy = load_policy(str(folder), task="maze", device="cpu")
    assert policy.rendering == ("chat" if chat else "plain")
    assert (policy.renderer.memory, policy.renderer.max_length) == (0, 256)
    if chat:
        assert load_policy(str(folder), task="maze", device="cpu", rendering="plain").rendering == "plain"
        assert policy.renderer.tokenizer.chat_template == CHATML


def test_a_policy_of_another_task_needs_a_yes(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    with pytest.raises(ValueError, match="trained on task 'maze_po', not 'maze'"):
        load_policy(str(folder), task="maze", device="cpu")
    policy = load_policy(str(folder), task="maze", device="cpu", allow_other_task=True)
    assert (policy.renderer.spec.id, policy.renderer.memory, policy.rendering) == ("maze", 0, "plain")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "causal"}, "did you mean 'causal_lm'"),
        ({"format": 3}, "format 3, and this lmrl reads up to 2"),
        ({"format": None}, "no format number"),
        ({"rendering": "plane"}, "did you mean 'plain'"),
    ],
)
def test_records_of_no_use_are_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = saved(tmp_path) / "policy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=reason):
        load_policy(str(tmp_path), task="maze_po", device="cpu")
    path.write_text("{not json")
    with pytest.raises(ValueError, match="is not JSON"):
        read_record(tmp_path)
    path.write_text('{"format": 1, "kind": "causal_lm"}')
    with pytest.raises(ValueError, match="lacks algorithm, task"):
        read_record(tmp_path)


def test_wrong_names(tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine")
    with pytest.raises(ValueError, match="did you mean 'maze'"):
        load_policy(str(folder), task="mase")
    with pytest.raises(ValueError, match="did you mean 'float32'"):
        load_policy(str(folder), task="maze_po", dtype="float23")
    with pytest.raises(ValueError, match="has no revision"):
        find_policy(str(folder), "main")
    with pytest.raises(FileNotFoundError, match=r"no folder './nothing'"):
        find_policy("./nothing")
    with pytest.raises(FileNotFoundError, match="holds no model"):
        find_policy(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE is set"):
        find_policy("acme/nothing")
    with pytest.raises(FileNotFoundError, match="holds no policy"):
        push_policy(tmp_path, "acme/nothing")
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ValueError, match="no causal language model"):
        load_policy(str(folder), task="maze_po", device="cpu")


# The Hub ----------------------------------------------------------------------------------------------------------


def hub_flow(folder: Path) -> dict[str, Any]:
    first = saved(folder / "mine")
    (first / "run.json").write_text("{}")
    make_repository("alice/policy")
    old = push_policy(first, "alice/policy")
    new = push_policy(saved(folder / "mine", memory=5), "alice/policy")
    same = push_policy(first, "alice/policy")
    newest = load_policy("alice/policy", task="maze_po", device="cpu")
    pinned = load_policy(f"alice/policy@{old}", task="maze_po", device="cpu")
    named = load_policy("alice/policy", revision=old[:40], task="maze_po", device="cpu")
    make_repository("alice/hidden", private=True)
    push_policy(first, "alice/hidden")
    return {
        "shas": [old, new, same],
        "newest": [newest.name, newest.revision, newest.renderer.memory],
        "pinned": [pinned.name, pinned.revision, pinned.renderer.memory],
        "named": named.revision,
        "hidden": load_policy("alice/hidden", task="maze_po", device="cpu").renderer.memory,
        "hidden_for_nobody": error_of(lambda: find_policy("alice/hidden", token=False)),
        "hidden_for_bob": error_of(lambda: find_policy("alice/hidden", token="hf_bob")),
        "gated": error_of(lambda: find_policy("carol/gated")),
        "missing": error_of(lambda: find_policy("alice/nothing")),
        "no_revision": error_of(lambda: find_policy("alice/policy", "v9")),
        "wrong_token": error_of(lambda: find_policy("alice/policy", token="hf_wrong")),
        "no_model": error_of(lambda: find_policy("carol/empty")),
        "read_only": error_of(lambda: make_repository("alice/other", token="hf_alice_ro")),
        "no_token": error_of(lambda: make_repository("alice/other", token=False)),
    }


if __name__ == "__main__":
    print("SAW " + json.dumps(hub_flow(Path(sys.argv[1]))))
    sys.exit()


def test_policies_on_the_hub(tmp_path: Path) -> None:
    with HubServer(tmp_path / "hub") as hub:
        hub.upload("model", "carol/gated", {"config.json": b"{}", "model.safetensors": b"x"})
        hub.configure("model", "carol/gated", gated="manual")
        hub.upload("model", "carol/empty", {"README.md": b"nothing here"})
        done = subprocess.run(
            [sys.executable, __file__, str(tmp_path)],
            env=client_environment(hub, tmp_path / "home"),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        files = sorted(hub.repository("model", "alice/policy").commit_at("main").files)
    saw = json.loads(next(x for x in done.stdout.splitlines() if x.startswith("SAW ")).removeprefix("SAW "))
    old, new, same = saw["shas"]
    assert old != new and same == new  # the same content again makes no commit
    assert saw["newest"] == [f"alice/policy@{new[:8]}", new, 5]
    assert saw["pinned"] == [f"alice/policy@{old[:8]}", old, 3] and saw["named"] == old
    assert {"policy.json", "model.safetensors", "tokenizer.json", "config.json"} <= set(files)
    assert "run.json" not in files
    assert saw["hidden"] == 5
    for case, kind, words in [
        ("hidden_for_nobody", "FileNotFoundError", "model alice/hidden does not exist, or it is private"),
        ("hidden_for_bob", "FileNotFoundError", "model alice/hidden does not exist, or it is private"),
        ("gated", "PermissionError", "model carol/gated is gated"),
        ("missing", "FileNotFoundError", "model alice/nothing does not exist"),
        ("no_revision", "FileNotFoundError", "has no revision 'v9'"),
        ("wrong_token", "PermissionError", "does not know the token"),
        ("no_model", "FileNotFoundError", "has no config.json"),
        ("read_only", "PermissionError", "your token may not do this"),
        ("no_token", "PermissionError", "token"),
    ]:
        assert saw[case][0] == kind and words in saw[case][1], (case, saw[case])


def test_a_tokenizer_that_would_be_read_back_as_another_is_refused(tmp_path: Path) -> None:
    """Qwen's class has its own rule of splitting, whatever the saved file says."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = plain_tokenizer()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), intermediate_size=16, **sizes))
    record = PolicyRecord(
        algorithm="bc", task="maze", task_version="1.0", rendering="plain", memory=0, max_length=64, action_room=8,
        dataset={"source": "lmrl/maze", "revision": None},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"read back as Qwen2Tokenizer.* and gives other tokens"):
        save_policy(tmp_path / "policy", model, tokenizer, record)
    assert not list((tmp_path / "policy").iterdir()), "nothing half-written"
