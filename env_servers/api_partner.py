"""`openai:<model>@<base URL>`: a partner behind any endpoint of the chat completions protocol.

The `openai` client does the talking, its own retries with growing waits included; it is imported when such a partner
is made. The key is read from the environment and goes nowhere else. An endpoint does not say which weights answer, so
a result with such a partner can be repeated only from its recorded answers (`--record`, then `replay:`). They also keep
what was paid for when a run is interrupted.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any
from urllib.parse import urlsplit

from env_servers.partners import Answer, Query
from env_servers.prompts import VERSION, voice_of, with_spoken_prefix
from env_servers.task import EpisodeError

KEY = "OPENAI_API_KEY"
LOCAL = ("localhost", "127.0.0.1", "::1")


class BudgetSpent(RuntimeError):
    """The tokens that a partner may cost are used up, so that the run cannot go on."""


class ApiPartner:
    """A partner that asks an endpoint. It may be used by one thread; its requests run in several.

    Args:
        task: Task id.
        model: The endpoint's name of the model.
        base_url: Such as `http://localhost:8000/v1`.
        client: An `openai.OpenAI` for that address.
        concurrency: Most requests at the same time.
        budget: Most tokens of prompts and answers together that this process may use; None is no limit. Requests that
            are under way when it is reached are finished, so up to `concurrency` may go beyond.
        temperature: None is the task's: 0 for an oracle, 1 for the buyer.
        max_new_tokens: None is the task's.
        request: Fields of the request to add or replace; a value None leaves the field out.

    Attributes:
        spent: Tokens used so far.

    Raises:
        ValueError: A number is out of range, or no model can speak for the task.
    """

    def __init__(
        self,
        task: str,
        model: str,
        base_url: str,
        client: Any,
        *,
        concurrency: int = 8,
        budget: int | None = None,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        voice = voice_of(task)
        self._voice, self._client = voice, client
        self._temperature = voice.temperature if temperature is None else temperature
        limit = voice.max_new_tokens if max_new_tokens is None else max_new_tokens
        for name, number, least in (
            ("concurrency", concurrency, 1),
            ("budget", budget, 1),
            ("max_new_tokens", limit, 1),
        ):
            if number is not None and number < least:
                raise ValueError(f"{name} of partner openai:{model} is {number}; at least {least} is needed")
        if self._temperature < 0:
            raise ValueError(f"temperature of partner openai:{model} is {temperature}; allowed are 0 and up")
        self.name = f"openai:{model}@{base_url}"
        self.revision = f"chat-{VERSION}+temperature={self._temperature:g}+max_new_tokens={limit}"
        if request:
            self.revision += f"+request={json.dumps(request, sort_keys=True)}"
        self._fields = {"model": model, "temperature": self._temperature, "max_tokens": limit, **(request or {})}
        self._budget, self.spent = budget, 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="partner")

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        """Ask for all queries, some at a time. A request that fails or that the budget does not allow gives an error.

        Raises:
            BudgetSpent: Nothing is left of the budget before the first request.
        """
        answers = dict(self.answer_each(queries))
        return [answers[number] for number in range(len(queries))]

    def answer_each(self, queries: Sequence[Query]) -> Iterator[tuple[int, Answer | EpisodeError]]:
        """As `answer`, each with the number of its query as soon as it is there, so that none is lost once it is paid.

        Whoever stops reading ends it: what has not been sent then is not sent.
        """
        if self._spent_all():
            raise BudgetSpent(self._out_of_budget())
        numbers = {self._pool.submit(self._ask, query): number for number, query in enumerate(queries)}
        try:
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        finally:
            for request in numbers:
                request.cancel()

    def _ask(self, query: Query) -> Answer | EpisodeError:
        import openai

        if self._spent_all():
            return EpisodeError(self._out_of_budget())
        messages = with_spoken_prefix(self._voice.chat(query), query.prefix)
        fields = {"messages": [message._asdict() for message in messages], **self._fields}
        if self._temperature > 0:
            fields.setdefault("seed", query.rng().getrandbits(31))  # honoured by some endpoints
        try:
            done = self._client.chat.completions.create(**{k: v for k, v in fields.items() if v is not None})
        except openai.OpenAIError as error:
            return EpisodeError(f"{self.name} did not answer: {type(error).__name__}: {without_key(str(error))}")
        usage = self._note_usage(done)
        if usage is None and self._budget is not None:
            return EpisodeError(
                f"{self.name} does not say how many tokens it used, so no budget can be kept; leave it out"
            )
        text = done.choices[0].message.content if done.choices else None
        if text is None:
            reason = done.choices[0].finish_reason if done.choices else "no choices"
            return EpisodeError(f"{self.name} answered without a text ({reason}); raise max_new_tokens if it was cut")
        # JSON can hold half a surrogate pair, which no file of text can.
        return self._voice.read(text.encode(errors="replace").decode(), query)._replace(usage=usage)

    def _note_usage(self, done: Any) -> dict[str, int] | None:
        given = done.usage
        if given is None:
            return None
        usage = {"prompt_tokens": given.prompt_tokens, "completion_tokens": given.completion_tokens}
        with self._lock:
            self.spent += sum(usage.values())
        return usage

    def _spent_all(self) -> bool:
        return self._budget is not None and self.spent >= self._budget

    def _out_of_budget(self) -> str:
        return (
            f"{self.name} has used {self.spent:,} tokens, and its budget is {self._budget:,}; finished episodes are "
            "kept, and the same command goes on with as much again"
        )


def api_partner(
    task: str,
    argument: str,
    *,
    concurrency: int = 8,
    retries: int = 5,
    timeout: float = 60.0,
    budget: int | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    request: Mapping[str, Any] | None = None,
) -> ApiPartner:
    """A partner by what follows `openai:`.

    Args:
        task: Task id.
        argument: `<model>@<base URL>`.
        concurrency: As in `ApiPartner`.
        retries: How often the client tries a failed request again, with growing waits.
        timeout: Seconds for one request.
        budget: As in `ApiPartner`.
        temperature: As in `ApiPartner`.
        max_new_tokens: As in `ApiPartner`.
        request: As in `ApiPartner`. It is recorded with every episode, so no key belongs there.

    Raises:
        ValueError: The address or a number is not allowed, or there is no key for an address elsewhere.
        ModuleNotFoundError: The openai package is not installed.
    """
    model, base_url = parse_endpoint(argument)
    client = endpoint_client(base_url, f"partner openai:{argument}", retries=retries, timeout=timeout)
    return ApiPartner(
        task,
        model,
        base_url,
        client,
        concurrency=concurrency,
        budget=budget,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        request=request,
    )


def endpoint_client(base_url: str, whose: str, *, retries: int, timeout: float) -> Any:
    """An `openai.OpenAI` for an address, with the key from the environment.

    Args:
        base_url: Such as `http://localhost:8000/v1`.
        whose: Who needs it, for errors.
        retries: How often it tries a failed request again, with growing waits.
        timeout: Seconds for one request.

    Raises:
        ValueError: A number is not allowed, or there is no key for an address elsewhere.
        ModuleNotFoundError: The openai package is not installed.
    """
    import openai

    key = os.environ.get(KEY)
    if not key and urlsplit(base_url).hostname not in LOCAL:
        raise ValueError(f"{whose} needs a key; set {KEY} (to any text if the endpoint wants none)")
    if timeout <= 0 or retries < 0:
        raise ValueError(
            f"timeout is {timeout} s and retries are {retries}; a request needs time, retries are 0 or more"
        )
    return openai.OpenAI(base_url=base_url, api_key=key or "none", timeout=timeout, max_retries=retries)


def without_key(text: str) -> str:
    """A text, such as an endpoint's error message, with the key blotted out."""
    key = os.environ.get(KEY)
    return text.replace(key, "***") if key else text


def parse_endpoint(argument: str) -> tuple[str, str]:
    """Model and base URL of `<model>@<base URL>`.

    Raises:
        ValueError: It is not of that form, or the address holds what may be a secret.
    """
    found = re.fullmatch(r"(?P<model>.+?)@(?P<url>https?://.+)", argument)
    if found is None:
        raise ValueError(
            f"partner openai:{argument} is not of the form openai:<model>@<base URL>, such as "
            "openai:gpt-4o-mini@https://api.openai.com/v1"
        )
    return found["model"], base_url_of(found["url"], f"partner openai:{found['model']}")


def base_url_of(url: str, whose: str) -> str:
    """An endpoint's address without what may be a secret, or a slash at its end.

    Raises:
        ValueError: It has a user, password or query.
    """
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ValueError(
            f"the base URL of {whose} has a user, password or query, which every record would hold; leave them out and "
            f"put the key into {KEY}"
        )
    return url.rstrip("/")
