"""`inspect eval lmrl/...`: Inspect finds the tasks by the package's entry point; its episodes are those of `play`."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from inspect_ai import eval as inspect_eval
from inspect_ai.log import read_eval_log
from inspect_ai.model import Model, ModelOutput, ModelUsage, get_model

from env_servers.play import episode_starts, play
from env_servers.tasks import make_policy, task_ids

EPISODES = 3
POLICIES = {"maze": "optimal", "twenty_questions": "naive", "wordle": "random"}
BIN = Path(sys.executable).parent


def saying(words: Iterable[str]) -> Model:
    """A model that says one after the other; it tells its usage, which Inspect would fetch a tokenizer for."""
    given = iter(words)

    def answer(*_: Any) -> ModelOutput:
        output = ModelOutput.from_content("stand-in", next(given))
        output.usage = ModelUsage()
        return output

    return get_model("mockllm/model", custom_outputs=answer)


class Endpoint(BaseHTTPRequestHandler):
    """Chat completions, always with the same words."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        choice = {"index": 0, "message": {"role": "assistant", "content": "move up"}, "finish_reason": "stop"}
        about = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        body = json.dumps({**about, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def command_plays() -> None:
    """The command itself, with a model behind an endpoint that goes up for ever."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    own = {"STAND_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "STAND_API_KEY": "none"}
    with tempfile.TemporaryDirectory() as logs:
        words = ["eval", "lmrl/maze", "--model", "openai-api/stand/m", "-T", "episodes=2", "--log-dir", logs]
        done = subprocess.run(
            [str(BIN / "inspect"), *words, "--display", "plain"], capture_output=True, text=True, cwd=logs,
            env={**os.environ, **own},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        [path] = Path(logs).glob("*.eval")
        log = read_eval_log(str(path))
    server.shutdown()
    assert (log.status, log.eval.task, len(log.samples or [])) == ("success", "lmrl/maze", 2), log.eval
    scores: list[Any] = [sample.scores["episode_score"].value for sample in log.samples or [] if sample.scores]
    assert [(score["success"], score["length"], score["invalid"]) for score in scores] == [(0, 101, 0)] * 2, scores


def episodes_are_those_of_play() -> None:
    """What a scripted policy says, said by a model: return, length and success of each episode are those of `play`."""
    for task, policy in POLICIES.items():
        starts = list(episode_starts(task, "test", range(EPISODES)))
        expected = {p.trajectory.index: p.trajectory for p in play(task, make_policy(task, policy), starts)}
        words = [turn.action for index in sorted(expected) for turn in expected[index].turns]
        with tempfile.TemporaryDirectory() as logs:
            [log] = inspect_eval(
                f"lmrl/{task}", model=saying(words), task_args={"episodes": EPISODES}, log_dir=logs, max_samples=1,
                display="none",
            )  # fmt: skip
            assert log.status == "success", log.error
            for sample in log.samples or []:
                episode = expected[sample.metadata["index"]]
                assert sample.scores is not None
                score: Any = sample.scores["episode_score"].value
                told = (score["return"], score["success"], score["length"])
                assert told == (episode.episode_return, float(episode.success), episode.num_turns), (
                    task,
                    told,
                    episode,
                )


def every_task_plays() -> None:
    """An episode of each task, with a model that always says the same, and an opponent that needs no engine."""
    for task in task_ids():
        own = {"opponent": "random"} if task.startswith("chess") else {}
        with tempfile.TemporaryDirectory() as logs:
            [log] = inspect_eval(
                f"lmrl/{task}",
                model=saying(itertools.repeat("a")),
                task_args={"episodes": 1, **own},
                log_dir=logs,
                display="none",
            )
            assert log.status == "success" and log.results is not None, (task, log.error)
            assert log.results.completed_samples == 1, (task, [sample.error for sample in log.samples or []])


def inspect_plays() -> None:
    """All of the above."""
    every_task_plays()
    command_plays()
    episodes_are_those_of_play()


if __name__ == "__main__":
    inspect_plays()
