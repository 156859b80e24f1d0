"""A partner behind an endpoint, by the real client against a local server of the chat completions protocol."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from env_servers import api_partner as module
from env_servers import partners, tasks
from env_servers.api_partner import ApiPartner, BudgetSpent, parse_endpoint
from env_servers.partners import Answer, Exchange, Query, find_partner
from env_servers.task import EpisodeError
from eval_harness.log import read_episodes, read_header
from eval_harness.run import run

PLANE = {"word": ["Airplane", "Plane"]}
KEY = "sk-very-secret-key"


class Endpoint:
    """A server that answers by the words of the last message.

    `Fly?` is yes, else no; `half` gets half a surrogate pair. `busy` and `broken` fail with 429 and 500, as often as
    `failures` says; `bad` with 400 and the key in its message; `late` takes 0.6 s; `mute` answers without text,
    `nothing` without choices, `free` without usage.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.failures: Counter[str] = Counter()
        self.busiest = self.busy = 0
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with endpoint._lock:
                    endpoint.requests.append({"path": self.path, **body})
                    endpoint.keys.append(self.headers.get("authorization"))
                    endpoint.busy += 1
                    endpoint.busiest = max(endpoint.busiest, endpoint.busy)
                try:
                    status, answer = endpoint.answer(body)
                finally:
                    with endpoint._lock:
                        endpoint.busy -= 1
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                if status == 429:
                    self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        text = body["messages"][-1]["content"]
        for word, status in (("busy", 429), ("broken", 500), ("bad", 400)):
            if text.startswith(word) and (word == "bad" or self.failures[word] > 0):
                self.failures[word] -= 1
                return status, {"error": {"message": f"{word}, and your key is {KEY}", "code": None}}
        if text.startswith(("late", "slow")):
            time.sleep(0.6 if text.startswith("late") else 0.1)
        content = None if text.startswith("mute") else "Yes, it can." if "Fly?" in text else "no\nuser: more"
        if text.startswith("half"):
            content = "It is \ud83d."
        if "Begin your answer with exactly" in text:
            content = "Output: Decision=Accept MSRP=$9"
        choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": content}}
        usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
        return 200, {
            "id": "1", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [] if text.startswith("nothing") else [choice],
            **({} if text.startswith("free") else {"usage": usage}),
        }  # fmt: skip

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(partners, "_made", {})
    server = Endpoint()
    yield server
    server.close()


def partner(endpoint: Endpoint, task: str = "twenty_questions", **options: Any) -> ApiPartner:
    found = find_partner(task, f"openai:small@{endpoint.url}", options, lambda: None)
    assert isinstance(found, ApiPartner)
    return found


def query(text: str, task: str = "twenty_questions", **fields: Any) -> Query:
    return Query(task, PLANE, fields.get("exchanges", ()), text, fields.get("seed", 4), fields.get("prefix", ""))


def test_questions_become_requests_and_answers_are_read(endpoint: Endpoint) -> None:
    asked = partner(endpoint)
    usage = {"prompt_tokens": 10, "completion_tokens": 3}
    assert asked.answer([query("Fly?"), query("Hm?")]) == [Answer("Yes.", usage=usage), Answer("No.", usage=usage)]
    assert (asked.name, asked.spent) == (f"openai:small@{endpoint.url}", 26)
    assert asked.revision == "chat-1+temperature=0+max_new_tokens=4"
    first = next(request for request in endpoint.requests if request["messages"][1]["content"] == "Fly?")
    assert first["path"] == "/v1/chat/completions"
    assert {name: first[name] for name in ("model", "temperature", "max_tokens")} == {
        "model": "small", "temperature": 0.0, "max_tokens": 4,
    }  # fmt: skip
    assert "seed" not in first and [message["role"] for message in first["messages"]] == ["system", "user"]
    assert "Airplane (also called Plane)" in first["messages"][0]["content"]
    assert set(endpoint.keys) == {f"Bearer {KEY}"}
    assert asked.answer([]) == []


def test_a_buyer_has_a_seed_and_a_prefix_is_asked_for_in_words(endpoint: Endpoint) -> None:
    buyer = {"personality": "rude", "brand": "a Ford", "type": "SUV", "features": ["sunroof"], "budget": 10000}
    talk = query("Well?", "car_dealer", exchanges=(Exchange("Hello", "Go away"),), prefix="Output: Decision=")
    talk = talk._replace(secret=buyer)
    asked = partner(endpoint, "car_dealer")
    (answer,) = asked.answer([talk])
    assert isinstance(answer, Answer) and answer.text == "Accept MSRP=$9"
    asked.answer([talk, talk._replace(seed=5)])
    seeds = [request["seed"] for request in endpoint.requests]
    assert len(set(seeds)) == 2 and sorted(map(seeds.count, set(seeds))) == [1, 2]
    assert endpoint.requests[0]["temperature"] == 1.0 and endpoint.requests[0]["max_tokens"] == 127


def test_fields_of_the_request_can_be_changed(endpoint: Endpoint) -> None:
    changed = {"max_tokens": None, "max_completion_tokens": 9, "temperature": None}
    asked = partner(endpoint, request=changed, max_new_tokens=7)
    asked.answer([query("Fly?")])
    (request,) = endpoint.requests
    assert request["max_completion_tokens"] == 9 and not {"max_tokens", "temperature"} & set(request)
    assert asked.revision.endswith("max_new_tokens=7+request=" + json.dumps(changed, sort_keys=True))


def test_busy_and_broken_endpoints_are_asked_again_and_then_fail_one_episode(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openai

    monkeypatch.setattr(openai._base_client.BaseClient, "_calculate_retry_timeout", lambda *_, **__: 0.001)
    endpoint.failures.update(busy=2, broken=1)
    asked = partner(endpoint, retries=2)
    answers = asked.answer([query("busy Fly?"), query("broken Fly?")])
    assert [answer.text for answer in answers if isinstance(answer, Answer)] == ["Yes.", "Yes."]
    assert len(endpoint.requests) == 3 + 2
    endpoint.failures.update(busy=9, broken=9)
    answers = asked.answer(
        [query("Fly?"), query("busy"), query("broken"), query("bad"), query("mute"), query("nothing")]
    )
    assert isinstance(answers[0], Answer)
    errors = [str(answer) for answer in answers[1:] if isinstance(answer, EpisodeError)]
    for error, words in zip(
        errors, ("RateLimitError", "InternalServerError", "BadRequestError", "(length)", "(no choices)"), strict=True
    ):
        assert words in error and error.startswith(asked.name)
        assert KEY not in error
    assert "your key is ***" in errors[0]


def test_a_late_answer_is_a_failed_request(endpoint: Endpoint) -> None:
    asked = partner(endpoint, timeout=0.2, retries=0)
    late, quick = asked.answer([query("late"), query("Fly?")])
    assert isinstance(late, EpisodeError) and "APITimeoutError" in str(late)
    assert isinstance(quick, Answer)


def test_an_endpoint_that_is_not_there_is_told(endpoint: Endpoint) -> None:
    endpoint.close()
    (answer,) = partner(endpoint, retries=0).answer([query("Fly?")])
    assert isinstance(answer, EpisodeError) and "APIConnectionError" in str(answer)


def test_requests_run_beside_each_other_but_not_too_many(endpoint: Endpoint) -> None:
    asked = partner(endpoint, concurrency=3)
    answers = asked.answer([query(f"slow {'Fly?' if number % 2 else ''}") for number in range(9)])
    assert [answer.text for answer in answers if isinstance(answer, Answer)] == ["No.", "Yes."] * 4 + ["No."]
    assert endpoint.busiest == 3


def test_what_was_answered_is_there_before_the_rest_and_what_nobody_waits_for_is_not_asked(endpoint: Endpoint) -> None:
    asked = partner(endpoint, concurrency=2)
    answers = asked.answer_each([query("slow"), query("Fly?"), *(query(f"slow {number}") for number in range(30))])
    number, answer = next(answers)
    assert number == 1 and isinstance(answer, Answer) and answer.text == "Yes."
    answers.close()  # type: ignore[attr-defined]
    asked.answer([query("Fly?")])
    assert len(endpoint.requests) < 20


def test_an_answer_that_no_file_could_hold_is_made_one(endpoint: Endpoint) -> None:
    (answer,) = partner(endpoint, "guess_my_city").answer(
        [query("half")._replace(secret={"city": "A", "country": "B"})]
    )
    assert isinstance(answer, Answer) and answer.text == "It is ?."


def test_a_budget_is_kept_and_told(endpoint: Endpoint) -> None:
    asked = partner(endpoint, budget=30, concurrency=1)
    answers = asked.answer([query("Fly?") for _ in range(5)])
    assert [type(answer) for answer in answers] == [Answer] * 3 + [EpisodeError] * 2
    assert asked.spent == 39 and len(endpoint.requests) == 3
    with pytest.raises(BudgetSpent, match="has used 39 tokens, and its budget is 30; finished episodes are kept"):
        asked.answer([query("Fly?")])
    assert len(endpoint.requests) == 3
    (free,) = partner(endpoint, budget=31).answer([query("free")])
    assert isinstance(free, EpisodeError) and "does not say how many tokens it used" in str(free)
    (unlimited,) = partner(endpoint).answer([query("free")])
    assert unlimited == Answer("No.")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("small", "is not of the form openai:<model>@<base URL>"),
        ("small@localhost:8000", "is not of the form"),
        ("@http://localhost", "is not of the form"),
        ("small@http://me:secret@localhost/v1", "has a user, password or query"),
        ("small@http://localhost/v1?key=secret", "has a user, password or query"),
        ("small@https://api.example.com/v1", "needs a key; set OPENAI_API_KEY"),
    ],
)
def test_wrong_addresses_are_refused(argument: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ValueError, match=message) as error:
        module.api_partner("twenty_questions", argument)
    assert "secret" not in str(error.value).replace(argument, "")


def test_addresses_and_settings(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_endpoint("org/model@v2@http://[::1]:8000/v1/") == ("org/model@v2", "http://[::1]:8000/v1")
    monkeypatch.delenv("OPENAI_API_KEY")
    partner(endpoint).answer([query("Fly?")])
    assert endpoint.keys == ["Bearer none"], "a local endpoint needs no key"
    for options, message in (
        ({"concurrency": 0}, "concurrency of partner openai:small is 0"),
        ({"budget": 0}, "budget of partner openai:small is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens of partner openai:small is 0"),
        ({"temperature": -1}, "temperature of partner openai:small is -1"),
        ({"timeout": 0}, "timeout is 0 s"),
        ({"key": "x"}, "'openai' has no option 'key'"),
    ):
        with pytest.raises(ValueError, match=message):
            partner(endpoint, **options)


def test_an_evaluation_goes_on_after_the_budget_and_its_files_hold_no_key(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tasks, "TASKS", {**tasks.TASKS, "twenty_questions": "small_game:SmallGame"})
    kwargs = {"partner": f"openai:small@{endpoint.url}", "partner_options": {"budget": 700, "concurrency": 2}}

    def evaluate() -> Any:
        return run(
            "twenty_questions", "scripted:behavior", episodes=8, env_kwargs=kwargs, batch=2, output=tmp_path / "r",
            record=tmp_path / "asked.jsonl", progress=False,
        )  # fmt: skip

    stops = 0
    for _ in range(20):
        partners._made.clear()  # a new process
        try:
            result = evaluate()
        except BudgetSpent:
            stops += 1
            continue
        if result.scored.complete:
            break
    assert 1 <= stops < 19
    scored = result.scored
    assert scored.partner is not None and scored.partner.name == f"openai:small@{endpoint.url}"
    asked = sum(episode.trajectory.num_turns for episode in read_episodes(tmp_path / "r"))
    assert scored.partner.usage == {"completion_tokens": 3 * asked, "prompt_tokens": 10 * asked}
    assert len(endpoint.requests) == asked, "what was paid for unfinished episodes is taken from the record"
    assert "openai" in read_header(tmp_path / "r").versions
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()
