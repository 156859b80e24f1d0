"""Engines that write a policy's actions in place of the model here: what `--generation` names.

    policy.engine = make_engine("continuous", policy)                     # transformers' continuous batching
    policy.engine = make_engine("http://localhost:8000/v1", policy)       # a server of the completions protocol

The policy stays as it is: it makes the prompts, and is given back ids with their log-probabilities, so whatever
collects episodes with it (PPO, GRPO, evaluation) needs to know nothing of this. What an engine draws is another draw
than the model's own from the same episode's generator, and its log-probabilities are rounded otherwise.

Continuous batching runs the training model itself, in this process. A server has weights of its own: before each round
it is sent the model's by TRL's client for vLLM, which wants vLLM installed here, too, and CUDA on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import torch
from accelerate import PartialState
from torch import Tensor
from transformers import ContinuousBatchingConfig, GenerationConfig

from env_servers.api_partner import base_url_of, endpoint_client, without_key
from env_servers.seeding import hash_seed
from trainers.adapters import is_of_adapter
from trainers.generation import Engine, Row, Written, inner, sample_of
from trainers.policy import LanguageModelPolicy

OWN, CONTINUOUS = "model", "continuous"
PAGE = 16  # tokens of a page of the paged cache; a prefix is shared in whole pages
LEAST_TOKENS = 512  # in one step of continuous batching, so that prompts are not read in slices
PATIENCE = 600.0  # seconds without any finished action after which continuous batching counts as stuck


def make_engine(choice: str, policy: LanguageModelPolicy, *, concurrency: int = 64) -> Engine | None:
    """An engine by its name.

    Args:
        choice: `model` (the policy's own way: None), `continuous`, or `[MODEL@]URL` of a completions server, such as
            http://localhost:8000/v1, which is sent the model's weights at each `refresh`.
        policy: Whose actions it writes.
        concurrency: Most requests to a server at the same time.

    Raises:
        ValueError: The choice is none of these, or cannot be for this policy.
        ModuleNotFoundError: The openai package is not installed.
    """
    check_choice(choice)
    if choice == OWN:
        return None
    if policy.sampling.rerank:
        raise ValueError(f"generation is {choice}, and rerank draws among whole actions, which only the model does")
    if choice == CONTINUOUS:
        return ContinuousBatching(policy)
    model, _, url = choice.rpartition("@")
    base_url = url.rstrip("/")
    weights = ServedWeights(base_url, policy.model, policy.model.device)
    return Completions(policy, base_url, model or None, concurrency=concurrency, send=weights.send)


def check_choice(choice: str) -> None:
    """Raise a ValueError if `make_engine` knows no engine of that name."""
    if choice in (OWN, CONTINUOUS):
        return
    model, at, url = choice.rpartition("@")
    if "://" in model:  # a user before the host
        model, at, url = "", "", choice
    if not url.startswith(("http://", "https://")):
        raise ValueError(
            f"generation is {choice!r}; allowed are {OWN}, {CONTINUOUS} and [MODEL@]URL of a completions server, such "
            "as http://localhost:8000/v1 or my-model@http://localhost:8000/v1"
        )
    base_url_of(url, f"generation {model}{at}...")


class ContinuousBatching:
    """Transformers' continuous batching of the policy's own model: rows come and go without a batch to wait for.

    The model's type and its weights stay as they are (TRL's option of the same kind casts the model that is trained).
    It runs in a thread of its own, where autocast does not reach: a model in float32 writes in float32. Attention is
    the model's own if it is sdpa or flash attention; flash attention is switched to where it is installed and the
    weights are of 16 bits. What is kept of past prompts goes with any change of the weights.

    All rows of a call share one generator, whose seed is drawn from theirs: a call with other rows draws otherwise.
    """

    def __init__(self, policy: LanguageModelPolicy) -> None:
        self._model = inner(policy.model)
        if not hasattr(self._model, "continuous_batching_context_manager"):
            raise ValueError(f"{policy.name} is no model of transformers that has continuous batching; leave it out")
        self._policy, self._blocks = policy, 0
        self._weights: Tensor | None = None

    def refresh(self) -> None:
        """Keep nothing that was computed with other weights."""
        self._model.destroy_cached_continuous_batching_manager()
        self._blocks, self._weights = 0, sample_of([self._model])

    def write(self, rows: Sequence[Row]) -> list[Written]:
        """As in `Engine`.

        Raises:
            RuntimeError: The model failed.
        """
        if not rows:
            return []
        policy, device = self._policy, self._model.device
        if self._weights is None or not torch.equal(sample_of([self._model]), self._weights):
            self.refresh()
        blocks = sum(-(-(len(row.prompt) + policy.max_new_tokens) // PAGE) + 1 for row in rows)
        if blocks > self._blocks:
            self._model.destroy_cached_continuous_batching_manager()
            self._blocks = blocks + blocks // 2
        seed = hash_seed("continuous", *(seed_of(row) for row in rows)) & 0xFFFFFFFF
        # It draws by torch's global generators, which are given back as they were.
        with torch.inference_mode(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            with self._model.continuous_batching_context_manager(
                generation_config=self._generation_config(),
                continuous_batching_config=self._config(seed, len(rows)),
                persistent_manager=True,
                warmup=False,
            ) as manager:
                found = self._results(manager, rows)
        greedy = policy.sampling.temperature == 0
        return [Written(one.generated_tokens, [0.0] * len(one.logprobs) if greedy else one.logprobs) for one in found]

    def _results(self, manager: Any, rows: Sequence[Row]) -> list[Any]:
        """What was written, in the order of rows."""
        names = manager.add_requests(inputs=[row.prompt for row in rows], max_new_tokens=self._policy.max_new_tokens)
        found, until = dict[str, Any](), time.monotonic() + PATIENCE
        while len(found) < len(names):
            result = manager.get_result(timeout=1)
            if result is not None and result.error is not None:
                raise RuntimeError(f"continuous batching of {self._policy.name} failed: {result.error}")
            if result is not None and result.is_finished():
                found[result.request_id], until = result, time.monotonic() + PATIENCE
            elif result is None and (not manager.is_running() or time.monotonic() > until):
                raise RuntimeError(
                    f"continuous batching of {self._policy.name} stopped after {len(found)} of {len(names)} actions; "
                    "its log says why, and --generation model does without"
                )
        return [found[name] for name in names]

    def _generation_config(self) -> GenerationConfig:
        """As the policy samples, with nothing of the checkpoint's own."""
        policy, sampling = self._policy, self._policy.sampling
        shared = {"max_new_tokens": policy.max_new_tokens, "eos_token_id": sorted(policy.stop_ids)}
        make: Any = GenerationConfig
        if sampling.temperature == 0:
            return make(do_sample=False, pad_token_id=min(policy.stop_ids), **shared)  # type: ignore[no-any-return]
        return make(  # type: ignore[no-any-return]
            do_sample=True,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            pad_token_id=min(policy.stop_ids),
            **shared,
        )

    def _config(self, seed: int, rows: int) -> ContinuousBatchingConfig:
        """Of a cache with room for the rows at hand: by default it takes nearly all memory that is free."""
        return ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=self._blocks,
            max_batch_tokens=max(LEAST_TOKENS, 2 * rows),
            return_logprobs=True,
            seed=seed,
            auto_switch_to_flash=self._model.dtype in (torch.float16, torch.bfloat16),
        )


class Completions:
    """A server of the completions protocol that takes and tells token ids, such as vLLM.

    Each row is a request, with a seed drawn from its own generator; all of a call are sent at once, as many at the same
    time as `concurrency` says, and the server makes batches of them.

    Args:
        policy: Whose actions it writes.
        base_url: Such as `http://localhost:8000/v1`.
        model: The server's name of the model; None is the only one that it has.
        concurrency: Most requests at the same time.
        retries: How often a failed request is tried again, with growing waits.
        timeout: Seconds for one request.
        send: Gives the server the model's weights at each `refresh`, called in the main process alone while the others
            wait. None leaves the server's weights as they are, which is for evaluation.

    Raises:
        ValueError: A number is not allowed, or there is no key for an address elsewhere.
        ModuleNotFoundError: The openai package is not installed.
    """

    def __init__(
        self,
        policy: LanguageModelPolicy,
        base_url: str,
        model: str | None = None,
        *,
        concurrency: int = 64,
        retries: int = 5,
        timeout: float = 600.0,
        send: Callable[[], None] | None = None,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; at least 1 request must be under way")
        self._policy, self._url, self._model, self._send = policy, base_url, model, send
        self._client = endpoint_client(base_url, f"generation {base_url}", retries=retries, timeout=timeout)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="completions")

    def refresh(self) -> None:
        """Send the server the model's weights."""
        if self._send is None:
            return
        state = PartialState()
        if state.is_main_process:
            self._send()
        state.wait_for_everyone()

    def write(self, rows: Sequence[Row]) -> list[Written]:
        """As in `Engine`.

        Raises:
            ConnectionError: The server did not answer, or refused.
            ValueError: It answered without token ids or log-probabilities, or left some out.
        """
        requests = [self._pool.submit(self._ask, self._name(), row) for row in rows]
        try:
            return [request.result() for request in requests]
        finally:
            for request in requests:
                request.cancel()

    def _name(self) -> str:
        if self._model is None:
            names = [model.id for model in self._call(lambda: self._client.models.list().data)]
            if len(names) != 1:
                raise ValueError(
                    f"{self._url} serves {', '.join(names) or 'no model'}; say which one, as in NAME@{self._url}"
                )
            [self._model] = names
        return self._model

    def _ask(self, name: str, row: Row) -> Written:
        policy, sampling = self._policy, self._policy.sampling
        fields = {
            "model": name,
            "prompt": row.prompt,
            "max_tokens": policy.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "logprobs": 0,
            "seed": seed_of(row),
        }
        # Said in any case: a server may take what is left out from the checkpoint's own generation settings.
        extra = {
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": sorted(policy.stop_ids),
            "return_token_ids": True,
        }
        done = self._call(lambda: self._client.completions.create(**fields, extra_body=extra))
        return self._read(row, done.choices)

    def _read(self, row: Row, choices: Sequence[Any]) -> Written:
        choice = choices[0] if choices else None
        tokens, told = getattr(choice, "token_ids", None), getattr(choice, "logprobs", None)
        logprobs = getattr(told, "token_logprobs", None)
        if choice is None or tokens is None or logprobs is None:
            missing = "log-probabilities" if choice is not None and tokens is not None else "token ids"
            raise ValueError(
                f"{self._url} answered without {missing}; what is learned from are the very ids that were sampled, so "
                "it takes a server that tells them (return_token_ids of vLLM's /v1/completions)"
            )
        prompt = getattr(choice, "prompt_token_ids", None)
        if prompt is not None and list(prompt) != row.prompt:
            raise ValueError(
                f"{self._url} read {len(prompt)} prompt tokens, not the {len(row.prompt)} that it was sent; it must "
                "neither cut prompts nor add to them"
            )
        if len(logprobs) != len(tokens):
            raise ValueError(f"{self._url} told {len(tokens)} token ids with {len(logprobs)} log-probabilities")
        if choice.finish_reason == "stop" and not self._policy.stop_ids.intersection(tokens):
            raise ValueError(
                f"{self._url} ended an action and did not tell the token that it ended with, which is one of the "
                f"action's own; expected one of {sorted(self._policy.stop_ids)} at its end"
            )
        greedy = self._policy.sampling.temperature == 0
        return Written(list(tokens), [0.0] * len(tokens) if greedy else list(logprobs))

    def _call(self, request: Callable[[], Any]) -> Any:
        import openai

        try:
            return request()
        except openai.OpenAIError as error:
            raise ConnectionError(
                f"{self._url} did not write: {type(error).__name__}: {without_key(str(error))}. Finished episodes are "
                "kept: once it answers, the same command goes on"
            ) from error


class ServedWeights:
    """A model's weights on a vLLM server, by TRL's client: over NCCL, beside the HTTP of the requests.

    The server is vLLM's own, begun with what TRL's documentation says:

        VLLM_SERVER_DEV_MODE=1 vllm serve <the policy's folder> --weight-transfer-config '{"backend": "nccl"}' \\
            --logprobs-mode processed_logprobs

    Args:
        base_url: Of its completions, such as `http://localhost:8000/v1`.
        model: Whose weights it is to have. Adapters are sent merged into what they adapt.
        device: The device that they are on; CUDA.
        timeout: Seconds to wait for the server at first.
    """

    def __init__(self, base_url: str, model: Any, device: torch.device | str, *, timeout: float = 240.0) -> None:
        self._url, self._model, self._device, self._timeout = base_url, model, torch.device(device), timeout
        self._client: Any = None

    def send(self) -> None:
        """Give the server the weights as they are now.

        Raises:
            ValueError: They are not on a CUDA device.
            ModuleNotFoundError: vLLM is not installed.
            ConnectionError: The server is not there, or it takes no weights.
        """
        client = self._connected()
        served = [(name, dtype_name(tensor), list(tensor.shape)) for name, tensor in served_weights(self._model)]
        try:
            client.update_named_params(served, served_weights(self._model))
            client.reset_prefix_cache()
        except Exception as error:  # TRL's client raises nothing narrower
            raise ConnectionError(f"{self._url} did not take the policy's weights: {error}") from error

    def _connected(self) -> Any:
        if self._client is not None:
            return self._client
        if self._device.type != "cuda":
            raise ValueError(
                f"the policy is on {self._device}, and its weights reach {self._url} by NCCL, between CUDA devices; on "
                f"this machine take --generation {OWN} or {CONTINUOUS}"
            )
        from trl.generation.vllm_client import VLLMClient  # seconds, which others need not wait for

        parts = urlsplit(self._url)
        root = f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/v1')}"
        try:
            client: Any = VLLMClient(base_url=root, connection_timeout=self._timeout)
            client.init_communicator(device=self._device)
        except ImportError as error:
            raise ModuleNotFoundError(
                "sending weights to a server takes vLLM here, too: pip install vllm", name="vllm"
            ) from error
        except Exception as error:  # nothing narrower
            raise ConnectionError(
                f"{self._url} takes no weights: {error}. Begin it with VLLM_SERVER_DEV_MODE=1 vllm serve ... "
                """--weight-transfer-config '{"backend": "nccl"}'"""
            ) from error
        self._client = client
        return client


def served_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """A model's parameters under the names that it has without adapters, each with what is on of them added to it."""
    base = inner(model)
    layers = {name: module for name, module in base.named_modules() if hasattr(module, "base_layer")}
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if is_of_adapter(name):
                continue
            place, adapted, last = name.rpartition(".base_layer.")
            tensor = parameter.detach()
            if adapted and last == "weight" and not layers[place].disable_adapters:
                tensor = tensor + sum(layers[place].get_delta_weight(one) for one in layers[place].active_adapters)
            yield name.replace(".base_layer.", "."), tensor


def dtype_name(tensor: Tensor) -> str:
    """Such as `bfloat16`."""
    return str(tensor.dtype).removeprefix("torch.")


def seed_of(row: Row) -> int:
    """A seed in [0, 2**31) from the row's first random number; it is used for nothing else here."""
    return int(row.uniforms[0] * (1 << 31))
