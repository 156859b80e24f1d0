"""`replay:<dataset or recording>`: a partner that answers from recorded interactions.

An expensive oracle is asked once; from then on everyone gets its answers, and the same ones. A question is looked up
under its secret as it stands (`exact`), then without case, punctuation and articles (`normalised`), then, with an
embedding model, as the nearest recorded one (`nearest`), and at last given to another partner (`fallback`); the words
in brackets are the answer's `source`, which results count.

In a conversation (Car Dealer) an answer belongs to what was said before, so there only a conversation that went the
same way finds one. Where a partner that draws gave several answers, the one of the same moment of the same episode
is taken, so a recorded episode is played again exactly; elsewhere one is drawn by how often it was given.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from huggingface_hub import HfApi
from huggingface_hub.errors import OfflineModeIsEnabled

from env_servers.partners import Answer, Interaction, Partner, Query
from env_servers.task import EpisodeError
from hub_datasets.hub import HUB_ERRORS, explain
from hub_datasets.load import INTERACTIONS, load_split, resolve
from hub_datasets.manifest import file_sha256
from hub_datasets.recording import (
    compact,
    depends_on_history,
    hash_history,
    is_recording,
    read_recorded,
    secret_key,
)
from hub_datasets.rows import from_interaction_row

ARTICLES = frozenset({"a", "an", "the"})
WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W_]+")
DIGITS = 4  # similarities are compared after rounding: their last digits depend on what is embedded beside a text
UNRESOLVED = "unresolved"  # revision of a repository that is read offline, from the cache

Embedder = Callable[[Sequence[str]], npt.NDArray[np.float32]]


class UnrecordedQuestion(EpisodeError):
    """A question that nobody asked about this secret when the partner was recorded."""


class Embedding(NamedTuple):
    """An embedding model: its name with the commit, and what it does with texts (rows of length 1)."""

    name: str
    embed: Embedder


class _Said(NamedTuple):
    """An answer that was recorded to a question."""

    answer: str
    understood: bool
    history: str | None
    seed: int | None
    times: int


class _Place:
    """All that is recorded about one secret; in a conversation, after the same words."""

    def __init__(self) -> None:
        self.exact: dict[str, list[_Said]] = {}
        self.normalised: dict[str, list[_Said]] = {}
        self.vectors: npt.NDArray[np.float32] | None = None

    def add(self, interaction: Interaction) -> None:
        said = _Said(
            interaction.answer,
            interaction.understood is not False,
            interaction.history,
            interaction.seed,
            interaction.times,
        )
        self.exact.setdefault(interaction.question, []).append(said)
        if key := normalise(interaction.question):
            self.normalised.setdefault(key, []).append(said)


class ReplayPartner:
    """A partner that answers from records.

    Args:
        task: Task id.
        interactions: What was recorded, of one partner.
        name: Of the records, such as their repository.
        revision: Their commit or hash.
        fallback: Who is asked for what is not recorded; None makes it an error of that episode.
        embedding: To find the nearest recorded question.
        threshold: Least cosine similarity of a nearest question.

    Attributes:
        recorded: Name and revision of the partner that was recorded.

    Raises:
        ValueError: There is nothing recorded, or of several partners, or the threshold is out of range.
    """

    def __init__(
        self,
        task: str,
        interactions: Iterable[Interaction],
        *,
        name: str,
        revision: str,
        fallback: Partner | None = None,
        embedding: Embedding | None = None,
        threshold: float = 0.9,
    ) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold is {threshold}; a cosine similarity above 0 up to 1 is allowed")
        self.name, self.fallback = f"replay:{name}", fallback
        self._embedding, self._threshold = embedding, threshold
        self._conversation = depends_on_history(task)
        self._places: dict[tuple[str, str, str], _Place] = {}
        recorded = set[tuple[str, str]]()
        for one in interactions:
            recorded.add((one.partner, one.revision))
            key = (secret_key(one.secret), (one.history or "") if self._conversation else "", one.prefix)
            self._places.setdefault(key, _Place()).add(one)
        if len(recorded) != 1:
            listed = ", ".join(f"{partner}@{version}" for partner, version in sorted(recorded))
            raise ValueError(
                f"{name} holds no interactions of {task}; record some with --record"
                if not recorded
                else f"{name} was recorded with several partners ({listed}), whose answers would be mixed; choose one "
                "with the option recorded_by"
            )
        self.recorded = recorded.pop()
        nearest = [] if embedding is None else [f"nearest:{embedding.name}:{threshold:g}"]
        behind = [] if fallback is None else [f"{fallback.name}@{fallback.revision}"]
        self.revision = "+".join([revision, *nearest, *behind])

    def with_fallback(self, fallback: Partner) -> ReplayPartner:
        """The same with another partner behind it, of the same name and revision as the one there is."""
        other = copy.copy(self)
        other.fallback = fallback
        return other

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        """Look every query up; those that are not recorded go to the fallback together."""
        found: list[Answer | EpisodeError | None] = [self._look_up(query) for query in queries]
        for find in (self._nearest, self._ask_fallback):
            left = [number for number, answer in enumerate(found) if answer is None]
            for number, answer in zip(left, find([queries[number] for number in left]), strict=True):
                found[number] = answer
        return [
            answer if answer is not None else self._unrecorded(query)
            for answer, query in zip(found, queries, strict=True)
        ]

    def _place(self, query: Query) -> _Place | None:
        history = hash_history(query.exchanges) if self._conversation else ""
        return self._places.get((secret_key(query.secret), history, query.prefix))

    def _look_up(self, query: Query) -> Answer | None:
        place = self._place(query)
        if place is None:
            return None
        if said := place.exact.get(query.text):
            return _choose(query, said, "exact")
        if said := place.normalised.get(normalise(query.text)):
            return _choose(query, said, "normalised")
        return None

    def _nearest(self, queries: Sequence[Query]) -> list[Answer | None]:
        """The answers to the nearest recorded questions, where they are near enough."""
        if self._embedding is None or not queries:
            return [None] * len(queries)
        places = [self._place(query) for query in queries]
        self._embed_recorded([place for place in places if place is not None])
        vectors = self._embedding.embed([query.text for query in queries])
        answers: list[Answer | None] = []
        for query, place, vector in zip(queries, places, vectors, strict=True):
            answer = None
            if place is not None and place.vectors is not None:
                similarities = np.round(place.vectors @ vector, DIGITS)
                best = int(similarities.argmax())
                if similarities[best] >= self._threshold:
                    answer = _choose(query, list(place.exact.values())[best], "nearest")
            answers.append(answer)
        return answers

    def _embed_recorded(self, places: Sequence[_Place]) -> None:
        """Embed the recorded questions of these places, all that are missing at once."""
        assert self._embedding is not None
        missing = list({id(place): place for place in places if place.vectors is None}.values())
        texts = list(dict.fromkeys(text for place in missing for text in place.exact))
        if not texts:
            return
        row = {text: number for number, text in enumerate(texts)}
        vectors = self._embedding.embed(texts)
        for place in missing:
            place.vectors = vectors[[row[text] for text in place.exact]]

    def _ask_fallback(self, queries: Sequence[Query]) -> Sequence[Answer | EpisodeError | None]:
        if self.fallback is None or not queries:
            return [None] * len(queries)
        answers = self.fallback.answer(queries)
        return [answer._replace(source="fallback") if isinstance(answer, Answer) else answer for answer in answers]

    def _unrecorded(self, query: Query) -> UnrecordedQuestion:
        after = f" after {len(query.exchanges)} exchanges" if self._conversation else ""
        return UnrecordedQuestion(
            f"{self.name} has no recorded answer to {query.text!r} about {secret_key(query.secret)}{after}; name a "
            "partner that answers what is not recorded (--partner-option fallback=...), and record it (--record)"
        )


def _choose(query: Query, said: Sequence[_Said], source: str) -> Answer:
    """One of the answers that were given to a question."""
    chosen = said[0]
    if len(said) > 1:
        history = hash_history(query.exchanges)
        same = [one for one in said if one.seed == query.seed and one.history == history]
        among = same or said
        chosen = query.rng().choices(among, weights=[one.times for one in among])[0] if among[1:] else among[0]
    return Answer(chosen.answer, chosen.understood, source)


def normalise(text: str) -> str:
    """A question without case, punctuation, articles and commas in numbers, its words with one space between."""
    plain = (
        unicodedata.normalize("NFKC", text).casefold().replace("'", "").replace("\N{RIGHT SINGLE QUOTATION MARK}", "")
    )
    words = (word.replace(",", "") for word in WORD.findall(plain))
    return " ".join(word for word in words if word not in ARTICLES)


def replay_partner(
    task: str,
    argument: str,
    *,
    fallback: Partner | None = None,
    embed: str | None = None,
    threshold: float = 0.9,
    recorded_by: str | None = None,
) -> ReplayPartner:
    """A partner by what follows `replay:`.

    Args:
        task: Task id.
        argument: Task id, folder or repository with an `interactions` configuration, also as NAME@REVISION; or the
            file or the folder of files that `--record` wrote.
        fallback: As in `ReplayPartner`.
        embed: A model for the sentence-transformers package: folder, or repository, also as NAME@REVISION.
        threshold: As in `ReplayPartner`.
        recorded_by: Of records with several partners, whose to take: name, or NAME@REVISION.

    Raises:
        ValueError: As in `ReplayPartner`, or there is no such configuration.
        FileNotFoundError: There is no such dataset or model.
        ModuleNotFoundError: `embed` is given, and sentence-transformers is not installed.
    """
    interactions, name, revision = _load(argument)
    of_task = [one for one in interactions if one.task == task and _is_by(one, recorded_by)]
    embedding = None if embed is None else load_embedding(embed)
    return ReplayPartner(
        task,
        of_task,
        name=name,
        revision=revision or _hash(of_task),
        fallback=fallback,
        embedding=embedding,
        threshold=threshold,
    )


def _is_by(interaction: Interaction, partner: str | None) -> bool:
    return partner in (None, interaction.partner, f"{interaction.partner}@{interaction.revision}")


def _load(argument: str) -> tuple[list[Interaction], str, str | None]:
    """The interactions, the name of their source, and its commit if it is a repository's."""
    path = Path(argument)
    if is_recording(path):
        return compact(read_recorded(path)), path.resolve().name, None
    source = resolve(argument)
    rows = load_split(source, INTERACTIONS, "train", False, None)
    interactions = [from_interaction_row(row) for row in rows]
    if path.is_dir():
        return interactions, path.resolve().name, None
    return interactions, source.path, source.revision or UNRESOLVED


def _hash(interactions: Sequence[Interaction]) -> str:
    """SHA-256 of what was answered: the same for a recording, whatever the order of its lines, and its dataset."""
    total = hashlib.sha256()
    for one in interactions:
        total.update(json.dumps(one, sort_keys=True).encode() + b"\n")
    return total.hexdigest()


def load_embedding(name: str) -> Embedding:
    """A model of the sentence-transformers package.

    Raises:
        FileNotFoundError: There is no such folder or repository.
        ModuleNotFoundError: The package is not installed.
    """
    from sentence_transformers import SentenceTransformer

    path, revision = name, None
    if Path(name).is_dir():
        version = _hash_folder(Path(name))
    else:
        path, _, given = name.partition("@")
        try:
            revision = HfApi().model_info(path, revision=given or None).sha
        except OfflineModeIsEnabled:  # the cache answers by the name of the revision
            revision = given or None
        except HUB_ERRORS as error:
            raise explain(error, f"model {path}", given or None) from error
        version = revision or UNRESOLVED
    model: Any = SentenceTransformer(path, revision=revision)

    def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    return Embedding(f"{Path(path).name}@{version}", embed)


def _hash_folder(folder: Path) -> str:
    """SHA-256 over names and contents of all files in a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("**/*")):
        if path.is_file():
            total.update(f"{path.relative_to(folder)}\0{file_sha256(path)}\n".encode())
    return total.hexdigest()
