"""README's and the guides' code runs as it stands, and what they say of commands is true."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import HubServer, client_environment
from warm import Warm

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Steps that need minutes, an account, a person or a GPU; the tests of their own rooms run them.
LEFT_OUT = ("make ", "pip ", "apt-get", "lmrl demo", "accelerate", "lmrl play maze\n", "git ", "hf auth", "python ")

# Options that make a training short, where it is not `--steps 3`.
SHORT = {
    "ppo": ["--rounds", "1", "--rollouts", "2"],
    "online-bc": ["--rounds", "1", "--rollouts", "4", "--steps-per-round", "1"],
    "online-ilql": ["--rounds", "1", "--rollouts", "4", "--steps-per-round", "1"],
    "grpo": ["--steps", "1", "--episodes", "2", "--num-generations", "2"],
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands() -> list[str]:
    """The shell commands of all pages, in order, each once; lines that end in a backslash are joined."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            found += [line for line in block.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return [line for line in dict.fromkeys(found) if not f"{line}\n".startswith(LEFT_OUT)]


def test_the_pages_commands_and_snippets_run_in_order(tmp_path: Path) -> None:
    """As alice, with `your-name` replaced, the dataset small and training short, everything else as written."""
    work = tmp_path / "work"
    work.mkdir()
    for name, word in (("train_data.jsonl", "crane"), ("eval_data.jsonl", "house")):  # of the original release
        sequence = [["Wordle:\n", 0.0], [" ".join(word) + "\n", 1.0], ["g g g g g\n", 0.0]]
        (work / name).write_text(json.dumps({"sequence": sequence, "reward": [0.0, 0.0], "done": True}))
    (work / "eval_harness").symlink_to(ROOT / "eval_harness")
    with HubServer(tmp_path / "hub") as hub, contextlib.ExitStack() as stack:
        environment = client_environment(hub, tmp_path / "home")
        environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        warm = stack.enter_context(Warm(environment, work))

        def run(command: list[str]) -> None:
            if command[0] in ("lmrl", sys.executable):
                status, output = warm.run(command)
            else:
                done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True)
                status, output = done.returncode, done.stdout + done.stderr
            assert status == 0, f"{shlex.join(command)}\n{output[-5000:]}"

        seen = 0
        for line in commands():
            words = shlex.split(line.replace("your-name", "alice"))
            if words[:3] == ["lmrl", "data", "build"]:
                words += [] if "--train" in words else ["--train", "60", "--validation", "20"]
            if words[:2] == ["lmrl", "train"]:
                words += SHORT.get(words[2], ["--steps", "3"])
            if words[:2] == ["lmrl", "eval"] and "--episodes" in words:
                words[words.index("--episodes") + 1] = "4"
            run(words)
            seen += 1
            if words[:4] == ["lmrl", "data", "publish", "data/maze"]:
                run(["lmrl", "data", "publish", words[3], "--to", "lmrl/maze", "--tag", "v1.0"])
        assert seen >= 8
        for page in PAGES:
            for number, code in enumerate(blocks(page, "python")):
                script = tmp_path / f"{page.stem}{number}.py"
                script.write_text(code)
                run([sys.executable, str(script)])


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_named_files_and_make_targets_exist(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)", text)) <= targets
    names = re.findall(
        r"`((?:env_servers|dataset_cards|hub_datasets|trainers|eval_harness|tests|benchmarks|docs)/[\w/.]+)`", text
    )
    missing = [name for name in names if not (ROOT / name).exists()]
    assert missing == []


def test_every_published_number_has_its_command_commit_and_machine() -> None:
    for page in (ROOT / "docs/results").glob("*.md"):
        text = page.read_text()
        for word in ("```sh", "Commit", "Machine"):
            assert word in text, f"{page}: {word} is missing"
