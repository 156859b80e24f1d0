"""What server and client say to each other: OpenEnv's messages on a websocket, read and written.

Text frames of JSON, `{"type": ..., "data": {...}}`, as OpenEnv 0.10 has them: `reset`, `step`, `state`, `close` and
`mcp` from the client, `observation`, `state`, `mcp` and `error` from the server. The action of every task is
`{"text": ...}`. What is ours travels in `metadata`, which OpenEnv's actions have: `request_id`, echoed in the reply, so
that a late reply is never taken for another's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from env_servers.seeding import SPLITS

PROTOCOL = "1"  # of what is ours; /metadata announces it

# Kinds of errors, OpenEnv's names.
INVALID_JSON = "INVALID_JSON"
UNKNOWN_TYPE = "UNKNOWN_TYPE"
VALIDATION = "VALIDATION_ERROR"
EXECUTION = "EXECUTION_ERROR"
CAPACITY = "CAPACITY_REACHED"
SESSION = "SESSION_ERROR"

ENVELOPE = frozenset({"type", "data"})
TYPES = ("reset", "step", "state", "close", "mcp")
LONGEST_ID = 200  # characters of an episode's or request's id
# Names in a reset's data that are no options of the environment.
RESERVED = ("seed", "episode_id", "task", "metadata")
# What a reset's metadata may hold: all of it is ours. `messages` asks for observations without the messages so far;
# the others name the episode in records.
RESET_METADATA = ("request_id", "messages", "split", "index", "policy")

ACTION_SCHEMA: Mapping[str, Any] = {
    "title": "Action",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What the agent says or does."},
        "metadata": {"type": "object", "description": "request_id is echoed in the reply.", "default": {}},
    },
    "required": ["text"],
    "additionalProperties": False,
}
OBSERVATION_SCHEMA: Mapping[str, Any] = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The newest observation."},
        "messages": {
            "type": "array",
            "description": "All messages so far: user is the environment, assistant the agent.",
            "items": {
                "type": "object",
                "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"type": "string"}},
                "required": ["role", "content"],
            },
        },
        "terminated": {"type": "boolean", "description": "The task ended by its own rules."},
        "truncated": {"type": "boolean", "description": "A limit cut the episode."},
        "end_reason": {"type": ["string", "null"]},
        "success": {"type": "boolean"},
        "legal": {"type": "boolean", "description": "False where the action was not understood or not allowed."},
        "metadata": {"type": "object", "description": "info: what was hidden, when the episode is over."},
        "reward": {"type": ["number", "null"]},
        "done": {"type": "boolean"},
    },
    "required": ["text", "terminated", "truncated", "end_reason", "success", "legal"],
}
STATE_SCHEMA: Mapping[str, Any] = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "task": {"type": ["string", "null"]},
        "picture": {"type": "string", "description": "The state drawn for a person, where the task has a picture."},
    },
    "required": ["episode_id", "step_count"],
}


class WireError(Exception):
    """Something to tell the client.

    Attributes:
        code: One of the kinds above.
        message: What was given, what is allowed, what to do.
        retry_after: Seconds after which the same may succeed, where that is the case.
        fatal: Whether the session is over.
        request_id: Of the message that it answers.
    """

    def __init__(self, code: str, message: str, *, retry_after: int | None = None, fatal: bool = False) -> None:
        super().__init__(message)
        self.code, self.message, self.retry_after, self.fatal = code, message, retry_after, fatal
        self.request_id: str | int | None = None


class Message(NamedTuple):
    """A client's message. `request_id` is a JSON string or number, or None."""

    type: str
    data: Mapping[str, Any]
    request_id: str | int | None


class Reset(NamedTuple):
    """What a reset asks for; None where it does not say."""

    seed: int | None
    episode_id: str | None
    task: str | None
    options: Mapping[str, Any]
    metadata: Mapping[str, Any]


def load(text: str) -> Any:
    """Read JSON from a stranger, of which everything can be written again.

    Raises:
        UnicodeEncodeError: A text in it has half of a surrogate pair.
        ValueError: It is no JSON, or nested too deeply, or has numbers that JSON does not have.
    """
    try:
        given = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            _ENCODER.encode(given).encode()
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    return given


def parse(frame: str) -> Message:
    """Read a client's frame.

    Raises:
        WireError: It is no JSON, or no message.
    """
    try:
        given = load(frame)
    except UnicodeEncodeError:
        raise WireError(VALIDATION, "the frame has half of a surrogate pair, which is no character") from None
    except ValueError:
        raise WireError(INVALID_JSON, 'the frame is no JSON; send {"type": "step", "data": {"text": "..."}}') from None
    try:
        return _read(given)
    except WireError as problem:
        problem.request_id = _request_id(given)
        raise


def _read(given: Any) -> Message:
    if not isinstance(given, dict):
        raise WireError(VALIDATION, f"the frame is a JSON {_kind(given)}; it must be an object with type and data")
    kind, data = given.get("type"), given.get("data", {})
    if not isinstance(kind, str) or kind not in TYPES:
        raise WireError(UNKNOWN_TYPE, f"unknown type {short(kind)}; known: {', '.join(TYPES)}")
    if extra := given.keys() - ENVELOPE:
        raise WireError(VALIDATION, f"unknown field {short(min(extra))} beside type and data")
    if not isinstance(data, dict):
        raise WireError(VALIDATION, f"data of {kind} is a JSON {_kind(data)}; it must be an object")
    metadata = data.get("metadata", {}) if kind in ("reset", "step") else {}
    if not isinstance(metadata, dict):
        raise WireError(VALIDATION, f"metadata of {kind} is a JSON {_kind(metadata)}; it must be an object")
    request = metadata.get("request_id")
    if request is not None and not _is_id(request):
        raise WireError(VALIDATION, f"request_id must be a text or an integer of at most {LONGEST_ID} characters")
    return Message(kind, data, request)


def _is_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool) and len(str(value)) <= LONGEST_ID


def _request_id(given: Any) -> str | int | None:
    """The request's id in a frame that is no message, if there is one: the answer to it has it, too."""
    for name in ("data", "metadata", "request_id"):
        given = given.get(name) if isinstance(given, dict) else None
    return given if _is_id(given) else None


def parse_action(data: Mapping[str, Any]) -> str:
    """The text of a step.

    Raises:
        WireError: There is none, or something else besides.
    """
    for name in data:
        if name not in ("text", "metadata"):
            raise WireError(VALIDATION, f"unknown field {short(name)} of an action; an action is {{'text': '...'}}")
    text = data.get("text")
    if not isinstance(text, str):
        given = "is missing" if "text" not in data else f"is a JSON {_kind(text)}"
        raise WireError(VALIDATION, f"the action's text {given}; an action is {{'text': '...'}}")
    return text


def parse_reset(data: Mapping[str, Any]) -> Reset:
    """What a reset asks for. Options are those of the environment, whose own errors come later.

    Raises:
        WireError: A value is not allowed.
    """
    seed, episode_id, task = (data.get(name) for name in ("seed", "episode_id", "task"))
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
        raise WireError(VALIDATION, f"the seed is {short(seed)}; allowed are integers in 0..2**63-1")
    for name, value in (("episode_id", episode_id), ("task", task)):
        if value is not None and (not isinstance(value, str) or len(value) > LONGEST_ID):
            raise WireError(VALIDATION, f"{name} is {short(value)}; allowed are texts of up to {LONGEST_ID} characters")
    metadata = data.get("metadata", {})
    for name in metadata:
        if name not in RESET_METADATA:
            raise WireError(VALIDATION, f"unknown metadata {short(name)}; known: {', '.join(RESET_METADATA)}")
    if not isinstance(metadata.get("messages", True), bool):
        raise WireError(VALIDATION, f"metadata messages is {short(metadata['messages'])}; allowed: true, false")
    split, index, policy = (metadata.get(name) for name in ("split", "index", "policy"))
    if split is not None and split not in SPLITS:
        raise WireError(VALIDATION, f"split is {short(split)}; allowed: {', '.join(SPLITS)}")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**63):
        raise WireError(VALIDATION, f"index is {short(index)}; allowed are integers in 0..2**63-1")
    if policy is not None and (not isinstance(policy, str) or len(policy) > LONGEST_ID or not policy.isprintable()):
        raise WireError(
            VALIDATION, f"policy is {short(policy)}; allowed are printable texts of up to {LONGEST_ID} characters"
        )
    options = {name: value for name, value in data.items() if name not in RESERVED}
    return Reset(seed, episode_id, task, options, metadata)


def observation(
    fields: Mapping[str, Any], reward: float | None, done: bool, metadata: Mapping[str, Any], messages: str | None
) -> str:
    """The frame that answers a reset or a step.

    Args:
        fields: Of the observation; at least one.
        reward: Of the step.
        done: Whether the episode is over.
        metadata: Of the reply.
        messages: Those so far as `dump` writes them, with commas between; None leaves them out. An episode's messages
            are in all of its observations, so each is written once and not again for every step that follows.
    """
    data = {"reward": reward, "done": done, "metadata": metadata, "observation": fields}
    frame = dump({"type": "observation", "data": data})
    return frame if messages is None else f'{frame[:-3]},"messages":[{messages}]}}}}}}'


def error(problem: WireError) -> dict[str, Any]:
    """The message that tells of an error."""
    data: dict[str, Any] = {"message": problem.message, "code": problem.code}
    if problem.retry_after is not None:
        data["retry_after"] = problem.retry_after
    if problem.request_id is not None:
        data["metadata"] = {"request_id": problem.request_id}
    return {"type": "error", "data": data}


def dump(message: Mapping[str, Any]) -> str:
    """A message as a frame. Numbers that JSON does not have are our own mistake."""
    return _ENCODER.encode(message)


def answer_mcp(request: Any) -> dict[str, Any]:
    """What an MCP client is told, in JSON-RPC 2.0: there are no tools here.

    OpenEnv asks its servers for `/mcp`; ours has one action, a text, which the websocket takes.
    """
    number = request.get("id") if isinstance(request, dict) else None
    if not isinstance(number, str | int | float) or isinstance(number, bool):
        number = None
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0" or not isinstance(request.get("method"), str):
        code, message = -32600, "no JSON-RPC 2.0 request"
    else:
        code, message = -32601, "this server has no MCP methods; play over the websocket, see /tasks"
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


# Made once: `json.loads` and `json.dumps` make a new one for every call with options.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _kind(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def short(value: Any) -> str:
    """A client's value as it may stand in a message: its beginning, and no more."""
    shown = repr(value) if not isinstance(value, dict | list) else f"a JSON {_kind(value)}"
    return shown if len(shown) <= 60 else shown[:57] + "..."
