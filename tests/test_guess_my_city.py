"""Guess My City: the rules, the names, what the knowledge partner understands and says, and known scores."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from env_servers.partners import Answer, AnsweringPartner, Exchange, Query
from env_servers.play import episode_starts, play, replay
from env_servers.scores import Summary, summarize
from env_servers.task import Env, Step
from env_servers.tasks import make_env, make_policy
from env_servers.tasks.city_agents import GUESSES, asker, questions_asked
from env_servers.tasks.city_facts import atlas, table
from env_servers.tasks.city_names import blank, guess, named
from env_servers.tasks.city_partner import NOT_UNDERSTOOD, knowledge_partner, meaning
from env_servers.tasks.city_topics import DECLINED, topics
from env_servers.tasks.city_topics import answers as topic_answers
from env_servers.tasks.guess_my_city import GuessMyCity
from env_servers.trajectory import Trajectory

HERE = Path(__file__).parent
ASSETS = resources.files("env_servers.tasks") / "assets"
NAMES = [city.name for city in atlas().cities]
# The paper's list in its order, Seoul first, as it spells them.
LISTED = [
    "seoul", "sao paulo", "bombay", "jakarta", "karachi", "moscow", "istanbul", "mexico city", "shanghai", "tokyo",
    "new york", "bangkok", "beijing", "delhi", "london", "hong kong", "cairo", "tehran", "bogota", "bandung",
    "tianjin", "lima", "rio de janeiro", "lahore", "bogor", "santiago", "st petersburg", "shenyang", "calcutta",
    "wuhan", "sydney", "guangzhou", "singapore", "madras", "baghdad", "pusan", "los angeles", "yokohama", "dhaka",
    "berlin", "alexandria", "bangalore", "malang", "hyderabad", "chongqing", "ho chi minh city", "haerbin", "ankara",
    "buenos aires", "chengdu", "ahmedabad", "casablanca", "chicago", "xian", "madrid", "surabaya", "pyong yang",
    "nanjing", "kinshaha", "rome", "taipei", "osaka", "kiev", "yangon", "toronto", "zibo", "dalian", "taega",
    "addis ababa", "jinan", "salvador", "inchon", "semarang", "giza", "changchun", "havanna", "nagoya",
    "belo horizonte", "paris", "tashkent", "fortaleza", "sukabumi", "cali", "guayaquil", "qingdao", "izmir",
    "cirebon", "taiyuan", "brasilia", "bucuresti", "faisalabad", "quezon city", "medan", "houston", "abidjan",
    "mashhad", "medellin", "kanpur", "budapest", "caracas",
]  # fmt: skip


def playing(city: str, **options: Any) -> Env:
    """An environment at the start of an episode with that city."""
    env = make_env("guess_my_city", options)
    for seed in range(5_000):
        env.reset(seed)
        if env.info["city"] == city:
            return env
    raise AssertionError(f"no seed draws {city}")


def said(question: str, city: str) -> str:
    """What the knowledge partner answers."""
    query = Query("guess_my_city", {"city": city}, (), question, 1)
    answer = knowledge_partner().answer([query])[0]
    assert isinstance(answer, Answer)
    return answer.text


def truth(question: str) -> np.ndarray[Any, Any]:
    """For which cities the answer begins with yes."""
    found = meaning(question)
    assert found is not None, f"not understood: {question}"
    assert {text[:4] for text in found} <= {"Yes,", "No, "}, f"no yes/no question: {question}"
    return np.array([text.startswith("Yes,") for text in found])


def lines(name: str) -> Iterator[list[str]]:
    """The rows of a test file with ` | ` between cells."""
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            yield [cell.strip() for cell in line.split("|")]


YES_NO = list(lines("guess_my_city_yes_no.txt"))
OPEN = list(lines("guess_my_city_open.txt"))
NAMING = [
    "What city is it?", "Which city are you from?", "What is the name of the city?", "What country is it in?",
    "Which country are you from?", "What's your country called?", "What is the capital of your country?",
    "Which state is it in?", "Name the city.", "Tell me the name of the country.", "What is it called?",
    "What letter does it start with?", "What is your nationality?",
]  # fmt: skip
NONSENSE = [
    "Hello", "asdf qwer?", "Is it a flurble?", "What is 2+2?", "Do you like living there?", "Who is the president?",
    "Is it a good place to live?", "Is it, is it, is it?", "or or or?", "not?", "Is?", "What?", "???!a", "the a an",
    "Is it more than than 5 5?", "neither nor?", "Is it bigger than or older than?",
]  # fmt: skip


# The game ----------------------------------------------------------------------------------------------------------
def test_golden_transcript() -> None:
    env = playing("Paris")
    assert (
        env.reset(next(seed for seed in range(999) if env.reset(seed) and env.info["city"] == "Paris")) == "Questions:"
    )
    script = [
        ("Is it in Asia?", -1.0, "No, it is not."),
        ("What language do people speak there?", -1.0, "People there speak French."),
        ("Which city is it?", -1.0, "I will not say that, since it would give the name away."),
        ("Does it smell nice?", -1.0, "I am not sure about that."),
        ("Is the Seine there,\n  perhaps?", -1.0, "Yes, it is."),
        ("Is the city you are from Paris, France?", 0.0, "Yes, it is."),
    ]
    for question, reward, answer in script:
        step = env.step(question)
        assert (step.observation, step.reward, step.legal) == (answer, reward, True), question
    assert (step.terminated, step.truncated, step.end_reason, step.success) == (True, False, "guessed", True)
    assert env.info == {
        "city": "Paris", "country": "France", "not_understood": 1, "partner": "knowledge", "partner_revision": "2",
        "answers": "free", "cities": 100,
    }  # fmt: skip


def test_the_twentieth_question_is_the_last() -> None:
    env = playing("Lima")
    steps = [env.step("Is it Cairo?") for _ in range(20)]
    assert [step.done for step in steps] == [False] * 19 + [True]
    assert sum(step.reward for step in steps) == -20.0
    assert (steps[-1].terminated, steps[-1].end_reason, steps[-1].success) == (True, "out_of_questions", False)
    won = playing("Lima")
    steps = [won.step("Is it Cairo?") for _ in range(19)] + [won.step("Is it Lima?")]
    assert sum(step.reward for step in steps) == -19.0
    assert steps[-1].success


@pytest.mark.parametrize("text", ["", "  ", "?!", "123", "x" * 401])
def test_what_is_no_question_costs_one_and_is_told(text: str) -> None:
    step = playing("Rome").step(text)
    assert step == Step.ongoing("Please ask me a question about my city.", -1.0, legal=False)


def test_every_city_is_drawn_about_as_often_and_99_leave_out_seoul() -> None:
    for cities in (100, 99):
        env, counts = make_env("guess_my_city", {"cities": cities}), Counter[str]()
        for seed in range(40 * cities):
            env.reset(seed)
            counts[env.info["city"]] += 1
        assert set(counts) == set(NAMES[100 - cities :])
        statistic = sum((count - 40) ** 2 / 40 for count in counts.values())
        assert abs(statistic - (cities - 1)) < 4 * math.sqrt(2 * (cities - 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"answers": "short"}, "answers is 'short'; allowed: free, yes_no"),
        ({"cities": 50}, "cities is 50; allowed: 100, or 99 without Seoul"),
        ({"cities": True}, "cities is True"),
        ({"win": "exact"}, "win is 'exact'; allowed: name, substring"),
        ({"strict": 1}, "strict is 1; allowed: true, false"),
        ({"partner": "oracle"}, "partner is 'oracle'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"guess_my_city: {message}"):
        make_env("guess_my_city", options)


def test_answers_reduced_to_yes_and_no() -> None:
    env = playing("Lima", answers="yes_no")
    assert env.step("Is it in Peru?").observation == "Yes."
    assert env.step("Is it in Chile?").observation == "No."
    assert env.step("What language do people speak there?").observation == "No."
    assert env.step("Is it a flurble?").observation == "No."
    assert env.info["not_understood"] == 1
    assert env.step("Is it Lima?").observation == "Yes."


def talking(text: str) -> AnsweringPartner:
    return AnsweringPartner("talker", "7", lambda query: Answer(text))


def test_any_partners_answer_loses_the_names_and_line_breaks() -> None:
    env = playing("Mumbai")
    env.partner = talking("Bombay is\n the pride of INDIA, and Mumbai's trains are full. Indian food is good.")
    step = env.step("What is it like?")
    assert step.observation == (
        "That city is the pride of that country, and that city's trains are full. Indian food is good."
    )
    assert env.info["partner"] == "talker"


def test_winning_does_not_depend_on_how_the_partner_words_it() -> None:
    env = playing("Kyiv")
    env.partner = talking("No idea.")
    assert env.step("Is it Kiev?").success


@pytest.mark.parametrize(
    ("answer", "wins"), [("Yes.", True), ("yes, that is it", True), ("No.", False), ("Yesterday I was", False)]
)
def test_strict_asks_for_a_yes_as_well(answer: str, wins: bool) -> None:
    env = playing("Kyiv", strict=True)
    env.partner = talking(answer)
    assert env.step("Is it Kyiv?").success is wins


def test_the_knowledge_partner_agrees_with_strict() -> None:
    for name in NAMES:
        assert said(f"Is it {name}?", name) == "Yes, it is."
        assert said(f"Are you from {name}?", name) == "Yes, I am."
    assert playing("Rome", strict=True).step("Is your city Rome, Italy?").success


def test_a_record_of_another_partner_replays_from_its_answers() -> None:
    env = playing("Osaka")
    env.partner = talking("Perhaps.")
    trajectory = next(
        played.trajectory
        for played in play(
            "guess_my_city",
            make_policy("guess_my_city", "random"),
            episode_starts("guess_my_city", "train", [0]),
            env_maker=lambda task, options: with_partner(make_env(task, options), talking("Perhaps.")),
        )
    )
    assert {turn.observation for turn in trajectory.turns[1:]} == {"Perhaps."}
    assert trajectory.info["partner"] == "talker"
    assert replay(trajectory) is None


def with_partner(env: Env, partner: AnsweringPartner) -> Env:
    env.partner = partner
    return env


def test_a_person_is_told_what_was_not_understood_and_at_the_end_the_city() -> None:
    env = playing("São Paulo")
    assert env.draw() == "(20 questions left)"
    env.step("Is it a flurble?")
    assert env.draw() == "(19 questions left)\n(this question was not understood; try other words)"
    env.step("???")
    assert env.draw() == "(18 questions left)"
    env.step("Is it in Brazil?")
    assert env.draw() == "(17 questions left)"
    env.step("Is it Sao Paulo?")
    assert env.draw() == "The city was São Paulo, Brazil."


def test_importing_the_task_reads_nothing() -> None:
    code = (
        "import env_servers.tasks.guess_my_city\n"
        "import env_servers.tasks.city_facts as f, env_servers.tasks.city_agents as a\n"
        "print(f.atlas.cache_info().currsize, a.asker.cache_info().currsize)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0 0\n"


# Names -------------------------------------------------------------------------------------------------------------
def test_the_list_is_the_papers_with_seoul() -> None:
    assert [city.listed.lower() for city in atlas().cities] == LISTED
    assert NAMES[0] == "Seoul"
    today = {"Mumbai", "Kolkata", "Chennai", "Bengaluru", "Kyiv", "Busan", "Daegu", "Incheon", "Kinshasa", "Havana",
             "Bucharest", "Saint Petersburg", "Pyongyang", "Xi'an", "Harbin", "São Paulo"}  # fmt: skip
    assert today <= set(NAMES)


def test_every_name_of_every_city_wins_and_no_other_city_does() -> None:
    for number, city in enumerate(atlas().cities):
        for name in city.names:
            for wording in (*GUESSES, "{}", "{}?", "I think it is {}.", "is it {} then?", "Is {} your city?"):
                found = guess(wording.format(name))
                assert found is not None and found.city == number and found.fits, wording.format(name)
            found = guess(f"Is it {name}, {city.land.name}?")
            assert found is not None and found.city == number and found.fits, name


@pytest.mark.parametrize(
    ("question", "city"),
    [
        ("Is it Paris?", "Paris"),
        ("paris", "Paris"),
        ("Is the city you are from Paris, France?", "Paris"),
        ("Okay, is it maybe Paris in France?", "Paris"),
        ("Interesting! Is your hometown Paris?", "Paris"),
        ("Do you live in St. Petersburg?", "Saint Petersburg"),
        ("Were you born in Leningrad?", "Saint Petersburg"),
        ("Is your city called Xi’an?", "Xi'an"),
        ("Could it be New York City, by any chance?", "New York"),
        ("Are you from L.A.?", "Los Angeles"),
        ("Is it Mexico City?", "Mexico City"),
        ("My guess is Cairo, the capital of Egypt", "Cairo"),
        ("Is it Rio?", "Rio de Janeiro"),
        ("Is it Taipei, China?", "Taipei"),
        ("Is it Chicago, Illinois?", "Chicago"),
        ("It must be Saigon!", "Ho Chi Minh City"),
        ("Is it the Eternal City?", "Rome"),
    ],
)
def test_guesses(question: str, city: str) -> None:
    assert playing(city).step(question).success


@pytest.mark.parametrize(
    "question",
    [
        "Is it near Paris?",
        "Is it bigger than Paris?",
        "Is Paris bigger than it?",
        "Is it not Paris?",
        "Isn't it Paris?",
        "Is it Paris or London?",
        "Is it Paris and not London?",
        "Is it Paris, Texas?",
        "Is it in the same country as Paris?",
        "Is it the Paris of the East?",
        "Does it look like Paris?",
        "Have you ever been to Paris?",
        "Is it comparable?",
        "Is it in France?",
        "Is it the capital of France?",
    ],
)
def test_what_is_no_guess(question: str) -> None:
    step = playing("Paris").step(question)
    assert (step.success, step.done, step.reward) == (False, False, -1.0)


@pytest.mark.parametrize(
    ("question", "city", "wins"),
    [
        ("Is it bigger than Paris?", "Paris", True),
        ("Is it not PARIS?", "Paris", True),
        ("What is the climate like?", "Lima", False),  # whole words: "climate" has "lima" in it
        ("Is it in California?", "Cali", False),
        ("Is it Santiago de Cali?", "Cali", True),
        ("Is it Santiago de Cali?", "Santiago", False),  # the longer name hides the shorter one
        ("Can it be near Bombay?", "Mumbai", True),
        ("Is la lengua Spanish?", "Los Angeles", False),
        ("Is LA near?", "Los Angeles", True),
    ],
)
def test_the_rule_of_the_papers_data(question: str, city: str, wins: bool) -> None:
    assert playing(city, win="substring").step(question).success is wins
    assert (NAMES.index(city) in named(question)) is wins


def test_every_name_is_blanked_out_however_it_is_written() -> None:
    for city in atlas().cities:
        for name in (*city.names, *city.land.names):
            for written in {name, name.upper(), name.replace(" ", "-"), name.replace("'", "’")}:
                text = blank(f"Well, {written} is old; I like {written}'s streets.", city.name)
                rest = re.sub(r"\bthat (?:city|country)\b", "", text)
                assert rest == "Well,  is old; I like 's streets.", (city.name, written, text)


def test_blanking_leaves_other_words_alone() -> None:
    for name, text in [
        ("Rome", "Romeo is romantic."),
        ("Paris", "The comparison with Parisians."),
        ("Los Angeles", "La la land is for us, tell us of North America and South America."),
        ("Lima", "The climate is dry."),
        ("Cali", "It is in California."),
    ]:
        assert blank(text, name) == text
    assert blank("It is in the US, in LA.", "Los Angeles") == "It is in that country, in that city."


# What the partner says -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("question", "yes", "no"), YES_NO, ids=[row[0] for row in YES_NO])
def test_yes_no_questions_by_peoples_habits(question: str, yes: str, no: str) -> None:
    for cities, word in ((yes, "Yes"), (no, "No")):
        for city in filter(None, cities.split(", ")):
            assert said(question, city).split(",")[0] == word, city


@pytest.mark.parametrize(("question", "contents"), OPEN, ids=[row[0] for row in OPEN])
def test_open_questions_by_peoples_habits(question: str, contents: str) -> None:
    for part in contents.split("; "):
        city, needed = part.split(": ")
        answer = said(question, city)
        assert needed in answer, (city, answer)
        assert re.fullmatch(r"[A-Z][^.!?]*\.", answer), "one sentence"


def test_there_are_enough_phrasings() -> None:
    assert len(YES_NO) + len(OPEN) >= 250


@pytest.mark.parametrize("question", NAMING)
def test_what_asks_for_the_name_is_declined(question: str) -> None:
    found = meaning(question)
    assert found is not None and set(found) == {DECLINED}


@pytest.mark.parametrize("question", NONSENSE)
def test_what_makes_no_sense_gets_the_fixed_sentence(question: str) -> None:
    query = Query("guess_my_city", {"city": "Rome"}, (), question, 1)
    assert knowledge_partner().answer([query]) == [Answer(NOT_UNDERSTOOD, understood=False)]


def asked_in_tests() -> list[str]:
    return [*questions_asked(), *(row[0] for row in (*YES_NO, *OPEN)), *NAMING]


def test_no_answer_names_the_city_or_its_country() -> None:
    """Over all questions of the agents and of these tests, all topics and all cities; languages tell by themselves."""
    for question in asked_in_tests():
        found = meaning(question)
        for number, text in enumerate(found if found else ()):
            city = atlas().cities[number]
            assert blank(text, city.name) == text, (question, city.name, text)
    for topic in topics():
        for city, text in zip(atlas().cities, topic_answers(topic), strict=True):
            assert blank(text, city.name) == text, (topic, city.name, text)
            if topic != "language":
                assert not any(re.search(rf"\b{word}\b", text) for word in city.land.demonyms), (city.name, text)


def test_an_answer_depends_on_question_and_city_alone() -> None:
    rng = random.Random(0)
    queries = []
    for question in asked_in_tests():
        city = rng.choice(NAMES)
        before = tuple(Exchange(rng.choice(asked_in_tests()), "Yes.") for _ in range(rng.randrange(3)))
        queries.append(Query("guess_my_city", {"city": city}, before, question, rng.randrange(99)))
    together = knowledge_partner().answer(queries)
    assert [answer.text for answer in together if isinstance(answer, Answer)] == [
        said(query.text, query.secret["city"]) for query in queries
    ]


FRAMES = {  # wording of a question "Is it P?", and whether it turns the answer round
    "Is the city {}?": False, "Is your city {}?": False, "Is the city you are from {}?": False, "It is {}?": False,
    "Is your hometown {}?": False, "IS IT {}": False, "So it's {}, right?": False, "is it  {} ?": False,
    "Can you tell me whether it is {}?": False, "I see. Is it {}?": False, "Is it not {}?": True, "Isn't it {}?": True,
    "It is not {}?": True, "The city isn't {}, is it?": True, "Is it {}, by any chance?": False,
}  # fmt: skip
PREDICATES = [
    "in Asia", "in South America", "in India", "in Brazil", "in the Middle East", "on the coast", "near the sea",
    "a capital", "the largest city in its country", "near mountains", "on an island", "in the tropics",
    "north of the equator", "in a rich country", "in a monarchy", "famous for its beaches", "bigger than London",
    "older than Rome", "more than 1000 years old", "hot", "a port city", "in a Spanish-speaking country",
    "a Muslim city", "on the Pacific Ocean", "in the north of the country", "in a country that borders Russia",
    "a former British colony", "known for technology", "near Tokyo", "an ancient city", "in the European Union",
    "south of Mexico City", "in Eastern Europe", "landlocked",
]  # fmt: skip


def test_other_wordings_and_negation_agree() -> None:
    for predicate in PREDICATES:
        plain = truth(f"Is it {predicate}?")
        assert 0 < plain.sum() < 100, predicate
        for frame, turned in FRAMES.items():
            question = frame.format(predicate.upper() if frame.isupper() else predicate)
            assert (truth(question) == plain ^ turned).all(), question


def test_other_peoples_wordings_agree() -> None:
    """Groups of questions that ask the same, or the opposite, for all cities."""
    group, asked = "", 0
    found: np.ndarray[Any, Any] = np.zeros(0)
    for line in (HERE / "guess_my_city_groups.txt").read_text(encoding="utf-8").splitlines():
        sign, text = line[:1], line[2:]
        if sign == "=":
            group, found = text, np.zeros(0)
        elif sign in ("+", "-"):
            asked += 1
            yes = truth(text) ^ (sign == "-")
            found = found if found.size else yes
            assert (yes == found).all(), (group, text)
    assert asked >= 350


AGREEING = (  # an open question, a pattern for its answer, what must then be true of each name that the pattern finds
    ("What continent is it on?", r"(?:It is in|two continents,) (.+)\.", "Is it in {}?"),
    ("Where is it?", r"It is in (.+)\.", "Is it in {}?"),
    ("What language do people speak?", r"speak (.+)\.", "Do people speak {}?"),
    ("What language do people speak?", r"speak (\w+)\.", "Is {} the language?"),
    ("What is the currency?", r"called the (.+)\.", "Do people pay with the {}?"),
    ("Which river runs through it?", r"The (.+) runs", "Does the {} River run through it?"),
    ("Which river runs through it?", r"(A|The) .*", "Is there a river?"),
    ("Which river runs through it?", r"No large", "Is there no river?"),
    ("Which sea is it on?", r"lies on the (.+)\.", "Does it lie on the {}?"),
    ("Which sea is it on?", r"lies on the ", "Is it on the coast?"),
    ("Which sea is it on?", r"but close", "Is it near the sea but not on the coast?"),
    ("Which sea is it on?", r"neither|far from", "Is it far from the sea?"),
    ("What is the most popular sport?", r"there is (.+)\.", "Is {} the most popular sport?"),
    ("Which side of the road do they drive on?", r"the (\w+) side", "Do people drive on the {}?"),
    ("In which part of the country is it?", r"in the (north|east|south|west)\w* of", "Is it in the {} of its country?"),
    ("What is the population?", r"less than a million", "Does it have less than a million people?"),
    ("What is the population?", r"between (\w+) and", "Does it have at least {} million people?"),
    ("What is the population?", r"and (\w+) million", "Does it have less than {} million people?"),
    ("What is the population?", r"more than (\w+) million", "Does it have over {} million people?"),
    ("What is the religion?", r"Most people there are (.+)\.", "Are most people {}?"),
    ("What is the religion?", r"Most religious people there are (.+)\.", "Is it a {} city?"),
    ("What is the religion?", r"Buddhis[mt]", "Is Buddhism practiced there?"),
    ("Which countries border yours?", r"borders (.+)\.", "Does the country border {}?"),
    ("Who ruled it as a colony?", r"ruled by the (.+)\.", "Was it ruled by the {}?"),
    ("Who ruled it as a colony?", r"never", "Was it never a colony?"),
    ("What are the colours of the flag?", r"flag are (.+)\.", "Is there {} in the flag?"),
    ("Which hemisphere is it in?", r"north of", "Is it in the northern hemisphere?"),
    ("Which hemisphere is it in?", r"south of", "Is it south of the equator?"),
    ("Which hemisphere is it in?", r"in the tropics", "Is it in the tropics?"),
    ("What time zone is it in?", r"are (\d+) hours ahead", "Is it in the time zone UTC+{}?"),
    ("What time zone is it in?", r"are (\d+) hours behind", "Is it {} hours behind Greenwich?"),
    ("How high is it?", r"(?:more than|between) (\d+)", "Is it at least {} metres above sea level?"),
    ("How high is it?", r"(?:less than|and) (\d+)", "Is it less than {} metres above sea level?"),
    ("How old is it?", r"(?:more than|between) (\d+)", "Is it at least {} years old?"),
    ("How old is it?", r"(?:less than|and) (\d+)", "Is it less than {} years old?"),
)


def test_open_questions_and_yes_no_questions_agree() -> None:
    for question, pattern, asking in AGREEING:
        answers = meaning(question)
        assert answers is not None, question
        found = [re.search(pattern, answer) for answer in answers]
        assert any(found), (question, pattern)
        for number, match in enumerate(found):
            if match is not None:
                for name in re.split(r", | and ", match[1]) if match.re.groups else [""]:
                    assert truth(asking.format(name))[number], (NAMES[number], match[0], asking.format(name))


@pytest.mark.parametrize(
    ("question", "yes", "no"),
    [
        ("Does everyone speak Hindi there?", "Yes, they do.", "No, they do not."),
        ("You're from Asia, right?", "Yes, I am.", "No, I am not."),
        ("There's a famous mosque, isn't there?", "Yes, there is.", "No, there is not."),
        ("Would I find the Red Fort there?", "Yes, you would.", "No, you would not."),
        ("Could it be in India?", "Yes, it is.", "No, it is not."),
        ("Over ten million?", "Yes, that is so.", "No, that is not so."),
        ("Is Hindi not spoken there?", "No, it is.", "Yes, it is not."),
        ("Are mosques not found there?", "No, they are.", "Yes, they are not."),
        ("Can I see the Red Fort?", "Yes, you can.", "No, you cannot."),
        ("Is it false that it is in India?", "No, it is.", "Yes, it is not."),
    ],
)
def test_answers_are_grammatical_and_unambiguous(question: str, yes: str, no: str) -> None:
    assert (said(question, "Delhi"), said(question, "Lima")) == (yes, no)


def test_a_choice_between_all_there_is_gets_the_answer_itself() -> None:
    assert said("Is it in the northern or the southern hemisphere?", "Sydney") == "It is south of the tropics."
    assert said("Is it coastal or inland?", "Moscow") == "It lies neither on the sea nor close to it."
    assert said("Is it known for any landmarks or museums?", "Moscow").startswith("Yes,")


def test_slips_of_the_pen_are_put_right_but_no_names() -> None:
    assert said("what langauge do poeple speek", "Rome") == "People there speak Italian."
    assert said("whats teh wether like?", "London") == said("What is the weather like?", "London")
    assert truth("Does its name start with R?").sum() == 2, "Rio de Janeiro and Rome"
    for question in ("si it Rome?", "Is it Bangkock?", "Is it Kario?", "Is the dessert good?", "Is it in Cook County?"):
        assert meaning(question) is None, question
        assert guess(question) is None, question


def test_or_and_and_are_logical() -> None:
    rng = random.Random(1)
    pairs = rng.sample([(a, b) for a in PREDICATES for b in PREDICATES if a != b], 150)
    known = {predicate: truth(f"Is it {predicate}?") for predicate in PREDICATES}
    for first, second in pairs:
        a, b = known[first], known[second]
        for question, expected in {
            f"Is it {first} or {second}?": a | b,
            f"Is it either {first} or {second}?": a | b,
            f"Is it neither {first} nor {second}?": ~(a | b),
            f"Is it not {first} or {second}?": ~(a | b),
            f"Is it {first} and {second}?": a & b,
            f"Is it {first} but not {second}?": a & ~b,
        }.items():
            assert (truth(question) == expected).all(), question


def test_numbers_agree_with_each_other() -> None:
    """Between two cities exactly one of bigger and smaller holds, unless they are the same."""
    for name in ("Paris", "Delhi", "Lima"):
        bigger, smaller = truth(f"Is it bigger than {name}?"), truth(f"Is it smaller than {name}?")
        assert (bigger ^ smaller).sum() == 99 and not bigger[NAMES.index(name)] and not smaller[NAMES.index(name)]
        assert (truth(f"Is {name} smaller than it?") == bigger).all()
    for number in (1, 3, 5, 10):
        more = truth(f"Does it have more than {number} million people?")
        assert (more == truth(f"Is its population above {number},000,000?")).all()
        assert (more == ~truth(f"Does it have at most {number} million inhabitants?")).all()
    assert truth("Does it have more than 5 million people?").sum() < truth("Does it have more than 3m people?").sum()
    assert (truth("Is it in the northern hemisphere?") == ~truth("Is it south of the equator?")).all()
    continents = [truth(f"Is it in {name}?") for name in ("Africa", "Asia", "Europe", "Oceania")]
    continents += [truth("Is it in North America?"), truth("Is it in South America?")]
    assert np.sum(continents, axis=0)[NAMES.index("Istanbul")] == 2
    assert sorted(np.sum(continents, axis=0).tolist()) == [1] * 99 + [2]


def test_the_largest_city_of_a_country_is_bigger_than_the_others() -> None:
    """GeoNames counts more people in Lahore than in Karachi, and in Quito than in Guayaquil."""
    karachi, lahore, guayaquil = (NAMES.index(name) for name in ("Karachi", "Lahore", "Guayaquil"))
    assert atlas().cities[lahore].population > atlas().cities[karachi].population
    assert truth("Is it bigger than Lahore?")[karachi] and not truth("Is it bigger than Lahore?")[lahore]
    assert truth("Is it smaller than Karachi?")[lahore] and not truth("Is it smaller than Karachi?")[karachi]
    assert truth("Is Karachi larger than it?")[lahore] and truth("Is it bigger than Quito?")[guayaquil]
    largest = truth("Is it the largest city in its country?")
    for city in itertools.compress(atlas().cities, largest):
        others = truth(f"Is it bigger than {city.name}?")
        assert not any(others[number] for number, other in enumerate(atlas().cities) if other.land is city.land)


# The tables ------------------------------------------------------------------------------------------------------
def test_the_tables_fit_together() -> None:
    assert [row["name"] for row in table("numbers")] == NAMES
    for city in atlas().cities:
        assert city.values["land" if "land" in city.values else "regions"], city.name
        assert 300_000 < city.population < 30_000_000
        assert -4000 < city.founded < 2000 and -10 < city.elevation < 3000
        assert len(city.values["fame"]) and len(city.values["industry"]) and len(city.values["sights"])
    mumbai = atlas().cities[NAMES.index("Mumbai")]
    assert (round(mumbai.latitude), round(mumbai.longitude), mumbai.hours) == (19, 73, 5.5)
    notice = (ASSETS / "README.md").read_text()
    assert "CC BY 4.0" in notice and "GeoNames" in notice


def test_the_script_that_made_the_numbers() -> None:
    found = importlib.util.spec_from_file_location("make_cities", str(ASSETS / "make_cities.py"))
    assert found is not None and found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    assert script.folded("São Paulo") == "sao paulo" and script.folded("Xi’an") == "xi'an"
    assert [script.hours_from_greenwich(zone) for zone in ("Asia/Kolkata", "Europe/Paris", "America/Lima")] == [
        5.5,
        1,
        -5,
    ]
    assert not script.PARTS & {place.name for place in atlas().world}


# The policies ------------------------------------------------------------------------------------------------------
def trajectories(policy: str, episodes: int, **options: Any) -> list[Trajectory]:
    starts = episode_starts("guess_my_city", "train", range(episodes), options)
    return [played.trajectory for played in play("guess_my_city", make_policy("guess_my_city", policy), starts)]


def scores(policy: str, episodes: int, **options: Any) -> Summary:
    return summarize(trajectories(policy, episodes, **options))


@pytest.mark.parametrize(
    ("policy", "episodes", "mean_return", "success"),
    [  # measured over 10,000 episodes
        ("random", 300, -19.37, 0.059),
        ("behavior", 600, -17.29, 0.529),
        ("optimal", 300, -1.71, 1.0),
        ("naive", 200, -14.27, 0.62),
        ("noisy", 300, -3.91, 1.0),
    ],
)
def test_policies_score_as_measured(policy: str, episodes: int, mean_return: float, success: float) -> None:
    summary = scores(policy, episodes)
    assert abs(summary.mean_return - mean_return) < 4 * summary.std_return / math.sqrt(episodes)
    assert abs(summary.success_rate - success) <= 4 * math.sqrt(success * (1 - success) / episodes)
    assert summary.invalid_rate == 0.0


def test_the_optimal_questioner_wins_with_yes_and_no_alone() -> None:
    """A hundred cities need at least log2(100) = 6.6 answers."""
    summary = scores("optimal", 100, answers="yes_no")
    assert summary.success_rate == 1.0
    assert -8.0 < summary.mean_return < math.log2(100) * -1 + 1


def test_the_optimal_questioner_uses_what_it_was_told() -> None:
    for trajectory in trajectories("optimal", 40, cities=99):
        found = asker(99, "free")
        for number, turn in enumerate(trajectory.turns[:-1]):
            if turn.action in found.questions:
                assert trajectory.turns[number + 1].observation == said(turn.action, trajectory.info["city"])
        assert trajectory.turns[-1].action in found.guesses


def test_data_has_a_wide_spread_of_returns() -> None:
    returns = Counter(int(trajectory.episode_return) for trajectory in trajectories("behavior", 1500))
    assert min(returns) == -20 and max(returns) >= -2
    assert all(returns[-number] for number in range(2, 21))


def test_scripted_questions_are_understood() -> None:
    asked = [turn.action for trajectory in trajectories("behavior", 150) for turn in trajectory.turns]
    rate = sum(meaning(question) is not None for question in asked) / len(asked)
    print(f"understood: {rate:.3f} of {len(asked)}")
    assert 0.97 < rate < 1.0, "a few are not, so that the data shows what happens then"


def test_the_longest_action_of_the_data_fits_its_tokens() -> None:
    """No tokenizer that works on bytes needs more than one token for a word of four letters and its space."""
    longest = max(len(text) for text in (*questions_asked(), *(g.format(n) for g in GUESSES for n in NAMES)))
    assert longest / 2 < GuessMyCity.spec.max_action_tokens
    assert json.loads(json.dumps(playing("Rome").info)) == playing("Rome").info
