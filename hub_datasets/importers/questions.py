"""Twenty Questions and Guess My City of the original release (`train.json`, `guess_my_city_train_bc.json`, ...).

A record has `lines`, each a question with its answer, whether the last one was `correct`, and the `word`: a list of its
spellings, or the city with its country. The script that wrote the cities calls the first two `conversation` and `done`;
both are read.

A line is cut after a question mark and a space: in Twenty Questions after the last such, since the answer is Yes or No
and a question may have several sentences; in Guess My City after the first, since the answer is free text and may ask
something itself. The reference cuts after the last in both.

Each question costs 1, the one that was right nothing; a game that is over neither by that nor by twenty questions was
cut.

The environment takes recorded answers, and a seed draws what is hidden, so that an imported game gets the first free
number whose seed draws the record's word. Then it replays if the environment finds the same question right, by its own
rule for that, as the release did by its. What a word of the release is called here (Bombay may be Mumbai) is found by
that rule too: it is the one thing that is right when the word is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from env_servers.task import Env
from env_servers.tasks import make_env
from env_servers.tasks.questions import FIRST, MAX_QUESTIONS
from env_servers.trajectory import Trajectory, Turn
from hub_datasets.importers import CUT, POLICY, RECORD_END, Draft, Layout, MalformedRecord, Steps
from hub_datasets.importers.values import fields, flag, items, shown, text, turns_of

OTHER_NAME = "nothing that can be hidden here has its word for a name"
OTHER_JUDGE = "the environment finds other questions right, or takes one for no question"
END = "? "
SEEDS = 5_000  # which draw each of some hundred things many times
_SECRETS = ("word", "city", "country")


def _read(task: str, cut: Callable[[str, str], int], record: Any) -> Steps:
    found = fields(record, "word")
    lines, correct = ("lines", "correct") if "lines" in found else ("conversation", "done")
    if lines not in found or correct not in found:
        have = shown(list(found))
        raise MalformedRecord(f"the record has {have}; it must have lines and correct, or conversation and done")
    conversation = found[lines]
    if isinstance(conversation, str):
        conversation = conversation.splitlines()
    questions, answers = [], []
    for place, value in enumerate(items(conversation, lines)):
        line = " ".join(text(value, f"line {place}").split())
        at = cut(line, END)
        if at < 0:
            raise MalformedRecord(
                f"line {place} is {shown(line)}; it must be a question with ?, a space, and the answer"
            )
        questions.append(line[: at + 1])
        answers.append(line[at + 1 :].strip())
    if not questions:
        raise MalformedRecord("there is no question")
    if len(questions) > MAX_QUESTIONS:
        raise MalformedRecord(f"there are {len(questions)} questions; at most {MAX_QUESTIONS} are allowed")
    success = flag(found[correct], correct)
    facts = {**_hidden(task, found["word"]), "success": success}
    return Steps([FIRST, *answers[:-1]], questions, [], answers[-1], success, facts)


def _hidden(task: str, word: Any) -> dict[str, Any]:
    """What is hidden, under the names that the environment's `info` has for it."""
    names = [text(name, "word").strip() for name in (word if isinstance(word, list) else [word])]
    if not names or not names[0]:
        raise MalformedRecord(f"word is {shown(word)}; it must be a text, or a list of them")
    if task == "twenty_questions":
        return {"word": names}
    city, _, country = names[0].partition(",")
    return {"city": city.strip(), "country": country.strip()}


def _draft(task: str, steps: Steps, options: Mapping[str, Any]) -> Draft:
    asked, correct = len(steps.actions), bool(steps.facts.get("success"))
    if asked > MAX_QUESTIONS:
        raise MalformedRecord(f"there are {asked} questions; at most {MAX_QUESTIONS} are allowed")
    rewards = [-1.0] * (asked - 1) + [0.0 if correct else -1.0]
    over = correct or asked == MAX_QUESTIONS
    secret = {name: steps.facts[name] for name in _SECRETS if name in steps.facts}
    start = _start_named(task, tuple(_names(secret)))
    return Draft(
        turns=turns_of(steps, rewards),
        final_observation=steps.final,
        terminated=over,
        end_reason="guessed" if correct else "out_of_questions" if over else RECORD_END,
        success=correct,
        env_kwargs=options,
        # Another partner than the environment's own, so that replaying takes the recorded answers.
        info={**secret, "partner": POLICY, "partner_revision": "release"},
        no_replay="" if start is not None else OTHER_NAME,
        starts=None if start is None else [start],
    )


# What is hidden under which name --------------------------------------------------------------------------------------
def _names(secret: Mapping[str, Any]) -> Iterator[str]:
    """The names of what is hidden, from `info`."""
    word = secret.get("word", secret.get("city"))
    for name in word if isinstance(word, list) else [word]:
        if isinstance(name, str) and name:
            yield name


def _start_of(info: Mapping[str, Any]) -> str:
    return next(_names(info))


def _drawn(info: Mapping[str, Any]) -> dict[str, Any]:
    return {name: info[name] for name in _SECRETS if name in info}


@functools.cache
def _starts(task: str) -> dict[str, int]:
    """All that can be hidden, each with a seed that draws it."""
    env, starts = make_env(task), dict[str, int]()
    for seed in range(SEEDS):
        env.reset(seed)
        starts.setdefault(_start_of(env.info), seed)
    env.close()
    return starts


@functools.lru_cache(maxsize=10_000)
def _start_named(task: str, names: Sequence[str]) -> str | None:
    """What goes here by one of these names: its own, or one that is right for this thing alone when it is asked for."""
    starts = _starts(task)
    own = {start.lower(): start for start in starts}
    for name in names:
        if name.lower() in own:
            return own[name.lower()]
    for name in names:
        for question in (f"Is it {name}?", f"Is it a {name}?", f"Is it an {name}?"):
            right = [start for start, seed in starts.items() if _is_right(make_env(task), seed, question)]
            if len(right) == 1:
                return right[0]
    return None


def _is_right(env: Env, seed: int, question: str) -> bool:
    """Whether a question, answered by Yes, wins the game of that seed."""
    spec = env.spec
    record = Trajectory(
        task=spec.id,
        task_version=spec.version,
        env_kwargs={},
        split="train",
        index=0,
        seed=seed,
        turns=(Turn(FIRST, question, 0.0),),
        final_observation="Yes.",
        terminated=True,
        truncated=False,
        end_reason="guessed",
        success=True,
        num_invalid=0,
        behavior_policy=POLICY,
    )
    env.follow(record)
    env.reset(seed)
    won = env.step(question).success
    env.close()
    return won


def _layout(task: str, cut: Callable[[str, str], int]) -> Layout:
    return Layout(
        read=functools.partial(_read, task, cut),
        draft=functools.partial(_draft, task),
        reasons={
            **CUT,
            "guessed": "the last question was right",
            "out_of_questions": "the last of the questions was not right",
        },
        no_replay=(OTHER_NAME, OTHER_JUDGE),
        start_of=_start_of,
        drawn=_drawn,
        tried=OTHER_JUDGE,
    )


LAYOUTS = {
    "twenty_questions": _layout("twenty_questions", str.rfind),
    "guess_my_city": _layout("guess_my_city", str.find),
}
