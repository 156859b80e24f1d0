"""What partners answer, kept: the file that interactions are appended to, and who writes it.

One interaction is one question with its answer and all that the answer may depend on: the secret, what was said
before (as a hash that grows with the conversation), and the partner's seed in the episode. All but the answer names a
*moment*: a question asked once. A moment that a file holds is answered from it, so that a run which was interrupted
pays nothing twice, and nothing is there twice.

A recording is a file, or a folder of such files, where several processes write at once, each its own.
`hub_datasets.interactions` makes a dataset of it, `hub_datasets.replay` answers from it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from env_servers.partners import Answer, Exchange, Interaction, Partner, Query
from env_servers.task import Env, EpisodeError
from env_servers.tasks import load_task, make_env
from env_servers.tasks.questions import QuestionGame
from hub_datasets.journal import Line, encode_line, open_to_append, read_lines

SUFFIX = ".jsonl"  # of recorded files in a folder
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


def moment_of(one: Interaction) -> bytes:
    """A hash of all of an interaction but its answer."""
    secret = secret_key(one.secret)
    named = (one.task, one.partner, one.revision, secret, one.history, one.seed, one.question, one.prefix)
    return hashlib.sha256(json.dumps(named).encode()).digest()[:16]


class InteractionLog:
    """A file of interactions, open for appending, by this process alone. A context manager.

    A line is handed to the operating system as soon as the answer is there, and forced to the disk at least once a
    second. What a process that died left torn at the end is taken off.

    Args:
        path: Made if it does not exist; what is there is kept.

    Attributes:
        answers: What was answered, by the hash of the moment (`moment_of`).
        dropped: Bytes of a torn line that were taken off.

    Raises:
        RuntimeError: Another process is writing the file.
        ValueError: The file holds something else, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[bytes, Answer] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._made = not path.exists()
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RuntimeError(
                    f"{path} is being written by another process; wait until it ends, or record into another file"
                ) from None
            self._file, self.dropped = open_to_append(path, self._read())
        except BaseException:
            os.close(self._lock)
            raise
        self._synced = time.monotonic()

    def _read(self) -> int:
        """Note the answers that are there; where the last whole line ends."""
        end = 0
        for line in _recorded_lines(self.path):
            end, more = line.end, line.record
            one = _from_record(line, self.path)
            answer = Answer(one.answer, one.understood is not False, more.get("source"), more.get("usage"))
            self.answers.setdefault(moment_of(one), answer)
        return end

    def add(self, moment: bytes, interaction: Interaction, answer: Answer) -> None:
        """Append what was answered at a moment that the file does not hold."""
        self._file.write(encode_line(_to_record(interaction, answer)))
        self._file.flush()
        self.answers[moment] = answer
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
        if self._made and not self.answers and error[0] is not None:
            self.path.unlink(missing_ok=True)  # what failed before it began leaves no file
        self.close()


@runtime_checkable
class AnswersEach(Protocol):
    """A partner whose answers come one by one, since each takes its time and has its price."""

    def answer_each(self, queries: Sequence[Query]) -> Iterator[tuple[int, Answer | EpisodeError]]:
        """As `Partner.answer`, each with the number of its query, in the order in which they come."""
        ...


class Recording:
    """A partner whose answers are recorded, and taken from the record where they are there already.

    Its name and revision stay those of the partner.

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

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        """The partner's answers, each in the file before anyone reads it. Errors are not recorded."""
        name, revision, known = self.name, self.revision, self.log.answers
        ones = [to_interaction(query, Answer(""), name, revision) for query in queries]
        moments = [moment_of(one) for one in ones]
        numbers = {moment: number for number, moment in enumerate(moments) if moment not in known}
        errors = dict[bytes, EpisodeError]()
        asked = list(numbers.items())
        for place, answer in self._ask([queries[number] for _, number in asked]):
            moment, number = asked[place]
            if isinstance(answer, Answer):
                one = ones[number]._replace(answer=answer.text, understood=answer.understood)
                self.log.add(moment, one, answer)
            else:
                errors[moment] = answer
        return [errors[moment] if moment in errors else known[moment] for moment in moments]

    def _ask(self, queries: Sequence[Query]) -> Iterable[tuple[int, Answer | EpisodeError]]:
        if not queries:
            return []
        if isinstance(self.partner, AnswersEach):
            return self.partner.answer_each(queries)
        answers = self.partner.answer(queries)
        if len(answers) != len(queries):
            raise ValueError(f"partner {self.name!r} gave {len(answers)} answers to {len(queries)} queries")
        return enumerate(answers)


@runtime_checkable
class HasFallback(Protocol):
    """A partner that answers from records, and may ask another one for what they lack."""

    fallback: Partner | None

    def with_fallback(self, fallback: Partner) -> Partner:
        """The same with another partner behind it."""
        ...


def recorded(partner: Partner, log: InteractionLog) -> Partner:
    """The partner, recorded; of one that answers from records, what its fallback answers: only that is new."""
    if not isinstance(partner, HasFallback):
        return Recording(partner, log)
    assert partner.fallback is not None, "it was looked at before"
    return partner.with_fallback(recorded(partner.fallback, log))


class Recorder:
    """Makes environments whose partners are recorded into one file. A context manager.

    Args:
        path: The file, as in `InteractionLog`, which also says what is raised; in a folder of recorded files it is
            `answers.jsonl`.

    Raises:
        FileExistsError: The path is a folder with other files.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            check_recording_folder(path)
            path = path / f"answers{SUFFIX}"
        self._log = InteractionLog(path)
        self._recorded: dict[int, tuple[Partner, Partner]] = {}  # kept alive, so that no number is used again

    def make_env(self, task: str, env_kwargs: Mapping[str, Any] | None = None) -> Env:
        """Like `env_servers.tasks.make_env`.

        Raises:
            ValueError: As there, or the task has no partner, or the partner answers from the very file, or from
                records alone.
        """
        env = _env_to_record(task, env_kwargs or {}, self._log.path)
        own = env.partner
        assert own is not None, "such an environment has a partner"
        if id(own) not in self._recorded:
            self._recorded[id(own)] = own, recorded(own, self._log)
        env.partner = self._recorded[id(own)][1]
        return env

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._log.__exit__(*error)


def _env_to_record(task: str, env_kwargs: Mapping[str, Any], path: Path) -> Env:
    """An environment with a partner that can be recorded there."""
    kind, _, source = str(env_kwargs.get("partner", "")).partition(":")
    if kind == "replay" and Path(source).absolute() in (path.absolute(), path.absolute().parent):
        raise ValueError(
            f"{source} is what the partner answers from, and recording would change it; record somewhere else"
        )
    env = make_env(task, env_kwargs)
    env.prepare()
    partner = env.partner
    while isinstance(partner, HasFallback) and partner.fallback is not None:
        partner = partner.fallback
    if partner is None or isinstance(partner, HasFallback):
        env.close()
        what = f"{task} has no partner" if partner is None else f"{partner.name} answers from records alone"
        raise ValueError(f"{what}, so there is nothing to record; leave --record out")
    return env


def check_recording_folder(folder: Path) -> None:
    """Raise a FileExistsError unless a folder is new, or holds recorded files alone."""
    if folder.is_file():
        raise FileExistsError(
            f"{folder} is a file, but several processes record here, each into a file of its own; name a folder"
        )
    others = sorted(path.name for path in folder.iterdir() if path.suffix != SUFFIX) if folder.exists() else []
    if others:
        raise FileExistsError(f"{folder} holds other files ({', '.join(others[:3])}); name a new folder to record into")


def check_recording(task: str, env_kwargs: Mapping[str, Any], folder: Path) -> None:
    """Raise what recording into a folder would raise, before any process begins.

    Raises:
        FileExistsError: It is a file, or has other files in it.
        ValueError: As in `Recorder.make_env`.
    """
    check_recording_folder(folder)
    with closing(_env_to_record(task, env_kwargs, folder / SUFFIX)):
        pass


def is_recording(path: Path) -> bool:
    """Whether it is a file, or a folder with recorded files (a dataset's has none beside its configurations).

    Raises:
        FileNotFoundError: By its name it is a recorded file, and there is none.
    """
    if path.suffix == SUFFIX and not path.exists():
        raise FileNotFoundError(f"{path} is not there; name a file or a folder that --record wrote")
    return path.is_file() or any(path.glob(f"*{SUFFIX}"))


def _recorded_files(path: Path) -> list[Path]:
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]


def read_recorded(path: Path) -> Iterator[Interaction]:
    """The interactions of a file that `InteractionLog` wrote, in its order, or of all such files of a folder.

    Each moment comes once, as it was recorded first; a torn last line is left out.

    Raises:
        ValueError: A file is no such file, or it is damaged.
    """
    seen = set[bytes]()
    for file in _recorded_files(path):
        for line in _recorded_lines(file):
            one = _from_record(line, file)
            if (moment := moment_of(one)) not in seen:
                seen.add(moment)
                yield one


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


def _to_record(interaction: Interaction, answer: Answer) -> dict[str, Any]:
    record = interaction._asdict()
    del record["times"]
    more = {name: value for name in ("source", "usage") if (value := getattr(answer, name)) is not None}
    return {**record, "secret": dict(interaction.secret), **more}


def _from_record(line: Line, path: Path) -> Interaction:
    try:
        return Interaction(**{name: line.record[name] for name in Interaction._fields[:-1]})
    except KeyError as error:
        raise ValueError(
            f"{path}, line {line.number} lacks {error}; it is no recorded answer, or one of another version"
        ) from error


def _recorded_lines(path: Path) -> Iterator[Line]:
    """The whole lines of a file, which may have a torn one at its end."""
    end = 0
    for line in read_lines(path):
        end = line.end
        yield line
    _check_rest(path, end)


def _check_rest(path: Path, end: int) -> None:
    """After the whole lines there may be one torn line of ours; anything else is another kind of file."""
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read(1 << 20)
    if b"\n" in rest[:-1] or not rest.startswith(_BEGINNING[: len(rest)]):
        raise ValueError(f"{path} is no file of recorded interactions, or it is damaged; name another file")
