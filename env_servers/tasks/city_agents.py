"""The scripted questioners of Guess My City, and the questions that they have."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from env_servers.policy import Context
from env_servers.tasks.city_facts import atlas
from env_servers.tasks.city_partner import NOT_UNDERSTOOD, meaning
from env_servers.tasks.city_topics import with_article
from env_servers.tasks.questions import MAX_QUESTIONS, Splitter

OPEN_QUESTIONS = (
    "What continent is it on?", "Which continent is your city in?", "What part of the world is it in?",
    "Which region is it in?", "What language do people speak there?", "Which language is spoken in your city?",
    "What currency do people use there?", "What is the currency?", "What religion do most people follow?",
    "What is the weather like?", "How is the climate in your city?", "Which river runs through it?",
    "Is there a river, and what river is it?", "Which sea is it on?", "What body of water is it near?",
    "What is the landscape like?", "What food is it known for?", "What is the local cuisine?",
    "What is it famous for?", "What is your city best known for?", "What are its main industries?",
    "What is the economy based on?", "What landmarks does it have?", "What do tourists visit there?",
    "What is the history of the city?", "Tell me about its history.", "How old is the city?",
    "What is the population?", "How many people live there?", "How many people live in your country?",
    "What is the most popular sport?", "What kind of government does the country have?",
    "Which countries border your country?", "What time zone is it in?", "What colors are on the flag?",
    "Which side of the road do people drive on?", "What alphabet do people use?", "Which hemisphere is it in?",
    "How high above sea level is it?", "In which part of the country is it?", "How do people get around the city?",
    "Can you describe the city?",
)  # fmt: skip
YES_NO_QUESTIONS = (
    "Is it the capital of its country?", "Is it a capital city?", "Is it the capital of a state or a province?",
    "Is it the largest city in its country?", "Was it ever the capital?", "Is it on the coast?", "Is it near the sea?",
    "Does a river run through it?", "Is it on an island?", "Is it in the mountains?", "Is it near a desert?",
    "Does it have beaches?", "Is it on a lake?", "Is it a port city?", "Is it north of the equator?",
    "Is it in the tropics?", "Is it in the western hemisphere?", "Is it hot all year round?", "Does it snow there?",
    "Does it rain a lot there?", "Is it a dry place?", "Are there earthquakes?", "Is it high above sea level?",
    "Does it have more than 10 million people?", "Does it have more than 5 million people?",
    "Does it have more than 3 million people?", "Does it have less than 2 million people?",
    "Does the country have more than 100 million people?", "Is it more than 1000 years old?",
    "Is it more than 500 years old?", "Is it more than 200 years old?", "Was it a colony?", "Was it a British colony?",
    "Was it a Spanish colony?", "Was it ruled by the Japanese?", "Was it part of the Soviet Union?",
    "Was it part of the Ottoman Empire?", "Was it ruled by the Mughals?", "Was it under Dutch rule?",
    "Is it in a rich country?", "Is it in a monarchy?", "Is it in a communist country?",
    "Is it in the European Union?", "Is it in a member of NATO?", "Is it in an island country?",
    "Are most people Muslim?", "Are most people Christian?", "Are most people Hindu?", "Are most people Buddhist?",
    "Do people use the euro?", "Do people pay with dollars?", "Is the currency the peso?",
    "Is the currency the rupee?", "Do people drive on the left side of the road?", "Has it hosted the Olympics?",
    "Has it hosted the World Cup?", "Does it have a metro?", "Does it have an airport?", "Are there skyscrapers?",
    "Is it popular with tourists?", "Is it expensive?", "Is it known for its film industry?",
    "Is it known for its technology?", "Is it known for its temples?", "Is it known for its mosques?",
    "Is it known for its churches?", "Is it known for its palaces?", "Is it known for its museums?",
    "Is it known for its beaches?", "Is it known for music?", "Is it known for fashion?", "Is it known for its cars?",
    "Is it known for textiles?", "Is it a financial center?", "Is it a university city?", "Does it have a castle?",
    "Does it have ancient ruins?", "Is soccer popular there?", "Do people play cricket?", "Is baseball popular there?",
    "Do they use chopsticks?", "Is the food spicy?", "Is it in the north of the country?",
    "Is it in the south of the country?", "Is it in the east of the country?", "Is it in the west of the country?",
    "Is it on the Pacific Ocean?", "Is it on the Atlantic Ocean?", "Is it on the Mediterranean Sea?",
    "Is it bigger than London?", "Is it bigger than Paris?", "Is it older than Rome?", "Is there red in the flag?",
    "Is there green in the flag?", "Is there blue in the flag?", "Are there many universities?", "Is it a nice place?",
    "Do you like living there?",
)  # fmt: skip
PLACES = (
    "Asia", "Europe", "Africa", "North America", "South America", "Latin America", "the Middle East", "East Asia",
    "Southeast Asia", "South Asia", "Western Europe", "Eastern Europe", "North Africa", "the Americas",
)  # fmt: skip
LANGUAGES = (
    "English", "Spanish", "Portuguese", "French", "Arabic", "Mandarin", "Hindi", "Russian", "Japanese", "Korean",
    "Indonesian", "Turkish", "Urdu", "Persian", "German", "Bengali",
)  # fmt: skip
RIVERS = ("Yangtze", "Nile", "Danube", "Ganges", "Thames", "Seine")
GUESSES = ("Is it {}?", "Is the city you are from {}?", "Are you from {}?", "Is your city {}?", "Is it the city of {}?")
# The mixture that collects the data: see `behavior`.
KEEN_SHARE, LOST_SHARE = 0.16, 0.43
CARELESS = (0.5, 1.0)
PATIENCE = (16, 19)
NOISE = 0.4


class Asker(Splitter):
    """A splitter that also knows other wordings of a guess, and ranks questions fast.

    Args:
        cities: How many cities of the list can be hidden: 100, or 99 without the first.
        answers: `free` or `yes_no`, the option of the environment.
    """

    def __init__(self, cities: int, answers: str) -> None:
        chosen = range(len(atlas().cities) - cities, len(atlas().cities))
        self.names = [atlas().cities[number].name for number in chosen]
        self.lands = np.unique([atlas().cities[number].land.name for number in chosen], return_inverse=True)[1]
        questions, texts, rows = questions_asked(), dict[str, int](), []
        for question in questions:
            found = meaning(question)
            said = [NOT_UNDERSTOOD] * len(chosen) if found is None else [found[number] for number in chosen]
            if answers == "yes_no":
                said = ["Yes." if text.startswith("Yes") else "No." for text in said]
            rows.append([texts.setdefault(text, len(texts)) for text in said])
        super().__init__(
            questions, [GUESSES[0].format(name) for name in self.names], np.array(rows, np.int32), [*texts]
        )
        for wording in GUESSES:
            self._guess |= {wording.format(name): number for number, name in enumerate(self.names)}
        # Answers numbered per question, so that counting needs no more room than there are answers.
        local = [np.unique(row, return_inverse=True)[1] for row in self._answers]
        starts = np.cumsum([0, *(int(row.max()) + 1 for row in local)])
        self._cells = np.array([row + start for row, start in zip(local, starts, strict=False)])
        self._starts = starts

    def ranked(self, left: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows of the questions, those first that leave the fewest bits open."""
        key = left.tobytes()
        if key not in self._best:
            counts = np.bincount(self._cells[:, left].ravel(), minlength=self._starts[-1])
            bits = np.add.reduceat(counts * np.log2(np.maximum(counts, 1)), self._starts[:-1])
            if len(self._best) > 100_000:
                self._best.clear()
            self._best[key] = np.argsort(bits, kind="stable")
        return self._best[key]

    def guess(self, context: Context) -> str:
        """One of the cities that agree with the answers so far."""
        city = int(context.rng.choice(self.left(context).tolist()))
        return context.rng.choice(GUESSES).format(self.names[city])


@functools.cache
def questions_asked() -> list[str]:
    """All questions of the scripted agents that are no guesses."""
    countries = dict.fromkeys(with_article(city.land.name) for city in atlas().cities)
    return [
        *OPEN_QUESTIONS,
        *YES_NO_QUESTIONS,
        *(f"Is it in {place}?" for place in (*PLACES, *countries)),
        *(f"Do people speak {language} there?" for language in LANGUAGES),
        *(f"Does the {river} run through it?" for river in RIVERS),
    ]


@functools.cache
def asker(cities: int, answers: str) -> Asker:
    """One per process and option."""
    return Asker(cities, answers)


def _asker(context: Context) -> Asker:
    return asker(context.info["cities"], context.info["answers"])


def random_question(context: Context) -> str:
    """Any question or guess, each as likely, whatever is known."""
    found = _asker(context)
    number = context.rng.randrange(len(found.questions) + len(found.names))
    if number < len(found.questions):
        return found.questions[number]
    return found.guesses[number - len(found.questions)]


def optimal_question(context: Context) -> str:
    """The question that leaves the fewest bits open; a guess where one or two cities are left."""
    return _asker(context).ask(context)


def noisy_question(context: Context) -> str:
    """`optimal`, but every so often any question, else one of the best twenty."""
    return _careless_question(context, NOISE)


def _careless_question(context: Context, noise: float) -> str:
    if context.rng.random() < noise:
        return context.rng.choice(_asker(context).questions)
    return _asker(context).ask(context, choose_among=20)


def naive_question(context: Context) -> str:
    """Goes through the countries one by one, then through the cities of the country; no other questions."""
    found = _asker(context)
    left = found.left(context)
    city = int(context.rng.choice(left.tolist()))
    if len(np.unique(found.lands[left])) > 1:
        return f"Is it in {with_article(_land(found, city))}?"
    return found.guesses[city]


def _land(found: Asker, number: int) -> str:
    return _lands()[found.names[number]]


@functools.cache
def _lands() -> dict[str, str]:
    return {city.name: city.land.name for city in atlas().cities}


def behavior_question(context: Context) -> str:
    """What collects the data, a mixture drawn once per episode.

    Keen askers are `noisy`, each with a share of careless questions drawn from `CARELESS`. Lost ones ask whatever comes
    to mind, throw in a guess now and then, and never put it together. The others ask as much at random but remember,
    and begin to guess when their patience ends, at a question drawn from `PATIENCE`.
    """
    once = context.once()
    kind, careless, patience = once.random(), once.uniform(*CARELESS), once.randint(*PATIENCE)
    found, turn = _asker(context), len(context.history)
    if kind < KEEN_SHARE:
        return _careless_question(context, careless)
    if kind < KEEN_SHARE + LOST_SHARE:
        guesses = turn == MAX_QUESTIONS - 1 or context.rng.random() < 0.1
        return context.rng.choice(found.guesses) if guesses else context.rng.choice(found.questions)
    if turn >= patience:
        return found.guess(context)
    return context.rng.choice(found.questions)
