"""Partners by name, their answers recorded, made a dataset, and replayed; what an evaluation says of them.

This file is also the script that talks with the test Hub: `python test_interactions.py <folder>`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_game
from hub_server import HubServer, client_environment
from small_game import BUYER, DICE, OWN, Failing
from typer.testing import CliRunner

from env_servers import partners, tasks
from env_servers.cli import app as lmrl
from env_servers.partners import Answer, AnsweringPartner, Exchange, Interaction, Partner, Query, find_partner
from env_servers.play import Played, episode_starts, play, replay
from env_servers.task import Env, EpisodeError
from env_servers.tasks import make_env, make_policy
from env_servers.trajectory import Trajectory
from eval_harness.cli import eval_app, report_app
from eval_harness.log import read_header
from eval_harness.report import settings, to_markdown, to_partner_table
from eval_harness.run import run
from eval_harness.score import score
from hub_datasets import build as build_module
from hub_datasets.build import build
from hub_datasets.cli import app as data_app
from hub_datasets.interactions import build_interactions, interactions_of, read_interactions
from hub_datasets.load import load_split, resolve
from hub_datasets.manifest import read_manifests
from hub_datasets.plan import make_plan
from hub_datasets.recording import (
    InteractionLog,
    Recorder,
    Recording,
    compact,
    hash_history,
    moment_of,
    read_recorded,
    to_interaction,
)
from hub_datasets.replay import ReplayPartner, UnrecordedQuestion, load_embedding, normalise, replay_partner
from hub_datasets.verify import verify

SMALL = {"twenty_questions": "small_game:SmallGame", "car_dealer": "small_game:SmallTalk"}
CAT = {"word": ["Cat"]}


def flow_publish(folder: Path) -> Any:
    """Episodes and interactions in one repository, then interactions alone in another; replayed by name."""
    from huggingface_hub import HfApi

    from hub_datasets.publish import publish

    whole = publish(folder, "alice/questions", tag="v1")
    again = publish(folder, "alice/questions", tag="v1")
    alone = folder.parent / "alone"
    build_interactions([str(folder)], alone)
    publish(alone, "alice/answers")
    other = folder.parent / "other"
    build_interactions([str(folder)], other, config="episodes")
    log = folder.parent / "one.jsonl"
    with InteractionLog(log) as file:
        Recording(OWN, file).answer([query("Can it fly?")])
    build_interactions([str(log)], other, overwrite=True)
    try:
        publish(other, "alice/answers")
        refused = ""
    except FileExistsError as error:
        refused = str(error)
    partner = replay_partner("twenty_questions", "alice/questions@v1")
    return {
        "changed": [whole.changed, again.changed],
        "revision": whole.revision,
        "partner": [partner.name, partner.revision],
        "answer": partner.answer([query("Is it alive?")])[0],
        "files": HfApi().list_repo_files("alice/answers", repo_type="dataset"),
        "verified": list(verify("alice/questions"))[1:],
        "verified_alone": list(verify("alice/answers"))[1:],
        "refused": refused,
    }


def query(text: str, *, secret: Any = None, seed: int = 5, exchanges: Sequence[Exchange] = ()) -> Query:
    return Query("twenty_questions", secret or CAT, tuple(exchanges), text, seed)


def line(question: str, answer: str = "Yes.", **changes: Any) -> Interaction:
    values: dict[str, Any] = {
        "task": "twenty_questions", "secret": CAT, "history": None, "seed": None, "question": question, "prefix": "",
        "answer": answer, "understood": True, "partner": "oracle", "revision": "1", "times": 1,
    }  # fmt: skip
    return Interaction(**{**values, **changes})


if __name__ == "__main__":
    small_game.install()
    print("RESULT " + json.dumps(flow_publish(Path(sys.argv[1]))))
    sys.exit()


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASKS", {**tasks.TASKS, **SMALL})
    monkeypatch.setattr(partners, "_made", {})


def episodes(task: str, env_maker: Any = make_env, policy: str = "behavior", count: int = 8) -> list[Trajectory]:
    starts = episode_starts(task, "test", range(count))
    played: Iterator[Played] = play(task, make_policy(task, policy), starts, env_maker=env_maker)
    return sorted((one.trajectory for one in played), key=lambda trajectory: trajectory.index)


def course(trajectory: Trajectory) -> Any:
    """All that was said and paid, and how it ended."""
    ends = (trajectory.terminated, trajectory.end_reason, trajectory.success, trajectory.num_invalid)
    return trajectory.turns, trajectory.final_observation, ends


def with_partner(partner: Partner) -> Any:
    def maker(task: str, env_kwargs: Any) -> Env:
        env = make_env(task, env_kwargs)
        env.partner = partner
        return env

    return maker


def record(path: Path, task: str, partner: Partner) -> list[Trajectory]:
    with InteractionLog(path) as log:
        return episodes(task, with_partner(Recording(partner, log)))


# Finding partners --------------------------------------------------------------------------------------------------


def test_a_partner_is_made_once_for_a_name_with_its_options(tmp_path: Path) -> None:
    record(tmp_path / "a.jsonl", "twenty_questions", OWN)
    name = f"replay:{tmp_path / 'a.jsonl'}"

    def find(**options: Any) -> Partner:
        return find_partner("twenty_questions", name, options, lambda: OWN)

    assert find() is find() and find(threshold=0.5) is not find()
    behind = find(fallback="knowledge")
    assert behind is find(fallback="knowledge") is not find()
    assert isinstance(behind, ReplayPartner) and behind.fallback is OWN
    assert behind.revision == f"{find().revision}+knowledge@7"
    twice = find(fallback=name, fallback_options={"threshold": 0.5})
    assert isinstance(twice, ReplayPartner) and twice.fallback is find(threshold=0.5)
    with pytest.raises(ValueError, match=r"'replay' has no option 'treshold'; known: fallback, embed, threshold, rec"):
        find(treshold=0.5)
    with pytest.raises(ValueError, match="partner is 'knowlege'; allowed: knowledge, replay:<dataset"):
        find(fallback="knowlege")
    with pytest.raises(ValueError, match="there are fallback_options, but no fallback"):
        find(fallback_options={})
    with pytest.raises(ValueError, match=r"takes no options, got \{'a': 1\}"):
        make_env("twenty_questions", {"partner_options": {"a": 1}})


# Recording ---------------------------------------------------------------------------------------------------------


def test_each_answer_is_recorded_with_all_that_it_may_depend_on(tmp_path: Path) -> None:
    past = (Exchange("Is it alive?", "Yes."), Exchange("Does it bark?", "No."))
    failing = Failing("Can it fly?")
    with InteractionLog(tmp_path / "a.jsonl") as log:
        partner = Recording(failing, log)
        assert (partner.name, partner.revision) == ("failing", "1")
        answers = partner.answer([query("Is it a cat?", exchanges=past), query("Can it fly?"), query("Is it odd?")])
        found = list(read_recorded(tmp_path / "a.jsonl"))  # while the file is still open
    assert [type(answer) for answer in answers] == [Answer, EpisodeError, Answer]
    empty = {"partner": "failing", "revision": "1", "seed": 5}
    assert found == [
        line("Is it a cat?", history=hash_history(past), **empty),
        line("Is it odd?", "No.", history=hash_history(()), understood=False, **empty),
    ]
    assert hash_history(()) == "" and hash_history(past) != hash_history(past[::-1]) != hash_history(past[:1])
    assert hash_history([Exchange("a", "b\x1fc")]) != hash_history([Exchange("a", "b"), Exchange("c", "")])


class Dear:
    """A partner that never answers twice alike, and whose answers cost; it ends the run before answer `stop`."""

    name, revision = "dear", "1"

    def __init__(self, asked: list[Query], stop: int | None = None) -> None:
        self.asked, self.stop = asked, stop

    def _reply(self, one: Query) -> Answer:
        if len(self.asked) == self.stop:
            raise KeyboardInterrupt
        self.asked.append(one)
        number = len(self.asked)
        return Answer(f"Yes ({number}).", number % 3 > 0, "phone", {"tokens": number})

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        return [self._reply(one) for one in queries]


class DearOnes(Dear):
    """The same, answering one after the other, the last question first."""

    def answer_each(self, queries: Sequence[Query]) -> Iterator[tuple[int, Answer | EpisodeError]]:
        for number in reversed(range(len(queries))):
            yield number, self._reply(queries[number])


@pytest.mark.parametrize("kind", [Dear, DearOnes])
def test_what_is_recorded_is_not_asked_again(tmp_path: Path, kind: type[Dear]) -> None:
    path, paid = tmp_path / "a.jsonl", list[Query]()
    past = (Exchange("Is it alive?", "Yes."),)
    asked = [query("Is it a cat?"), query("Can it fly?"), query("Is it a cat?")]
    with InteractionLog(path) as log:
        first = Recording(kind(paid), log).answer(asked)
        assert first[0] == first[2] != first[1] and len(paid) == 2
    with InteractionLog(path) as log:  # another process
        again = kind(paid)
        assert Recording(again, log).answer(asked) == first and len(paid) == 2, "words, source and cost are those"
        others = [query("Can it fly?", seed=6), query("Can it fly?", exchanges=past), query("can it fly?")]
        others += [query("Can it fly?", secret={"word": ["Dog"]}), query("Can it fly?")._replace(prefix="So")]
        Recording(again, log).answer(others)
        assert len(paid) == 2 + 5
        again.revision = "2"
        Recording(again, log).answer(asked)
        assert len(paid) == 2 + 5 + 2
        failing = Failing("Can it fly?")
        for _ in range(2):
            found = Recording(failing, log).answer([query("Can it fly?"), query("Is it odd?")])
            assert [type(one) for one in found] == [EpisodeError, Answer], "an error is no answer"
    assert len(list(read_recorded(path))) == path.read_bytes().count(b"\n") == 2 + 5 + 2 + 1


def test_a_folder_is_read_as_one_recording(tmp_path: Path) -> None:
    folder = tmp_path / "asked"
    for name, questions in (("b", ["Is it alive?", "Can it fly?"]), ("a", ["Is it alive?", "Does it bark?"])):
        with InteractionLog(folder / f"{name}.jsonl") as log:
            Recording(OWN, log).answer([query(text) for text in questions])
    with Recorder(folder) as recorder:
        env = recorder.make_env("twenty_questions")
        env.reset(1)
        env.step("Is it odd?")
        with pytest.raises(ValueError, match="asked is what the partner answers from"):
            recorder.make_env("twenty_questions", {"partner": f"replay:{folder}"})
    assert [path.name for path in sorted(folder.iterdir())] == ["a.jsonl", "answers.jsonl", "b.jsonl"]
    found = list(read_recorded(folder))
    assert [one.question for one in found] == ["Is it alive?", "Does it bark?", "Is it odd?", "Can it fly?"]
    assert list(read_interactions(str(folder))) == found
    build_interactions([str(folder)], tmp_path / "data")
    replayed = [replay_partner("twenty_questions", str(path)) for path in (folder, tmp_path / "data")]
    assert [one.name for one in replayed] == ["replay:asked", "replay:data"]
    assert replayed[0].revision == replayed[1].revision, "what was said makes the revision"
    assert replayed[0].answer([query("Can it fly?")]) == [Answer("No.", source="exact")]
    whole = (folder / "b.jsonl").read_bytes()
    (folder / "b.jsonl").write_bytes(whole[: whole.index(b"\n") + 9])
    (folder / "c.jsonl").write_bytes(whole + whole[:9])
    assert replay_partner("twenty_questions", str(folder)).revision == replayed[0].revision
    (folder / "b.jsonl").unlink()
    (folder / "c.jsonl").unlink()
    assert replay_partner("twenty_questions", str(folder)).revision != replayed[0].revision


def test_what_cannot_be_recorded_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="maze has no partner"), Recorder(tmp_path / "a.jsonl") as recorder:
        recorder.make_env("maze")
    assert not list(tmp_path.iterdir())
    (tmp_path / "notes.txt").write_text("words")
    with pytest.raises(FileExistsError, match=r"holds other files \(notes\.txt\); name a new folder"):
        Recorder(tmp_path)
    for read in (lambda path: replay_partner("twenty_questions", path), lambda path: list(read_interactions(path))):
        with pytest.raises(FileNotFoundError, match=r"none\.jsonl is not there; name a file or a folder that --record"):
            read(str(tmp_path / "none.jsonl"))
    with Recorder(tmp_path / "a.jsonl") as recorder:
        recorder.make_env("twenty_questions")
    with pytest.raises(ValueError, match=r"a\.jsonl: no answer of a partner is recorded there"):
        build_interactions([str(tmp_path / "a.jsonl")], tmp_path / "data")


def test_half_a_surrogate_pair_can_be_recorded_and_published(tmp_path: Path) -> None:
    with InteractionLog(tmp_path / "a.jsonl") as log:
        Recording(OWN, log).answer([query("Is it \ud83d alive?")])
    build_interactions([str(tmp_path / "a.jsonl")], tmp_path / "data")
    (one,) = read_interactions(str(tmp_path / "data"))
    assert one.question == "Is it ? alive?"
    partner = replay_partner("twenty_questions", str(tmp_path / "data"))
    assert partner.answer([query("Is it \ud83d alive?")]) == [Answer("No.", understood=False, source="normalised")]


def test_what_a_dying_process_left_torn_is_dropped_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with InteractionLog(path) as log:
        Recording(OWN, log).answer([query("Is it alive?"), query("Can it fly?")])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in [first, first + 1, *range(first + 3, len(whole), 19), len(whole) - 1]:
        path.write_bytes(whole[:end])
        assert [one.question for one in read_recorded(path)] == ["Is it alive?"]
        with InteractionLog(path) as log:
            assert log.dropped == end - first
            Recording(OWN, log).answer([query("Does it bark?")])
        assert [one.question for one in read_recorded(path)] == ["Is it alive?", "Does it bark?"]


def test_a_file_has_one_writer_and_is_never_another_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with InteractionLog(path), pytest.raises(RuntimeError, match=r"a\.jsonl is being written by another process"):
        InteractionLog(path)
    InteractionLog(path).close()
    for content in (b"# Words\n\nof mine", b"words", b'{"task":"maze"}\n{"task":'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is no file of recorded interactions"):
            InteractionLog(path)
        with pytest.raises(ValueError, match="is no file of recorded interactions"):
            list(read_recorded(path))
        assert path.read_bytes() == content


def test_the_recorder_records_every_environment_that_it_makes(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.jsonl") as recorder:
        played = episodes("twenty_questions", recorder.make_env)
        with pytest.raises(ValueError, match="maze has no partner, so there is nothing to record"):
            recorder.make_env("maze")
    assert [course(one) for one in played] == [course(one) for one in episodes("twenty_questions")]
    asked = sum(one.num_turns - one.num_invalid for one in played)
    assert len(list(read_recorded(tmp_path / "a.jsonl"))) == asked > 20


def test_behind_a_replay_only_what_is_new_is_recorded_under_its_own_name(tmp_path: Path) -> None:
    known, new = tmp_path / "known.jsonl", tmp_path / "new.jsonl"
    with InteractionLog(known) as log:
        Recording(OWN, log).answer([query("Is it alive?")])
    options = {"partner": f"replay:{known}", "partner_options": {"fallback": "knowledge"}}
    with Recorder(new) as recorder:
        env = recorder.make_env("twenty_questions", options)
        assert env.partner is not None
        answers = env.partner.answer([query("Is it alive?"), query("Can it fly?")])
        assert recorder.make_env("twenty_questions", options).partner is env.partner, "one batch for all episodes"
        with pytest.raises(ValueError, match=r"new\.jsonl is what the partner answers from"):
            recorder.make_env("twenty_questions", {"partner": f"replay:{new}"})
        with pytest.raises(ValueError, match=r"replay:known\.jsonl answers from records alone"):
            recorder.make_env("twenty_questions", {"partner": f"replay:{known}"})
    assert [answer.source for answer in answers if isinstance(answer, Answer)] == ["exact", "fallback"]
    assert [(one.question, one.partner) for one in read_recorded(new)] == [("Can it fly?", "knowledge")]


# Replay ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "partner"), [("twenty_questions", OWN), ("twenty_questions", DICE), ("car_dealer", BUYER)]
)
def test_a_recorded_episode_is_played_again_exactly(tmp_path: Path, task: str, partner: Partner) -> None:
    path = tmp_path / "a.jsonl"
    before = record(path, task, partner)
    again = ReplayPartner(task, compact(read_recorded(path)), name="a", revision="1")
    after = episodes(task, with_partner(again))
    assert [course(one) for one in after] == [course(one) for one in before]
    assert [one.info["not_understood"] for one in after] == [one.info["not_understood"] for one in before]
    assert {source for one in after for source in one.info["answer_sources"]} == {"exact"}
    assert all(replay(one) is None for one in after if task == "twenty_questions")
    assert again.recorded == (partner.name, partner.revision)


def test_a_question_is_found_as_it_is_then_normalised_then_by_the_fallback() -> None:
    recorded = [line("Is it a cat?"), line("Is it bigger than 1,000 kg?", "No.", understood=False)]
    partner = ReplayPartner("twenty_questions", recorded, name="a", revision="1", fallback=OWN)
    asked = ["Is it a cat?", "is it THE cat", "Is it bigger than 1000 kg...", "Can it fly?", "What?"]
    assert partner.answer([query(text) for text in asked]) == [
        Answer("Yes.", source="exact"),
        Answer("Yes.", source="normalised"),
        Answer("No.", understood=False, source="normalised"),
        Answer("No.", source="fallback"),
        Answer("No.", understood=False, source="fallback"),
    ]
    alone = ReplayPartner("twenty_questions", recorded, name="a", revision="1")
    other_secret = query("Is it a cat?", secret={"word": ["Dog"]})
    found = alone.answer([query("Is it a cat?"), other_secret])
    assert isinstance(found[0], Answer) and isinstance(found[1], UnrecordedQuestion)
    assert 'no recorded answer to \'Is it a cat?\' about {"word":["Dog"]};' in str(found[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Is IT the  Cat?! ", "is it cat"),
        ("Isn\N{RIGHT SINGLE QUOTATION MARK}t it a dog's?", "isnt it dogs"),
        ("Does it cost $10,500.50?", "does it cost 10500.50"),
        ("Straße, CAFÉ", "strasse café"),
        ("An A the", ""),
        ("...", ""),
    ],
)
def test_normalised(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_texts_without_words_match_only_themselves() -> None:
    partner = ReplayPartner("twenty_questions", [line("...")], name="a", revision="1")
    found = partner.answer([query("..."), query("?!")])
    assert isinstance(found[0], Answer) and isinstance(found[1], UnrecordedQuestion)


def test_the_nearest_question_about_the_same_secret_answers_if_it_is_near_enough() -> None:
    vectors = {
        "Is it alive?": (1, 0),
        "Can it fly?": (0, 1),
        "living": (0.8, 0.6),
        "winged": (0.6, 0.8),
        "odd": (-1, 0),
    }
    calls: list[list[str]] = []

    def embed(texts: Sequence[str]) -> Any:
        calls.append(list(texts))
        return np.array([vectors[text] for text in texts], dtype=np.float32)

    dog = {"word": ["Dog"]}
    recorded = [line("Is it alive?", "A"), line("Can it fly?", "B"), line("Is it alive?", "C", secret=dog)]
    partner = ReplayPartner(
        "twenty_questions", recorded, name="a", revision="1", embedding=SimpleNamespace(name="m@2", embed=embed),
        threshold=0.8,
    )  # fmt: skip
    assert partner.revision == "1+nearest:m@2:0.8"
    answers = partner.answer(
        [query("living"), query("Is it alive?"), query("winged"), query("odd"), query("living", secret=dog)]
    )
    assert answers[:3] == [Answer("A", source="nearest"), Answer("A", source="exact"), Answer("B", source="nearest")]
    assert isinstance(answers[3], UnrecordedQuestion)
    assert answers[4] == Answer("C", source="nearest")
    partner.answer([query("winged"), query("Is it alive?")])
    assert calls == [["Is it alive?", "Can it fly?"], ["living", "winged", "odd", "living"], ["winged"]]
    far = query("living", secret=dog)
    assert isinstance(ReplayPartner.answer(partner, [far._replace(secret={"word": ["Cup"]})])[0], UnrecordedQuestion)


def test_embeddings_are_those_of_the_sentence_transformers_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its documented interface, by a stand-in: the package is an extra of its own."""
    seen: list[Any] = []

    class SentenceTransformer:
        def __init__(self, path: str, *, revision: str | None = None) -> None:
            seen.append((path, revision))

        def encode(self, sentences: list[str], *, normalize_embeddings: bool, show_progress_bar: bool) -> Any:
            seen.append((sentences, normalize_embeddings, show_progress_bar))
            return np.eye(len(sentences), dtype=np.float64)

    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=SentenceTransformer))
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini/config.json").write_text("{}")
    embedding = load_embedding(str(tmp_path / "mini"))
    vectors = embedding.embed(("a", "b"))
    assert vectors.dtype == np.float32 and vectors.tolist() == [[1, 0], [0, 1]]
    assert seen == [(str(tmp_path / "mini"), None), (["a", "b"], True, False)]
    (tmp_path / "mini/config.json").write_text("{ }")
    assert load_embedding(str(tmp_path / "mini")).name != embedding.name, "another model is another revision"


def test_of_several_answers_one_is_drawn_by_how_often_it_was_given() -> None:
    recorded = [line("Hm?", "often", seed=1, history="x", times=3), line("Hm?", "seldom", seed=2, history="x")]
    partner = ReplayPartner("twenty_questions", recorded, name="a", revision="1")
    answers = partner.answer([query("Hm?", seed=seed) for seed in range(100, 500)])
    share = sum(answer.text == "often" for answer in answers if isinstance(answer, Answer)) / 400
    assert abs(share - 0.75) < 0.07  # three standard deviations
    assert partner.answer([query("Hm?", seed=200)]) == [answers[100]], "whatever is asked beside it"


def test_in_a_conversation_only_the_same_past_has_an_answer() -> None:
    past = (Exchange("Hello", "Hi"),)
    talk = query("Hm?")._replace(task="car_dealer")
    recorded = [
        line("Hm?", "later", task="car_dealer", history=hash_history(past)),
        line("Hm?", "first", task="car_dealer", history=""),
    ]
    partner = ReplayPartner("car_dealer", recorded, name="a", revision="1")
    asked = [
        talk,
        talk._replace(exchanges=past),
        talk._replace(exchanges=(Exchange("Hello", "Ho"),)),
        talk._replace(prefix="So"),
    ]
    answers = partner.answer(asked)
    assert [answer.text for answer in answers if isinstance(answer, Answer)] == ["first", "later"]
    assert "about" in str(answers[2]) and "after 1 exchanges" in str(answers[2])


def test_records_of_several_partners_are_not_mixed(tmp_path: Path) -> None:
    with InteractionLog(tmp_path / "a.jsonl") as log:
        for partner in (OWN, DICE, AnsweringPartner("dice", "2", lambda query: Answer("2"))):
            Recording(partner, log).answer([query("Is it alive?")])
    where = str(tmp_path / "a.jsonl")
    with pytest.raises(
        ValueError, match=r"several partners \(dice@1, dice@2, knowledge@7\), .* choose one with .* recorded_by"
    ):
        replay_partner("twenty_questions", where)
    with pytest.raises(ValueError, match=r"\(dice@1, dice@2\)"):
        replay_partner("twenty_questions", where, recorded_by="dice")
    assert replay_partner("twenty_questions", where, recorded_by="dice@2").answer([query("Is it alive?")]) == [
        Answer("2", source="exact")
    ]
    with pytest.raises(ValueError, match=r"a\.jsonl holds no interactions of car_dealer; record some with --record"):
        replay_partner("car_dealer", where)
    with pytest.raises(ValueError, match=r"threshold is 1\.5"):
        replay_partner("twenty_questions", where, recorded_by="knowledge", threshold=1.5)


# A dataset of interactions ------------------------------------------------------------------------------------------


def test_equal_answers_are_counted_and_others_keep_their_moment() -> None:
    at = [{"history": "x", "seed": 1}, {"history": "y", "seed": 2}]
    raw = [line("A", **at[0]), line("A", **at[1]), line("A", **at[0]), line("B", "1", **at[0]), line("B", "2", **at[1])]
    raw += [line("C", understood=None, **at[0]), line("C", understood=False, **at[1]), line("A", revision="2", **at[0])]
    expected = [
        line("A", times=3), line("B", "1", **at[0]), line("B", "2", **at[1]), line("C", understood=False, times=2),
        line("A", revision="2"),
    ]  # fmt: skip
    assert compact(raw) == compact(raw[::-1]) == expected
    assert compact([*expected, *raw]) == [repeated(one, 2) for one in expected], "and compacting again adds up"
    talk = [one._replace(task="car_dealer") for one in raw[:3]]
    assert compact(talk) == [
        line("A", task="car_dealer", history="x", times=2), line("A", task="car_dealer", history="y"),
    ]  # fmt: skip


def repeated(one: Interaction, factor: int) -> Interaction:
    return one._replace(times=one.times * factor)


@pytest.mark.parametrize(("task", "partner"), [("twenty_questions", DICE), ("car_dealer", BUYER)])
def test_episodes_tell_what_was_asked(tmp_path: Path, task: str, partner: Partner) -> None:
    played = record(tmp_path / "a.jsonl", task, partner)
    found = [one for trajectory in played for one in interactions_of(trajectory)]
    recorded = sorted(read_recorded(tmp_path / "a.jsonl"), key=str)
    vague = {one.seed for one in recorded if one.understood is False}  # of these episodes, not known which
    assert sorted((one._replace(understood=True) for one in found), key=str) == sorted(
        (one._replace(understood=True) for one in recorded), key=str
    )
    assert {one.seed for one in found if one.understood is None} == vague
    one = max(played, key=lambda trajectory: trajectory.num_turns)
    broken = replace(one, info={**one.info, "partner": None})
    with pytest.raises(ValueError, match="names no partner with a revision"):
        interactions_of(broken)
    turns = (*one.turns[:1], one.turns[1]._replace(reward=9.0), *one.turns[2:])
    with pytest.raises(ValueError, match="goes another way"):
        interactions_of(replace(one, turns=turns))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with episodes and, beside them, what the partner was asked in them."""
    path = tmp_path_factory.mktemp("built") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "TASKS", {**tasks.TASKS, **SMALL})
        build(make_plan("twenty_questions", episodes={"train": 20, "validation": 5}), path, workers=1)
        build_interactions([str(path)], path)
    return path


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(built, tmp_path / "data"))


def test_interactions_stand_beside_the_episodes_and_are_verified(folder: Path) -> None:
    first, second = read_manifests(folder)
    assert (first["config"], second["config"]) == ("episodes", "interactions")
    (partner,) = second["partners"]
    rows = load_split(resolve(str(folder)), "interactions", "train", False, None)
    assert (partner["partner"], partner["revision"]) == ("knowledge", "7")
    assert partner["interactions"] == len(rows) == len({(row["secret"]["word"][-1], row["question"]) for row in rows})
    assert partner["recorded"] == sum(row["times"] for row in rows) > len(rows)
    assert (partner["secrets"], partner["questions"]) == (4, 8)
    found = verify(str(folder))
    assert (found.episodes, found.problem, found.interactions) == (25, None, len(rows))
    card = (folder / "README.md").read_text()
    assert "--partner replay:lmrl/twenty_questions" in card
    assert f"| `knowledge` | `7` | {len(rows)} | {partner['recorded']} | 4 | 8 |" in card
    with (folder / "interactions/train-00000-of-00001.parquet").open("ab") as file:
        file.write(b"x")
    assert "is not the file that was built" in str(verify(str(folder)).problem)


def test_building_interactions_again_adds_or_refuses(folder: Path, tmp_path: Path) -> None:
    manifest = read_manifests(folder)[1]
    assert build_interactions([str(folder)], folder, config="episodes") == manifest, "the same is no change"
    with InteractionLog(tmp_path / "new.jsonl") as log:
        Recording(OWN, log).answer([query("Is it new?")])
    with pytest.raises(FileExistsError, match="already has other interactions"):
        build_interactions([str(tmp_path / "new.jsonl")], folder)
    assert read_manifests(folder)[1] == manifest
    both = build_interactions([str(tmp_path / "new.jsonl"), str(folder)], folder, overwrite=True)
    assert both["partners"][0]["interactions"] == manifest["partners"][0]["interactions"] + 1
    other = tmp_path / "other"
    turned = build_interactions([str(folder)], other)
    assert turned["fingerprint"] == both["fingerprint"]
    assert [path.name for path in other.iterdir() if path.is_dir()] == ["interactions"]
    assert "Recorded answers of a partner" in (other / "README.md").read_text()
    assert verify(str(other)).interactions == both["partners"][0]["interactions"]


def test_interactions_go_only_where_they_belong(folder: Path, tmp_path: Path) -> None:
    record(tmp_path / "talk.jsonl", "car_dealer", BUYER)
    talk = str(tmp_path / "talk.jsonl")
    with pytest.raises(FileExistsError, match="holds a dataset of twenty_questions, not of car_dealer"):
        build_interactions([talk], folder)
    with pytest.raises(ValueError, match="interactions of car_dealer, twenty_questions; give those of one task"):
        build_interactions([talk, str(folder)], tmp_path / "new")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("words")
    with pytest.raises(FileExistsError, match="is not empty and holds no dataset"):
        build_interactions([talk], tmp_path / "mine")
    with pytest.raises(ValueError, match=r"and not 'tasks' .* or 'interactions'"):
        make_plan("twenty_questions", config="interactions")
    assert not (tmp_path / "new").exists()


def test_published_interactions_are_replayed_at_their_commit(folder: Path, tmp_path: Path) -> None:
    with HubServer(tmp_path / "hub") as hub:
        environment = client_environment(hub, tmp_path / "home")
        done = subprocess.run([sys.executable, __file__, str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.rpartition("RESULT ")[2])
    assert found["changed"] == [True, False]
    assert found["partner"] == ["replay:alice/questions", found["revision"]]
    assert found["answer"] == ["Yes.", True, "exact", None]
    assert sorted(found["files"]) == [
        ".gitattributes", "README.md", "interactions/stats.json", "interactions/train-00000-of-00001.parquet",
    ]  # fmt: skip
    number = read_manifests(folder)[1]["partners"][0]["interactions"]
    assert found["verified"] == [25, 8, None, 0, number] and found["verified_alone"] == [0, 0, None, 0, number]
    assert f"'interactions' ({number} interactions there, 1 interactions here)" in found["refused"]


# Evaluation and command line ---------------------------------------------------------------------------------------


def evaluated(output: Path, **options: Any) -> Any:
    return run("twenty_questions", "scripted:behavior", episodes=8, output=output, progress=False, **options).scored


def test_two_evaluations_by_replay_are_equal_byte_by_byte(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    first = evaluated(tmp_path / "own", record=asked)
    by = {"env_kwargs": {"partner": f"replay:{asked}"}}
    for name, batch in (("a", 32), ("b", 3)):
        replayed = evaluated(tmp_path / name, batch=batch, **by)
        assert replayed.summary == first.summary
    assert (tmp_path / "a/episodes.jsonl").read_bytes() == (tmp_path / "b/episodes.jsonl").read_bytes()
    assert [course(one) for one in of_run(tmp_path / "a")] == [course(one) for one in of_run(tmp_path / "own")]
    before = list(read_interactions(str(tmp_path / "own")))
    assert compact(one._replace(understood=None) for one in read_recorded(asked)) == compact(
        one._replace(understood=None) for one in before
    ), "a run's log tells the same as the recording"


@pytest.mark.parametrize("kind", [Dear, DearOnes])
def test_a_run_that_goes_on_asks_only_what_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Dear]
) -> None:
    asked, paid = tmp_path / "asked.jsonl", list[Query]()
    for stop in (3, 9, 14, None):
        partner = kind(paid, stop)
        monkeypatch.setattr(small_game, "OWN", partner)
        with nullcontext() if stop is None else pytest.raises(KeyboardInterrupt):
            evaluated(tmp_path / "run", record=asked)
    played = of_run(tmp_path / "run")
    turns = sum(one.num_turns for one in played)
    assert len(list(read_recorded(asked))) == asked.read_bytes().count(b"\n") == turns
    # Of a partner that answers all at once, what it had said of the batch in which it was stopped is lost.
    assert len(paid) == turns if kind is DearOnes else turns < len(paid) <= 14 + turns
    for one in played:
        said = [*(turn.observation for turn in one.turns[1:]), one.final_observation or ""]
        assert one.info["answer_usage"] == {"tokens": sum(int(text[5:-2]) for text in said)}, "as if never interrupted"
        assert one.info["answer_sources"] == {"phone": one.num_turns}
    evaluated(tmp_path / "again", env_kwargs={"partner": f"replay:{asked}"})
    assert [course(one) for one in of_run(tmp_path / "again")] == [course(one) for one in played]


# Builds ------------------------------------------------------------------------------------------------------------


PLAN: dict[str, Any] = {"episodes": {"train": 18, "validation": 4}, "shard_episodes": 6}


def answers_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("task", ["twenty_questions", "car_dealer"])
def test_a_build_that_goes_on_records_all_and_asks_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """Interrupted again and again, also with a torn line, it leaves the same files as in one go."""
    where, own = {"twenty_questions": ("OWN", OWN), "car_dealer": ("BUYER", BUYER)}[task]
    asked: list[Query] = []

    class Interrupted:
        """The task's own partner, one question after the other, until it is told to stop."""

        name, revision = own.name, own.revision
        stop: int | None = None

        def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
            return [answer for _, answer in self.answer_each(queries)]

        def answer_each(self, queries: Sequence[Query]) -> Iterator[tuple[int, Answer | EpisodeError]]:
            for number, one in enumerate(queries):
                if len(asked) == self.stop:
                    raise KeyboardInterrupt
                asked.append(one)
                yield number, own.answer([one])[0]

    # What a card shows besides has no part in this, and takes long.
    score = build_module.reference_score
    monkeypatch.setattr(build_module, "reference_score", lambda task, policy, _, kwargs: score(task, policy, 2, kwargs))
    monkeypatch.setattr(build_module, "draw_histogram", lambda path, manifest: path.write_bytes(b""))
    plan = make_plan(task, **PLAN)
    build(plan, tmp_path / "whole", record=tmp_path / "whole-asked", workers=1)
    lines = sum(content.count(b"\n") for content in answers_of(tmp_path / "whole-asked").values())
    monkeypatch.setattr(small_game, where, Interrupted())
    for stop in [*range(7, lines, lines // 4), None]:
        monkeypatch.setattr(Interrupted, "stop", stop)
        with nullcontext() if stop is None else pytest.raises(KeyboardInterrupt):
            build(plan, tmp_path / "broken", record=tmp_path / "asked", workers=1)
        if stop is not None:
            newest = max((tmp_path / "asked").iterdir(), key=lambda path: path.stat().st_mtime_ns)
            newest.write_bytes(newest.read_bytes() + b'{"task":"torn')
    assert answers_of(tmp_path / "asked") == answers_of(tmp_path / "whole-asked")
    assert rows_of(tmp_path / "broken") == rows_of(tmp_path / "whole")
    moments = Counter(moment_of(to_interaction(one, Answer(""), own.name, own.revision)) for one in asked)
    assert [moments[moment_of(one)] for one in read_recorded(tmp_path / "asked")] == [1] * lines
    build_interactions([str(tmp_path / "asked")], tmp_path / "broken")
    build_interactions([str(tmp_path / "whole")], tmp_path / "whole")
    for folder in ("broken", "whole"):
        assert read_manifests(tmp_path / folder)[1]["partners"][0]["recorded"] == lines, "as the episodes tell"


def rows_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "episodes").glob("*.parquet"))}


def of_run(path: Path) -> list[Trajectory]:
    from eval_harness.log import read_episodes

    return [logged.trajectory for logged in read_episodes(path)]


def test_results_say_who_answered_and_how_well_it_could(tmp_path: Path) -> None:
    known = tmp_path / "known.jsonl"
    with InteractionLog(known) as log:
        recording = Recording(OWN, log)
        for names in small_game.OBJECTS.values():
            secret = {"word": names}
            recording.answer([query("Is it alive?", secret=secret), query("is it nice", secret=secret)])
    options = {"partner": f"replay:{known}", "partner_options": {"fallback": "knowledge"}}
    scored = evaluated(tmp_path / "r", env_kwargs=options)
    use, asked = scored.partner, [turn.action for one in of_run(tmp_path / "r") for turn in one.turns]
    assert (use.name, use.revision) == ("replay:known.jsonl", read_header(tmp_path / "r").partner["revision"])
    assert use.answers == len(asked) and use.not_understood == asked.count("Is it nice?") > 0
    assert use.sources == {
        "fallback": len(asked) - asked.count("Is it alive?") - asked.count("Is it nice?"),
        "exact": asked.count("Is it alive?"),
        "normalised": asked.count("Is it nice?"),
    }
    results = json.loads((tmp_path / "r/results.json").read_text())["partner"]
    assert results["rates"]["exact"] == pytest.approx(asked.count("Is it alive?") / len(asked))
    assert results["rates"]["not_understood"] == pytest.approx(asked.count("Is it nice?") / len(asked))
    told = settings(scored)
    assert told["partner"] == "replay:known.jsonl" and told["partner revision"] == use.revision
    assert told["not understood"].endswith(f" % of {len(asked)} answers") and "exact" in told["answers from"]
    assert "partner's tokens" not in told and "partner replay:known.jsonl" in to_markdown([scored])
    assert (
        to_partner_table([run("maze", "scripted:optimal", episodes=1, output=tmp_path / "m", progress=False).scored])
        is None
    )


def test_what_a_partner_costs_is_added_up(tmp_path: Path) -> None:
    def reply(asked: Query) -> Answer:
        return small_game.answer_truly(asked)._replace(usage={"prompt_tokens": 7, "completion_tokens": 2})

    played = episodes("twenty_questions", with_partner(AnsweringPartner("priced", "1", reply)))
    for one in played:
        answers = one.num_turns
        assert one.info["answer_usage"] == {"completion_tokens": 2 * answers, "prompt_tokens": 7 * answers}
    assert "answer_usage" not in episodes("twenty_questions")[0].info


def test_a_log_is_not_continued_with_another_partner(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    evaluated(tmp_path / "own", record=asked)
    evaluated(tmp_path / "r", env_kwargs={"partner": f"replay:{asked}"})
    with InteractionLog(asked) as log:
        Recording(OWN, log).answer([query("Is it odd?")])
    partners._made.clear()  # a new process
    with pytest.raises(ValueError, match=r"partner\.revision: '[0-9a-f]{64}' in the log, '[0-9a-f]{64}' now"):
        evaluated(tmp_path / "r", env_kwargs={"partner": f"replay:{asked}"})


def test_unrecorded_questions_fail_their_episodes_alone(tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    run("twenty_questions", "scripted:behavior", episodes=3, output=tmp_path / "own", record=asked, progress=False)
    scored = evaluated(tmp_path / "r", env_kwargs={"partner": f"replay:{asked}"}, seed=1)
    assert scored.failed > 0 and scored.summary.episodes == 8 - scored.failed > 0
    assert "has no recorded answer to" in (tmp_path / "r/failures.jsonl").read_text()


def test_the_command_line_names_partners_and_records(tmp_path: Path) -> None:
    asked, data = tmp_path / "asked.jsonl", tmp_path / "data"
    common = ["--model", "scripted:behavior", "--task", "twenty_questions", "--episodes", "8"]

    def call(app: Any, *words: str) -> Any:
        return CliRunner().invoke(app, [str(word) for word in words], terminal_width=200)

    first = call(eval_app, *common, "--output", tmp_path / "a", "--record", asked)
    assert first.exit_code == 0, first.output
    assert "not understood: " in first.output and "revision: 7" in first.output
    made = call(data_app, "interactions", asked, "--output", data)
    assert made.exit_code == 0 and "knowledge@7: " in made.output, made.output
    by = ["--partner", f"replay:{data}", "--partner-option", "fallback=knowledge", "--partner-option", "threshold=0.8"]
    second = call(eval_app, *common, "--output", tmp_path / "b", *by)
    assert second.exit_code == 0 and "exact 100.0 %" in second.output, second.output
    header = read_header(tmp_path / "b")
    assert header.env_kwargs == {
        "partner": f"replay:{data}", "partner_options": {"fallback": "knowledge", "threshold": 0.8},
    }  # fmt: skip
    assert header.partner is not None and header.partner["name"] == "replay:data"
    assert "replay:data" in call(report_app, tmp_path / "a", tmp_path / "b").output
    twice = call(eval_app, *common, "--output", tmp_path / "c", *by, "--option", "partner=knowledge")
    assert "partner is given both by --option and by an option of its own" in str(twice.exception)
    built = call(data_app, "build", "twenty_questions", "--output", tmp_path / "d", "--train", "9", "--validation", "1",
                 "--workers", "1", "--record", tmp_path / "new", *by)  # fmt: skip
    assert built.exit_code == 0, built.output
    new = len(list(read_recorded(tmp_path / "new")))
    assert f"recorded: {new} answers in " in built.output and new > 0
    again = call(data_app, "build", "twenty_questions", "--output", tmp_path / "d", "--train", "9", "--validation", "1",
                 "--record", tmp_path / "newer", *by)  # fmt: skip
    assert "recorded: nothing, since all was built before" in again.output
    assert read_manifests(tmp_path / "d")[0]["env_kwargs"] == header.env_kwargs
    assert "recorded answers are whole" in call(data_app, "verify", data).output
    played = call(
        lmrl, "play", "twenty_questions", "--policy", "behavior", "--seed", "1", *by, "--record", tmp_path / "p"
    )
    assert played.exit_code == 0 and "return" in played.output, played.output
    assert (tmp_path / "p").exists()
    assert score(tmp_path / "b").partner is not None
