"""Engines that write in place of the model: the same ids and log-probabilities, by a server's answers and by pages."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import threading
import types
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ilql import TOKENIZER, language_model

from env_servers.play import episode_starts, play
from env_servers.policy import Context
from env_servers.tasks import load_task, make_env
from trainers.adapters import LoraSettings, add_adapters
from trainers.generators import (
    Completions,
    ContinuousBatching,
    ServedWeights,
    check_choice,
    make_engine,
    served_weights,
)
from trainers.load import PolicyRecord, save_policy
from trainers.online import OnlinePolicy, Rollouts, collect
from trainers.policy import LanguageModelPolicy, Sampling
from trainers.ppo_training import PPORun, train_ppo
from trainers.rollouts import sampled_sequences

torch.set_num_threads(1)
MAZE = load_task("maze").spec
KEY = "sk-very-secret-key"


def policy(model: Any = None, **sampling: Any) -> LanguageModelPolicy:
    settings = Sampling(**{"max_new_tokens": 4, **sampling})
    model = model or language_model().eval()
    return LanguageModelPolicy(model, TOKENIZER, MAZE, name="small", sampling=settings, max_length=160)


def contexts(number: int = 5, seed: int = 0) -> list[Context]:
    """First moments of episodes, with generators of their own."""
    [start] = episode_starts("maze", "train", [0])
    said = make_env("maze", {}).reset(start.seed)
    return [Context(MAZE, [], said[: len(said) - 7 * n], random.Random(f"{seed}-{n}"), {}) for n in range(number)]


def true_logprobs(model: Any, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0] / temperature
    rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return rows.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


class Server:
    """vLLM's part of the completions protocol and of TRL's transfer of weights, with a tiny model behind it.

    Attributes:
        spoil: Changes a choice before it is sent.
        calls: Paths, in the order of their requests.
        received: What the last update of weights is to hold; `sent` is where they arrive.
    """

    def __init__(self, model: Any, names: tuple[str, ...] = ("tiny",)) -> None:
        self.model, self.names = model.eval(), names
        self.spoil: Callable[[dict[str, Any]], None] = lambda choice: None
        self.status, self.config = 200, types.SimpleNamespace(transfer={"backend": "nccl"})
        self.calls: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.sent: queue.Queue[tuple[str, torch.Tensor]] = queue.Queue()
        self.lock = threading.Lock()
        self.busiest = self.busy = 0
        self.together = threading.Barrier(1)
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer({})

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers.get("content-length") or 0))
                self.answer(json.loads(text or b"{}"))

            def answer(self, body: dict[str, Any]) -> None:
                path = self.path.partition("?")[0]
                with server.lock:
                    server.calls.append(path)
                    server.keys.add(self.headers.get("authorization"))
                status, found = server.answer(path, body)
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.url = f"{self.root}/v1"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/completions":
            return self.complete(body)
        if path == "/update_weights":
            state = dict(self.model.named_parameters())
            wanted = body["update_info"]
            for name, dtype, shape in zip(*(wanted[k] for k in ("names", "dtype_names", "shapes")), strict=True):
                arrived, tensor = self.sent.get(timeout=20)
                assert (arrived, str(tensor.dtype), list(tensor.shape)) == (name, f"torch.{dtype}", shape)
                state[name].data.copy_(tensor)
        return 200, {
            "/v1/models": {"object": "list", "data": [{"id": name, "object": "model"} for name in self.names]},
            "/server_info": {"vllm_config": {"weight_transfer_config": self.config.transfer}},
            "/get_world_size": {"world_size": 1},
            "/reset_prefix_cache": {"success": True},
        }.get(path, {})

    def complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.lock:
            self.requests.append(body)
        self.together.wait(20)
        if self.status != 200:
            return self.status, {"error": {"message": f"no, {KEY}"}}
        prompt, draws = body["prompt"], torch.Generator().manual_seed(body["seed"])
        tokens, logprobs = list[int](), list[float]()
        with self.lock, torch.no_grad():
            while len(tokens) < body["max_tokens"] and not (tokens and tokens[-1] in body["stop_token_ids"]):
                logits = self.model(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
                each = (logits / (body["temperature"] or 1.0)).log_softmax(-1)
                drawn = torch.multinomial(each.exp(), 1, generator=draws) if body["temperature"] else each.argmax()
                tokens.append(int(drawn))
                logprobs.append(each[tokens[-1]].item())
        stopped = tokens[-1] in body["stop_token_ids"]
        choice = {
            "index": 0,
            "text": TOKENIZER.decode(tokens),
            "finish_reason": "stop" if stopped else "length",
            "logprobs": {"tokens": [f"token_id:{t}" for t in tokens], "token_logprobs": logprobs, "text_offset": []},
            "token_ids": tokens,
            "prompt_token_ids": prompt,
        }
        self.spoil(choice)
        return 200, {"id": "1", "object": "text_completion", "created": 1, "model": body["model"], "choices": [choice]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made = Server(language_model())
    yield made
    made.close()


def test_a_server_that_takes_the_likeliest_tokens_writes_what_the_model_writes(server: Server) -> None:
    own, served = policy(temperature=0.0), policy(temperature=0.0)
    served.engine = Completions(served, server.url)
    assert served.act(contexts()) == own.act(contexts())
    assert len({action.prompt_ids for action in own.act(contexts())}) == 5


def test_a_server_samples_by_seeds_of_the_episodes_and_tells_how_likely(server: Server) -> None:
    played = policy(temperature=0.7)
    played.engine = Completions(played, server.url, concurrency=5)
    server.together = threading.Barrier(5)  # answers none before all five are there
    actions = played.act(contexts())
    server.together = threading.Barrier(1)
    for action in actions:
        assert action.prompt_ids and action.token_ids and action.logprobs
        assert action.text == played.renderer.action_text(action.token_ids)
        assert action.finish_reason == ("stop" if action.token_ids[-1] in played.stop_ids else "length")
        told = true_logprobs(played.model, action.prompt_ids, action.token_ids, 0.7)
        assert action.logprobs == pytest.approx(told, abs=1e-5)
    assert len({action.token_ids for action in actions}) > 1
    alone = [action for context in contexts() for action in played.act([context])]
    assert [action.token_ids for action in alone] == [action.token_ids for action in actions]
    assert [a.token_ids for a in played.act(contexts(seed=1))] != [a.token_ids for a in actions]
    request = server.requests[0]
    assert {name: request[name] for name in ("model", "max_tokens", "temperature", "top_p", "top_k", "logprobs")} == {
        "model": "tiny", "max_tokens": 4, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "logprobs": 0,
    }  # fmt: skip
    assert request["stop_token_ids"] == sorted(played.stop_ids) and request["return_token_ids"] is True
    assert request["repetition_penalty"] == 1.0 and server.keys == {f"Bearer {KEY}"}


def lose(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda choice: choice.update({name: None})


def end_unseen(choice: dict[str, Any]) -> None:
    """As a server that keeps the token to itself that it ended with."""
    choice["token_ids"], choice["finish_reason"] = [7, 7], "stop"
    choice["logprobs"]["token_logprobs"] = [-1.0, -1.0]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lose("token_ids"), r"without token ids.*return_token_ids"),
        (lose("logprobs"), "without log-probabilities"),
        (lambda choice: choice["prompt_token_ids"].pop(), "neither cut prompts"),
        (lambda choice: choice["token_ids"].append(7), "token ids with"),
        (end_unseen, "did not tell the token that it ended with"),
    ],
)
def test_a_server_that_does_not_tell_what_was_sampled_is_refused(server: Server, spoil: Any, told: str) -> None:
    server.spoil = spoil
    played = policy()
    played.engine = Completions(played, server.url)
    with pytest.raises(ValueError, match=told):
        played.act(contexts(1))


def test_a_server_that_refuses_ends_the_run_without_telling_the_key(server: Server) -> None:
    server.status = 500
    played = policy()
    played.engine = Completions(played, server.url, retries=0)
    with pytest.raises(ConnectionError, match="the same command goes on") as refused:
        played.act(contexts(1))
    assert "no, ***" in str(refused.value) and KEY not in str(refused.value)


def test_a_server_of_several_models_has_to_be_told_which(server: Server) -> None:
    server.names = ("one", "two")
    played = policy()
    played.engine = Completions(played, server.url)
    with pytest.raises(ValueError, match=rf"serves one, two; say which one, as in NAME@{server.url}"):
        played.act(contexts(1))
    played.engine = Completions(played, server.url, "two")
    played.act(contexts(1))
    assert [request["model"] for request in server.requests] == ["two"]


# Weights


@pytest.fixture
def nccl(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """TRL's own client, with a vLLM of which only the way of the tensors is there, and that is a queue."""
    from trl.generation import vllm_client as module

    class Transfer:
        @staticmethod
        def trainer_init(info: dict[str, Any]) -> Any:
            assert info["world_size"] == 2
            return types.SimpleNamespace(group=types.SimpleNamespace(store=None, socket=None))

        @staticmethod
        def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
            for name, tensor in iterator:
                server.sent.put((name, tensor.clone()))

    monkeypatch.setattr(module, "is_vllm_available", lambda *args, **kwargs: True)
    monkeypatch.setattr(module, "_HAS_STATEFUL_TRAINER_ENGINE", False)
    monkeypatch.setattr(module, "get_ip", lambda: "127.0.0.1", raising=False)
    monkeypatch.setattr(module, "NCCLWeightTransferEngine", Transfer, raising=False)
    arguments = lambda **options: types.SimpleNamespace(**options)  # noqa: E731
    monkeypatch.setattr(module, "NCCLTrainerSendWeightsArgs", arguments, raising=False)
    return server


def test_a_server_gets_the_weights_before_each_round(nccl: Server, tmp_path: Path) -> None:
    model = language_model().eval()
    for parameter in nccl.model.parameters():
        parameter.data.mul_(0.5)  # as it was begun, long ago
    greedy = {"name": "small", "sampling": Sampling(0.0, max_new_tokens=4), "max_length": 160, "max_episode_tokens": 12}
    own, served = (OnlinePolicy(model, TOKENIZER, MAZE, **greedy) for _ in range(2))
    weights = ServedWeights(nccl.url, model, "cuda")
    served.engine = Completions(served, nccl.url, send=weights.send)
    for number in range(2):
        torch.manual_seed(number)
        for parameter in model.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
        rounds = []
        for name, player in (("own", own), ("served", served)):
            player.begin(number)
            rollouts = Rollouts("maze", 2, 2)
            rounds.append(collect(rollouts, player, number, tmp_path / f"{name}-{number}.jsonl").played)
        assert rounds[0] == rounds[1] and len(rounds[0]) == 2
    assert {name for name in nccl.calls if name != "/v1/completions"} == {
        "/health", "/v1/models", "/server_info", "/get_world_size", "/init_weight_transfer_engine",
        "/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache",
    }  # fmt: skip
    updates = [number for number, name in enumerate(nccl.calls) if name == "/update_weights"]
    asked = [number for number, name in enumerate(nccl.calls) if name == "/v1/completions"]
    assert len(updates) == 2 and updates[0] < asked[0] and nccl.calls.count("/init_weight_transfer_engine") == 1
    assert any(number < updates[1] for number in asked) and any(number > updates[1] for number in asked)


def test_a_server_without_the_means_says_how_to_begin_it(nccl: Server) -> None:
    nccl.config.transfer = None
    with pytest.raises(ConnectionError, match=r"takes no weights.*VLLM_SERVER_DEV_MODE=1 vllm serve"):
        ServedWeights(nccl.url, language_model(), "cuda").send()
    with pytest.raises(ValueError, match="between CUDA devices; on this machine take --generation model or continuous"):
        ServedWeights(nccl.url, language_model(), "cpu").send()


def test_without_vllm_weights_cannot_be_sent(server: Server) -> None:
    with pytest.raises(ModuleNotFoundError, match="pip install vllm"):
        ServedWeights(server.url, language_model(), "cuda").send()


def test_adapters_are_sent_as_weights() -> None:
    torch.manual_seed(3)
    model, plain = language_model().eval(), language_model()
    add_adapters(model.transformer, LoraSettings(2, 4.0))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_()
    ids = torch.tensor([[5, 6, 7, 8]])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sent = dict(served_weights(model))
    assert sent.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(sent, strict=False)
    with torch.no_grad():
        assert torch.allclose(plain.eval()(ids).logits, model(ids).logits, atol=1e-4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# Continuous batching


def test_continuous_batching_takes_the_likeliest_tokens_and_follows_the_weights() -> None:
    model = language_model().eval()
    own, paged = policy(model, temperature=0.0), policy(model, temperature=0.0)
    paged.engine = ContinuousBatching(paged)
    first = own.act(contexts())
    assert paged.act(contexts()) == first
    # Of the same prompts, whose pages it still has, after a step of training that nobody told it of.
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    second = own.act(contexts())
    assert second != first and paged.act(contexts()) == second
    assert paged.act([]) == []


def test_continuous_batching_samples_by_the_episodes_generators_alone() -> None:
    model = language_model().eval()
    model.generation_config.top_k, model.generation_config.repetition_penalty = 1, 5.0  # not to be heard of
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attention, dtype = model.config._attn_implementation, model.dtype
    played = policy(model, temperature=0.7)
    played.engine = ContinuousBatching(played)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    actions = played.act(contexts(8))
    assert torch.equal(state, torch.get_rng_state())
    assert len({action.token_ids for action in actions}) > 1
    for action in actions:
        told = true_logprobs(model, action.prompt_ids, action.token_ids, 0.7)
        assert action.logprobs == pytest.approx(told, abs=1e-4)
        assert action.finish_reason == ("stop" if action.token_ids[-1] in played.stop_ids else "length")
    torch.manual_seed(6)
    again = policy(model, temperature=0.7)
    again.engine = ContinuousBatching(again)
    assert [a.token_ids for a in again.act(contexts(8))] == [a.token_ids for a in actions]
    assert [a.token_ids for a in again.act(contexts(8, seed=1))] != [a.token_ids for a in actions]
    assert (model.config._attn_implementation, model.dtype) == (attention, dtype)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_episodes_of_continuous_batching_are_learned_from_as_any() -> None:
    played = policy(temperature=1.0, max_new_tokens=2)
    played.engine = ContinuousBatching(played)
    starts = episode_starts("maze", "train", range(2))
    for episode in play(
        "maze", played, starts, slots=2, stop=lambda context: "two" if len(context.history) > 1 else None
    ):
        for sequence in sampled_sequences(episode):
            sampled = [n for n, mask in enumerate(sequence.action_mask) if mask]
            with torch.no_grad():
                rows = played.model(torch.tensor([sequence.input_ids])).logits[0].log_softmax(-1)
            told = [rows[n - 1, sequence.input_ids[n]].item() for n in sampled]
            assert [sequence.logprobs[n] for n in sampled] == pytest.approx(told, abs=1e-4)


# Choice


def test_ppo_plays_its_rounds_by_the_engine_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = PolicyRecord("bc", "maze", MAZE.version, "plain", 0, 128, 8, {"source": None, "revision": None})
    save_policy(tmp_path / "start", language_model(), TOKENIZER, record)
    small = {"rounds": 1, "rollouts": 2, "slots": 2, "num_ppo_epochs": 1, "num_mini_batches": 1, "reward_scale": 0.1}
    run = PPORun("maze", str(tmp_path / "start"), response_length=3, max_episode_tokens=6, **small)
    with pytest.raises(ValueError, match="generation is 'vllm'"):
        train_ppo(run, tmp_path / "ppo", generation="vllm")
    assert not (tmp_path / "ppo").exists()
    written, write = [], ContinuousBatching.write
    monkeypatch.setattr(
        ContinuousBatching, "write", lambda self, rows: [written.append(len(rows)), write(self, rows)][1]
    )
    train_ppo(run, tmp_path / "ppo", generation="continuous")
    assert written == [2, 2]
    [mismatch] = [
        entry["sampler/mismatch"]
        for entry in json.loads((tmp_path / "ppo" / "training_log.json").read_text())
        if "sampler/mismatch" in entry
    ]
    assert 0 < mismatch < 1e-4


def test_an_engine_by_its_name(server: Server) -> None:
    played = policy()
    assert make_engine("model", played) is None
    assert isinstance(make_engine("continuous", played), ContinuousBatching)
    made = make_engine(f"two@{server.url}/", played)
    assert isinstance(made, Completions)
    played.engine = made
    with pytest.raises(ValueError, match="between CUDA devices"):
        played.forget()  # as before a round
    played.act(contexts(1))
    assert [(call, server.requests[0]["model"]) for call in server.calls] == [("/v1/completions", "two")]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("vllm", r"generation is 'vllm'; allowed are model, continuous and \[MODEL@\]URL"),
        ("http://me:secret@localhost/v1", "has a user, password or query"),
        ("tiny@http://localhost/v1?key=secret", "has a user, password or query"),
    ],
)
def test_what_is_no_engine_is_refused(choice: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as refused:
        check_choice(choice)
    assert "secret" not in str(refused.value)


def test_whole_actions_are_the_model_s_own() -> None:
    with pytest.raises(ValueError, match="rerank draws among whole actions"):
        make_engine("continuous", policy(rerank=True, max_new_tokens=None))


def test_a_server_elsewhere_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with contextlib.suppress(ModuleNotFoundError), pytest.raises(ValueError, match="needs a key; set OPENAI_API_KEY"):
        make_engine("http://models.example/v1", policy())
