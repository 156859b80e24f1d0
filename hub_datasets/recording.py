"""What partners answer, kept: the file that interactions are appended to, and who writes it.

One interaction is one question with its answer and all that the answer may depend on: the secret, what was said
before (as a hash that grows with the conversation), and the partner's seed in the episode. `hub_datasets.interactions`
makes a dataset of them, `hub_datasets.replay` answers from them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from env_servers.partners import Answer, Exchange, Interaction, Partner, Query
from env_servers.task import Env, EpisodeError
from env_servers.tasks import load_task, make_env
from env_servers.tasks.questions import QuestionGame
from hub_datasets.journal import encode_line, open_to_append, read_lines

SYNC_SECONDS = 1.0
_BEGINNING = b'{"task":'  # of every line, so that no other file is taken for a torn one


def hash_history(exchanges: Sequence[Exchange]) -> str:
    """Sixteen hexadecimal digits for a conversation: each exchange is hashed with what came before it.

    So the hash of one interaction's history, its question and the answer that the agent read give the hash of the next
    one's, and conversations can be put together again.
    """
    digest = ""
    for exchange in exchanges:
        text = "\x1f".join((digest, exchange.text, exchange.answer))
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return digest


def secret_key(secret: Mapping[str, Any]) -> str:
    """A secret as text, the same for equal secrets."""
    return json.dumps(secret, sort_keys=True, separators=(",", ":"))


def to_interaction(query: Query, answer: Answer, partner: str, revision: str) -> Interaction:
    """What a partner answered to a query."""
    return Interaction(
        query.task,
        query.secret,
        hash_history(query.exchanges),
        query.seed,
        query.text,
        query.prefix,
        answer.text,
        answer.understood,
        partner,
        revision,
    )


class InteractionLog:
    """A file of interactions, open for appending, by this process alone. A context manager.

    A line is handed to the operating system as soon as the answers are there, and forced to the disk at least once a
    second. What a process that died left torn at the end is taken off.

    Args:
        path: Made if it does not exist; what is there is kept.

    Attributes:
        dropped: Bytes of a torn line that were taken off.

    Raises:
        RuntimeError: Another process is writing the file.
        ValueError: The file holds something else, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RuntimeError(
                    f"{path} is being written by another process; wait until it ends, or record into another file"
                ) from None
            self._file, self.dropped = open_to_append(path, _end_of_lines(path))
        except BaseException:
            os.close(self._lock)
            raise
        self._synced = time.monotonic()

    def add(self, interactions: Sequence[Interaction]) -> None:
        """Append some."""
        self._file.write(b"".join(encode_line(_to_record(interaction)) for interaction in interactions))
        self._file.flush()
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        """Bring all to the disk and let others open the file."""
        try:
            os.fsync(self._file.fileno())
            self._file.close()
        finally:
            os.close(self._lock)

    def __enter__(self) -> InteractionLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Recording:
    """A partner whose answers are recorded; its name and revision stay those of the partner.

    Args:
        partner: Who answers.
        log: Where to; several partners may share one.
    """

    def __init__(self, partner: Partner, log: InteractionLog) -> None:
        self.partner, self.log = partner, log

    @property
    def name(self) -> str:
        """The partner's."""
        return self.partner.name

    @property
    def revision(self) -> str:
        """The partner's."""
        return self.partner.revision

    def answer(self, queries: Sequence[Query]) -> Sequence[Answer | EpisodeError]:
        """The partner's answers, in the file before anyone reads them. Errors are not recorded."""
        answers = self.partner.answer(queries)
        self.log.add(
            [
                to_interaction(query, answer, self.name, self.revision)
                for query, answer in zip(queries, answers, strict=True)
                if isinstance(answer, Answer)
            ]
        )
        return answers


@runtime_checkable
class HasFallback(Protocol):
    """A partner that answers from records, and may ask another one for what they lack."""

    fallback: Partner | None

    def with_fallback(self, fallback: Partner) -> Partner:
        """The same with another partner behind it."""
        ...


def recorded(partner: Partner, log: InteractionLog) -> Partner:
    """The partner, recorded; of one that answers from records, what its fallback answers: only that is new.

    Raises:
        ValueError: It answers from records alone.
    """
    if not isinstance(partner, HasFallback):
        return Recording(partner, log)
    if partner.fallback is None:
        raise ValueError(f"{partner.name} answers from records alone, so there is nothing to record; leave that out")
    return partner.with_fallback(recorded(partner.fallback, log))


class Recorder:
    """Makes environments whose partners are recorded into one file. A context manager.

    Args:
        path: As in `InteractionLog`, which also says what is raised.
    """

    def __init__(self, path: Path) -> None:
        self._log = InteractionLog(path)
        self._recorded: dict[int, tuple[Partner, Partner]] = {}  # kept alive, so that no number is used again

    def make_env(self, task: str, env_kwargs: Mapping[str, Any] | None = None) -> Env:
        """Like `env_servers.tasks.make_env`.

        Raises:
            ValueError: As there, or the task has no partner, or the partner answers from the very file.
        """
        kind, _, source = str((env_kwargs or {}).get("partner", "")).partition(":")
        if kind == "replay" and Path(source).absolute() == self._log.path.absolute():
            raise ValueError(
                f"{source} is what the partner answers from, and recording would change it; name another file"
            )
        env = make_env(task, env_kwargs)
        env.prepare()
        if env.partner is None:
            env.close()
            raise ValueError(f"{task} has no partner, so there is nothing to record; leave that out")
        own = env.partner
        if id(own) not in self._recorded:
            self._recorded[id(own)] = own, recorded(own, self._log)
        env.partner = self._recorded[id(own)][1]
        return env

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._log.close()


def read_recorded(path: Path) -> Iterator[Interaction]:
    """The interactions of a file that `InteractionLog` wrote, in its order; a torn last line is left out.

    Raises:
        ValueError: It is no such file, or it is damaged.
    """
    end = 0
    for line in read_lines(path):
        end, record = line.end, line.record
        try:
            yield Interaction(**{name: record[name] for name in Interaction._fields[:-1]})
        except KeyError as error:
            raise ValueError(f"{path}, line {line.number} lacks {error}; it was written by another version") from error
    _check_rest(path, end)


def depends_on_history(task: str) -> bool:
    """Whether the task's partner answers by what was said before: where it answers questions, it does not."""
    return not issubclass(load_task(task), QuestionGame)


_Said = tuple[str, bool | None, str | None, int | None]  # answer, understood, history, seed


class _Group(NamedTuple):
    """What is the same for interactions that should have the same answer."""

    task: str
    partner: str
    revision: str
    secret: str
    history: str | None
    question: str
    prefix: str


def compact(interactions: Iterable[Interaction]) -> list[Interaction]:
    """The same interactions with equal ones counted instead of repeated, in a fixed order.

    Where all answers to a question about a secret (after the same conversation, in a task where that matters) are
    equal, one interaction without seed stands for them. Where they differ, since the partner draws, each stays with
    its history and seed, so that an episode can be played again exactly.
    """
    groups: dict[_Group, Counter[_Said]] = {}
    secrets: dict[str, Mapping[str, Any]] = {}
    matters: dict[str, bool] = {}
    for one in interactions:
        if one.task not in matters:
            matters[one.task] = depends_on_history(one.task)
        key = secret_key(one.secret)
        secrets.setdefault(key, one.secret)
        history = one.history if matters[one.task] else None
        group = _Group(one.task, one.partner, one.revision, key, history, one.question, one.prefix)
        groups.setdefault(group, Counter())[one.answer, one.understood, one.history, one.seed] += one.times
    return [
        Interaction(
            group.task, secrets[group.secret], history, seed, group.question, group.prefix, answer, understood,
            group.partner, group.revision, count,
        )
        for group in sorted(groups, key=_sortable)
        for (answer, understood, history, seed), count in sorted(_merged(group, groups[group]).items(), key=_sortable)
    ]  # fmt: skip


def _merged(group: _Group, said: Counter[_Said]) -> Mapping[_Said, int]:
    understood = {item[1] for item in said} - {None}
    if len({item[0] for item in said}) > 1 or len(understood) > 1:
        return said
    answer = next(iter(said))[0]
    return {(answer, next(iter(understood), None), group.history, None): said.total()}


def _sortable(value: object) -> str:
    return json.dumps(value)


def _to_record(interaction: Interaction) -> dict[str, Any]:
    record = interaction._asdict()
    del record["times"]
    return {**record, "secret": dict(interaction.secret)}


def _end_of_lines(path: Path) -> int:
    """Where the last whole line ends."""
    end = 0
    for line in read_lines(path):
        end = line.end
    _check_rest(path, end)
    return end


def _check_rest(path: Path, end: int) -> None:
    """After the whole lines there may be one torn line of ours; anything else is another kind of file."""
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read(1 << 20)
    if b"\n" in rest[:-1] or not rest.startswith(_BEGINNING[: len(rest)]):
        raise ValueError(f"{path} is no file of recorded interactions, or it is damaged; name another file")
