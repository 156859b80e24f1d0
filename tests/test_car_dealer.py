"""Car Dealer: rewards and decisions by hand, what is read in free text, and what the scripted buyer does with it."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest

from env_servers.partners import Answer, Query
from env_servers.play import episode_starts, play, replay
from env_servers.policy import Context, ScriptedPolicy
from env_servers.scores import summarize
from env_servers.task import Env, EpisodeError
from env_servers.tasks import make_env, make_policy
from env_servers.tasks.car_buyer import REVISION, buyer_after, scripted_buyer
from env_servers.tasks.car_dealer import (
    LINES,
    MOST_PAID,
    REWARDS,
    SILENCE,
    CarDealer,
    Decision,
    read_decision,
    reward_of,
)
from env_servers.tasks.car_mind import PERSONALITIES, STRATEGIES, Profile, State, patience, strike_limit, worth
from env_servers.tasks.car_money import LARGEST, read_prices
from env_servers.tasks.car_sellers import SELLERS
from env_servers.tasks.car_talk import Line, feature_list, plain, read_line, spoken_lines
from env_servers.tasks.car_words import FEATURES
from env_servers.trajectory import Trajectory

TESLA = Profile("polite", "a Tesla", "truck", ("heated seats", "sunroof"), 50_000, "impatient")


class FakeBuyer:
    """Gives prepared answers, and keeps what it was asked."""

    name, revision = "fake", "1"

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[Query] = []

    def answer(self, queries: Sequence[Query]) -> list[Answer | EpisodeError]:
        self.asked += queries
        return [Answer(self.answers.pop(0)) for _ in queries]


def against(*answers: str, **options: Any) -> tuple[Env, FakeBuyer]:
    """An environment at the start of an episode with a buyer that says just that."""
    env, buyer = make_env("car_dealer", options), FakeBuyer(*answers)
    env.partner = buyer
    env.reset(0)
    return env, buyer


def after(profile: Profile, *texts: str) -> State:
    return buyer_after(profile, texts)


def spoken(state: State) -> list[str]:
    return [act for act, _ in state.acts]


@functools.cache
def episodes_of(policy: str) -> list[Trajectory]:
    """The first 200 test episodes, played once for all tests."""
    starts = episode_starts("car_dealer", "test", range(200))
    return [played.trajectory for played in play("car_dealer", make_policy("car_dealer", policy), starts)]


# The profile ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seed", "profile"),
    [  # seed 0 is the reference's; the others are by its code's order, which the next test writes out
        (0, ("sarcastic", "a Tesla", "truck", ["third-row seating"], 90000)),
        (1, ("insulting", "a Subaru", "luxury", ["navigation system", "leather seats", "sunroof"], 70000)),
        (2, ("abusive", "a Lexus", "luxury", ["heated seats", "blind spot monitoring", "sunroof"], 50000)),
        (3, ("polite", "a Subaru", "electric", ["blind spot monitoring", "third-row seating"], 70000)),
        (
            4,
            (
                "polite",
                "a Hyundai",
                "luxury",
                ["Apple CarPlay", "navigation system", "backup camera", "blind spot monitoring"],
                10000,
            ),
        ),
    ],
)
def test_golden_profiles(seed: int, profile: tuple[Any, ...]) -> None:
    env = make_env("car_dealer")
    assert env.reset(seed) == "Start"
    assert tuple(env.info[key] for key in ("personality", "brand", "type", "features", "budget")) == profile


def test_profiles_are_drawn_in_the_papers_order() -> None:
    personalities = [
        "abusive", "angry", "insulting", "polite", "respectful", "rude", "sarcastic", "talkative", "toxic",
        "uncommunicative",
    ]  # fmt: skip
    brands = [
        "Volkswagen", "Lexus", "Ford", "Mazda", "Hyundai", "Toyota", "Mercedes-Benz", "BMW", "Audi", "Subaru", "Honda",
        "Porsche", "Tesla",
    ]  # fmt: skip
    types = ["luxury", "sedan", "convertible", "truck", "electric", "SUV"]
    features = [
        "backup camera", "navigation system", "heated seats", "leather seats", "third-row seating",
        "blind spot monitoring", "sunroof", "Apple CarPlay",
    ]  # fmt: skip
    strategies = set()
    for seed in range(200):
        rng = random.Random(seed)
        expected: dict[str, Any] = {"personality": rng.choice(personalities)}
        brand = rng.choice(brands)
        expected |= {"brand": f"{'an' if brand == 'Audi' else 'a'} {brand}", "type": rng.choice(types)}
        number = rng.randint(1, 4)
        expected |= {
            "features": rng.sample(features, number),
            "budget": rng.choice([10000, 30000, 50000, 70000, 90000]),
        }
        env = make_env("car_dealer")
        env.reset(seed)
        assert {key: env.info[key] for key in expected} == expected
        strategies.add(env.info["strategy"])
    assert strategies == set(STRATEGIES)


def test_golden_transcript() -> None:
    """Seed 2: abusive, wants a Lexus luxury car with heated seats, blind spot monitoring, sunroof; `features`; $50,000.

    By hand: at the first price it would pay 0.10 + 0.12 + 0.12 + 0.36 + 3 x 0.02 + 0.04 = 0.80, which is 40,000, and
    offers 80 % of that. Something for free makes it 42,000 and the lower price 85 %: 35,700. Then 44,000 and 90 %:
    39,600. With a second reason it would pay 46,000.
    """
    said = [
        (
            "Welcome! What brand and type of car are you looking for?",
            "It has to be a Lexus luxury car, so don't waste my time with something else. Does that thing have heated "
            "seats?",
        ),
        (
            "Which features do you need?",
            "Blind spot monitoring and a sunroof, and don't make me repeat it. I need blind spot monitoring. Does it "
            "have that?",
        ),
        (
            "This Lexus luxury car has heated seats and a sunroof.",
            "You had better listen this time. At least something. How much? And no tricks.",
        ),
        (
            "It also has blind spot monitoring, and it is very safe. The price is $58,000.",
            "Do I look like I have that much? $32,000. That's what it is worth.",
        ),
        (
            "What is your budget?",
            "Listen to me. What I can spend is none of your business. I told you, $32,000.",
        ),
        (
            "I can come down to $49,000, and maintenance is free.",
            "Are you even paying attention? Way too expensive. $35,700, not more.",
        ),
        (
            "Let me see, $45,500 and a set of winter tires for free.",
            "That is too much. I'll pay $39,600, take it or not.",
        ),
        (
            "$44,000, it is very comfortable.",
            "Fine, I'll take it for $44,000. Get the papers.",
        ),
    ]
    env = make_env("car_dealer")
    env.reset(2)
    steps = [env.step(text) for text, _ in said]
    assert [step.observation for step in steps] == [answer for _, answer in said]
    assert [step.reward for step in steps] == [0.0] * 7 + [44.0]
    assert (steps[-1].end_reason, steps[-1].terminated, steps[-1].success) == ("accepted", True, True)
    assert env.info["answers"][-1].endswith(" Output: Decision=Accept MSRP=$58,000 Buy Price=$44,000")


# Rewards -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("decision", "budget", "rewards"),
    [  # in the order revenue, price, fancy, fancy_safe
        # 45,000 / ((50,000 + 50,000) / 2) = 0.9
        (Decision(True, 50_000, 45_000), 50_000, (45.0, 45_000.0, 0.9, 0.9)),
        # 30,000 / ((90,000 + 30,000) / 2) = 0.5
        (Decision(True, 30_000, 30_000), 90_000, (30.0, 30_000.0, 0.5, 0.5)),
        (Decision(True, 30_000, 0), 90_000, (0.0, 0.0, 0.0, 0.0)),  # no price
        (Decision(True, None, 40_000), 50_000, (40.0, 40_000.0, 0.8, 0.8)),  # no MSRP: the budget
        # -(90,000 - 30,000) / 30,000 = -2
        (Decision(False, 30_000, 0), 90_000, (0.0, 0.0, -2.0, -2.0)),
        # -(30,000 - 60,000) / 60,000 = 0.5: the paper's code pays for a huge MSRP
        (Decision(False, 60_000, 0), 30_000, (0.0, 0.0, 0.5, 0.0)),
        (Decision(False, None, 0), 30_000, (0.0, 0.0, 0.0, 0.0)),
        # A model may say any price: no more than the highest budget counts, but in `fancy`, which is as in the paper.
        # 180,000 / ((30,000 + 60,000) / 2) = 4
        (Decision(True, 60_000, 180_000), 30_000, (90.0, 90_000.0, 4.0, 4.0)),
    ],
)
def test_rewards(decision: Decision, budget: int, rewards: tuple[float, ...]) -> None:
    assert tuple(reward_of(decision, budget, mode) for mode in REWARDS) == rewards


@pytest.mark.parametrize(
    ("mode", "reward"), [("revenue", 45.0), ("price", 45_000.0), ("fancy", 0.6), ("fancy_safe", 0.6)]
)
def test_only_the_last_action_is_paid(mode: str, reward: float) -> None:
    """Seed 0 has a budget of 90,000: 45,000 / ((90,000 + 60,000) / 2) = 0.6."""
    env, _ = against("Hm.", "Go on.", "OK. Output: Decision=Accept MSRP=$60,000 Buy Price=$45,000", reward=mode)
    steps = [env.step(text) for text in ("Hello", "A Tesla truck.", "$45,000")]
    assert [step.reward for step in steps] == [0.0, 0.0, reward]
    assert [step.done for step in steps] == [False, False, True]
    assert (steps[-1].end_reason, steps[-1].success, steps[-1].terminated) == ("accepted", True, True)
    assert (env.info["msrp"], env.info["price"]) == (60_000, 45_000)


# The decision --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "shown", "decision"),
    [
        ("Deal! Output: Decision=Accept MSRP=$50,000 Buy Price=$45,000", "Deal!", Decision(True, 50_000, 45_000)),
        ("Bye. Output: Decision=Reject MSRP=$50,000", "Bye.", Decision(False, 50_000, 0)),
        ("Output: Decision=Accept MSRP=$50000 Buy Price=$45000", "", Decision(True, 50_000, 45_000)),
        ("No.Output: Decision=Reject MSRP=$9,000 Buy Price=$8,000", "No.", Decision(False, 9_000, 0)),
        ("ok output:decision = accept msrp = $ 5,000 buy price = $ 4,000", "ok", Decision(True, 5_000, 4_000)),
        ("Ok Output: Decision=Accept, MSRP=$5,000, Buy Price=$4,000.", "Ok", Decision(True, 5_000, 4_000)),
        ("Fine.\nOutput: Decision=Accept MSRP=$5,000\nBuy Price=$4,000\n", "Fine.", Decision(True, 5_000, 4_000)),
        (
            "Yes Output: Decision=Accept MSRP=$5,000 Buy Price=$4,000 Thanks.",
            "Yes Thanks.",
            Decision(True, 5_000, 4_000),
        ),
        ("Yes. Output: Decision=Accept MSRP=$5,000", "Yes.", Decision(True, 5_000, 0)),
        ("Yes. Output: Decision=Accept Buy Price=$4,000", "Yes.", Decision(True, None, 4_000)),
        ("No. Output: Decision=Reject", "No.", Decision(False, None, 0)),
        ("Hm. Output: Decision=Accept MSRP=$0,500 Buy Price=$0", "Hm.", Decision(True, None, 0)),
        ("Hm. Output: I accept it for a Buy Price of $4,000", "Hm.", Decision(True, None, 0)),
        ("Hm. Decision=Accept Buy Price=$4,000", "Hm.", Decision(True, None, 4_000)),
        ("Hm. Decision: not accepted", "Hm.", Decision(False, None, 0)),
        ("Hm. Output: my budget is $90,000", "Hm.", None),
        ("Hm. OUTPUT:", "Hm.", None),
        ("Hm. Output: Decision=Maybe MSRP=$5,000", "Hm.", None),
        ("I accept nothing of the kind.", "I accept nothing of the kind.", None),
        ("Good  day\n", "Good day", None),
        ("", "", None),
        (
            f"Yes. Output: Decision=Accept MSRP=${'9' * 5000} Buy Price=$1,000",
            "Yes.",
            Decision(True, LARGEST, 1_000),
        ),
        (
            "A Output: Decision=Accept MSRP=$5,000 Buy Price=$4,000 B Output: Decision=Reject MSRP=$5,000",
            "A B",
            Decision(True, 5_000, 4_000),
        ),
        (
            "A Output: Decision=Accept MSRP=$5,000 B Decision=Accept MSRP=$6,000 Buy Price=$4,000",
            "A B",
            Decision(True, 5_000, 0),
        ),
    ],
)
def test_decisions(text: str, shown: str, decision: Decision | None) -> None:
    assert read_decision(text) == (shown, decision)


def test_a_decision_that_cannot_be_read_is_not_shown_and_the_talk_goes_on() -> None:
    env, _ = against("Let me see. Output: Decision=Perhaps MSRP=$50,000", "Bye. Output: Decision=Reject MSRP=$50,000")
    step = env.step("Buy it?")
    assert (step.observation, step.done) == ("Let me see.", False)
    step = env.step("Well?")
    assert (step.observation, step.reward, step.end_reason, step.success) == ("Bye.", 0.0, "rejected", False)
    assert step.terminated


def talked_out(*last: str) -> tuple[Env, FakeBuyer, list[Any]]:
    env, buyer = against(*(f"Hm {number}." for number in range(LINES)), *last)
    return env, buyer, [env.step(f"Line {number}") for number in range(LINES)]


@pytest.mark.parametrize(
    ("completion", "reward", "reason", "terminated"),
    [
        ("Accept MSRP=$50,000 Buy Price=$45,000", 45.0, "accepted", True),
        ("Output: Decision=Accept MSRP=$50,000 Buy Price=$44,000", 44.0, "accepted", True),  # it repeats the end of it
        ("Hm 24. Output: Decision=Accept MSRP=$50,000 Buy Price=$43,000", 43.0, "accepted", True),  # or all of it
        ("I can't accept more. Output: Decision=Accept MSRP=$50,000 Buy Price=$42,000", 42.0, "accepted", True),
        ("Accept MSRP=$50,000 Buy Price=$41,000 Output: Decision=Reject", 41.0, "accepted", True),  # it rambles on
        ("Reject MSRP=$50,000", 0.0, "rejected", True),
        ("Well, I do not know.", 0.0, "line_limit", False),
        ("", 0.0, "line_limit", False),
    ],
)
def test_at_the_limit_the_buyer_has_to_decide(completion: str, reward: float, reason: str, terminated: bool) -> None:
    env, buyer, steps = talked_out(completion)
    assert [step.done for step in steps] == [False] * (LINES - 1) + [True]
    last = steps[-1]
    assert (last.reward, last.end_reason, last.terminated, last.truncated) == (
        reward,
        reason,
        terminated,
        not terminated,
    )
    assert last.observation == "Hm 24.", "the buyer's last words; the decision is not shown"
    assert last.success == (reason == "accepted")
    begun = "Hm 24. Output: Decision="
    assert [query.prefix for query in buyer.asked] == [""] * LINES + [begun], "it goes on with its own line"
    once_more = buyer.asked[-1]
    assert once_more == buyer.asked[-2]._replace(prefix=begun), "the same query, but for how the answer begins"
    assert [exchange.text for exchange in once_more.exchanges] == [f"Line {number}" for number in range(LINES - 1)]
    assert env.info["answers"] == [*(f"Hm {number}." for number in range(LINES)), completion]


@pytest.mark.parametrize(
    ("last", "prefix"),
    [
        ("", "Output: Decision="),
        ("Let me see. Output: Decision=Perhaps", "Let me see. Output: Decision="),
        ("Output:", "Output: Decision="),
        ("Well,\n maybe. ", "Well, maybe. Output: Decision="),
    ],
)
def test_the_last_line_is_begun_again_without_what_cannot_be_read(last: str, prefix: str) -> None:
    env, buyer = against(*["Hm."] * (LINES - 1), last, "Reject MSRP=$9,000")
    steps = [env.step(f"Line {number}") for number in range(LINES)]
    assert buyer.asked[-1].prefix == prefix
    assert steps[-1].end_reason == "rejected"


def test_silence_costs_a_line_and_nobody_is_asked() -> None:
    env, buyer = against("Hm.", "Bye. Output: Decision=Reject MSRP=$50,000")
    for text in ["", "   ", "?!", "\n", "💥"]:
        step = env.step(text)
        assert (step.observation, step.legal, step.reward, step.done) == (SILENCE, False, 0.0, False)
    assert env.step("Hello").observation == "Hm."
    assert [query.text for query in buyer.asked] == ["Hello"]
    steps = [env.step("") for _ in range(LINES - 6)]
    assert [step.done for step in steps] == [False] * (LINES - 7) + [True]
    assert (steps[-1].end_reason, steps[-1].truncated, steps[-1].legal) == ("line_limit", True, False)


def test_the_scripted_buyer_decides_at_the_limit() -> None:
    env = make_env("car_dealer")
    env.reset(0)
    for _ in range(LINES - 1):
        env.step("")
    step = env.step("Hello there.")
    assert (step.end_reason, step.reward, step.terminated) == ("rejected", 0.0, True)
    assert env.info["answers"][-1] == "Reject"


# What the seller is shown --------------------------------------------------------------------------------------------
def test_neither_decision_nor_profile_is_shown() -> None:
    for policy in SELLERS:
        for trajectory in episodes_of(policy)[:40]:
            texts = [turn.observation for turn in trajectory.turns] + [trajectory.final_observation or ""]
            for text in texts:
                assert not {"output", "decision", "msrp", "budget:"} & set(text.lower().replace("=", " ").split())
                assert f"${trajectory.info['budget']:,}" not in text or trajectory.success
            assert trajectory.info["answers"][-1].count("Output: Decision=") == 1
            assert (texts[0], texts[1:]) == ("Start", [read_decision(a)[0] for a in trajectory.info["answers"]])


def test_a_record_with_another_buyer_is_replayed_from_its_answers() -> None:
    answers = ["Hm.", "Hm. Output: nonsense", "OK. Output: Decision=Accept MSRP=$60,000 Buy Price=$45,000"]

    def maker(task: str, options: Any) -> Env:
        env = make_env(task, options)
        env.partner = FakeBuyer(*answers)
        return env

    policy = ScriptedPolicy("counting", lambda context: f"Line {len(context.history)}")
    starts = list(episode_starts("car_dealer", "train", range(1)))
    (played,) = play("car_dealer", policy, starts, env_maker=maker)
    assert played.trajectory.info["partner"] == "fake" and played.trajectory.episode_return == 45.0
    assert replay(played.trajectory) is None
    info = {**played.trajectory.info, "answers": answers[:2]}
    assert "the record has no answer 2" in str(replay(replace(played.trajectory, info=info)))
    for wrong in ({"answers": None}, {"answers": [1]}):
        with pytest.raises(EpisodeError, match="text"):
            make_env("car_dealer").follow(replace(played.trajectory, info={**played.trajectory.info, **wrong}))


def test_the_scripted_buyer_is_asked_again_for_its_own_record() -> None:
    trajectory = episodes_of("concise")[0]
    assert trajectory.info["partner_revision"] == REVISION
    forged = replace(trajectory, info={**trajectory.info, "answers": ["Forged."] * 30})
    assert replay(forged) is None
    assert replay(replace(forged, info={**forged.info, "partner_revision": "0"})) is not None


def test_a_person_is_told_at_the_end_who_the_buyer_was() -> None:
    env, _ = against("Hm.", "OK. Output: Decision=Accept MSRP=$60,000 Buy Price=$45,000")
    assert env.draw() == "(line 1 of 25)"
    env.step("Hello")
    assert env.draw() == "(line 2 of 25)"
    env.step("$45,000")
    assert env.draw() == (
        "The buyer was sarcastic, wanted a Tesla truck with third-row seating, and had $90,000. Strategy: features. "
        "Sold for $45,000, 50% of the budget."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "profit"}, "reward is 'profit'; allowed: revenue, price, fancy, fancy_safe"),
        ({"reward": ["fancy"]}, "reward is "),
        ({"partner": "nobody"}, "partner is 'nobody'; allowed: knowledge, replay:"),
        ({"partner_options": {"a": 1}}, "partner 'knowledge' takes no options"),
        ({"partner_options": 3}, "it must be a text with a mapping"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env("car_dealer", options)


# Money ---------------------------------------------------------------------------------------------------------------
PRICES: list[tuple[str, int | None]] = [
    ("The price is $45,000.", 45_000),
    ("It's 45k.", 45_000),
    ("$45K and it's yours", 45_000),
    ("I can do forty-five thousand.", 45_000),
    ("How about forty five thousand five hundred dollars?", 45_500),
    ("It costs 45000 dollars", 45_000),
    ("It costs 45,000.", 45_000),
    ("I'd let it go for 45 grand", 45_000),
    ("ninety grand", 90_000),
    ("$45,000.00 flat", 45_000),
    ("$ 45,000", 45_000),
    ("USD 45,000 is my price", 45_000),
    ("４５,０００ dollars", 45_000),
    ("$45.000", 45_000),
    ("Around $32,499, all in.", 32_499),
    ("a hundred thousand dollars", 100_000),
    ("one hundred and five thousand dollars", 105_000),
    ("thirty nine thousand nine hundred and ninety nine dollars", 39_999),
    ("4.5k", 4_500),
    ("$1.2 million", 1_200_000),
    ("I could do 42.", 42_000),
    ("Let's make it 52", 52_000),
    ("I can go down to $42,500.", 42_500),
    ("I'll lower the price to $41,000 for you.", 41_000),
    ("I can knock it down to 39k", 39_000),
    ("I'd take $43,000 for it", 43_000),
    ("Let's meet in the middle at $36,500", 36_500),
    ("Deal at 41k then.", 41_000),
    ("How does $42,000 sound?", 42_000),
    ("Why not $45,000?", 45_000),
    ("The lowest I can go is $40,000.", 40_000),
    ("I can't go below $42,000.", 42_000),
    ("I can't sell this car for less than $40,000.", 40_000),
    ("no lower than $42,000", 42_000),
    ("You won't regret it at $40,000.", 40_000),
    ("I can't do $30,000.", None),
    ("I can't accept $38,000, but I can do $41,000.", 41_000),
    ("I won't sell it for $20,000.", None),
    ("$38,000 is too low.", None),
    ("$35,000 won't work, let's say $37,000.", 37_000),
    ("Not $50,000, not $48,000, only $45,000!", 45_000),
    ("Your budget of $30,000 is fine with me, let us look around.", 30_000),
    ("You said $30,000.", None),
    ("Your offer of $38,000 works for me.", 38_000),
    ("I know you offered $30,000, but the car costs $36,000.", 36_000),
    ("With your budget of $50,000 in mind, I can offer you this Audi for $48,500.", 48_500),
    ("It gets 35 mpg and has 300 horsepower.", None),
    ("It's a 2023 model with 15,000 miles.", None),
    ("A 2021 for $31,000", 31_000),
    ("0-60 in 3.1 seconds with a range of 330 miles", None),
    ("5 year warranty, 60,000 miles", None),
    ("Only $399 a month!", None),
    ("$2,000 down and $399/month", None),
    ("It seats 7 people and 24/7 support", None),
    ("between $40,000 and $45,000", 40_000),
    ("It's 40-45k", 40_000),
    ("prices start at $35,000", 35_000),
    ("The price is $80,000. Well, $60,000. No, $70,000!", 60_000),
    ("-$45,000", None),
    ("a discount of -$5,000", None),
    ("minus 10% off", None),
    ("$500 gift card", None),
    ("You also get a $7,500 federal tax credit.", None),
    ("I'll add $1,500 for the extended warranty", None),
    ("for an extra $3,000 you get leather", None),
    ("floor mats worth $2,500 for free", None),
    ("Other dealers sell it for $48,000.", None),
    ("$0", None),
    ("$1", None),
    ("$999999999999999999999999", LARGEST),
    ("Call me at 555-123-4567", None),
    ("F-150 with 400 hp", None),
    ("nothing at all", None),
]
# By other people: money of the other, of others, of the past, of parts; and what is no money.
PRICES += [
    ("Thirty-four thousand five hundred, and it's yours.", 34_500),
    ("The final price is 30, with free floor mats.", 30_000),
    ("MSRP $42,000; my offer: $39,000.", 39_000),
    ("It has 20000 miles and costs $25,000.", 25_000),
    ("The price ranges from $35,000 to $45,000.", 35_000),
    ("between 20 and 30 thousand", 20_000),
    ("$45 000", 45_000),
    ("45 000 dollars", 45_000),
    ("$30,0000", None),
    ("$45,00", None),
    ("$550 a month or $35,000 cash.", 35_000),
    ("It costs $35,000 with a $500 deposit.", 35_000),
    ("20% off the $50,000 sticker.", 40_000),
    ("Save $3,000 off the $36,000 MSRP.", 33_000),
    ("It's $45,000 less a $3,000 rebate.", 42_000),
    ("You pay $33,000 and save $3,000.", 33_000),
    ("$36,000 - $3,000 = $33,000", 33_000),
    ("It is $35,000, the add-ons are $3,000.", 35_000),
    ("The list price is $60,000, but you can have it for $8,500.", 8_500),
    ("Your trade-in is worth $8,000, so you'd pay $30,000.", 30_000),
    ("I can give you $8,000 for your trade-in.", None),
    ("I'd pay you $6,000 for your old car.", None),
    ("$5,000 down and the rest, $30,000, in installments.", None),
    ("The total with interest is $48,000 over six years.", None),
    ("What is your budget? Is it around $50,000?", None),
    ("Do you have $30,000?", None),
    ("Can you afford $30,000?", None),
    ("I know you only have $30,000.", None),
    ("You told me $30,000 was your limit.", None),
    ("You only want to spend $30,000, but this is $35,000.", 35_000),
    ("Would you pay $50,000?", 50_000),
    ("Could you go up to $31,000?", 31_000),
    ("You can have it for $31,000.", 31_000),
    ("I paid $28,000 for it myself.", None),
    ("The dealership down the street charges $33,000.", None),
    ("Your neighbor bought one for $38,000.", None),
    ("Someone offered me $32,000 yesterday.", None),
    ("I have an offer of $33,000 from someone else.", None),
    ("You could sell it for $20,000 in five years.", None),
    ("A new engine costs $6,000.", None),
    ("Buy now or the price goes up to $60,000!", None),
    ("If I sell it for $25,000 I lose money.", None),
    ("I would lose money at $25,000.", None),
    ("I don't think $22,000 is enough.", None),
    ("$22,000 is an insult.", None),
    ("$22,000? No way.", None),
    ("This 2019 Accord is a beauty.", None),
    ("The Mazda 3000 dream.", None),
    ("Only 12,000 on the odometer.", None),
    ("It has 45k on the clock.", None),
    ("The previous owner put 36,000 on it.", None),
    ("We have 4000 happy customers.", None),
    ("Our zip code is 90210.", None),
    ("Call me at 555 123 4567.", None),
    ("Das Auto kostet 30.000 Euro.", 30_000),
    ("El precio es de treinta mil dólares.", None),
]
# price, list price, per cent off, dollars off
DISCOUNTS: list[tuple[str, tuple[int | None, int | None, float, int]]] = [
    ("I can take 10% off.", (None, None, 10.0, 0)),
    ("ten percent off", (None, None, 10.0, 0)),
    ("How about a 5% discount?", (None, None, 5.0, 0)),
    ("I'd cut the price by 15 percent", (None, None, 15.0, 0)),
    ("half price", (None, None, 50.0, 0)),
    ("knock off 2,000", (None, None, 0.0, 2_000)),
    ("I'll knock $2,000 off", (None, None, 0.0, 2_000)),
    ("$500 less", (None, None, 0.0, 500)),
    ("a discount of $3,000", (None, None, 0.0, 3_000)),
    ("a $1,000 discount", (None, None, 0.0, 1_000)),
    ("I can shave two grand off the price", (None, None, 0.0, 2_000)),
    ("I can come down by $1,500", (None, None, 0.0, 1_500)),
    ("We can reduce the price by 2k", (None, None, 0.0, 2_000)),
    ("I could drop the price by a thousand dollars", (None, None, 0.0, 1_000)),
    ("I'll take another $500 off for you", (None, None, 0.0, 500)),
    ("save up to $3,000", (None, None, 0.0, 3_000)),
    ("I'll save you $3,000", (None, None, 0.0, 3_000)),
    ("You'd save $5,000 compared to the list price.", (None, None, 0.0, 0)),
    ("That's a saving of $5,000.", (None, None, 0.0, 0)),
    ("I could come down another thousand.", (None, None, 0.0, 1_000)),
    ("There's a $3,000 rebate on top.", (None, None, 0.0, 3_000)),
    ("$1,000 cash back", (None, None, 0.0, 1_000)),
    ("100% off", (None, None, 0.0, 0)),
    ("0% financing", (None, None, 0.0, 0)),
    ("100% electric", (None, None, 0.0, 0)),
    ("$50,000 minus 10%", (45_000, 50_000, 0.0, 0)),
    ("It's $50,000, but I can take 10% off.", (45_000, 50_000, 0.0, 0)),
    ("It's $50,000 and I'll knock off 2,000", (48_000, 50_000, 0.0, 0)),
    ("That's $1,500 below the MSRP of $45,000.", (43_500, 45_000, 0.0, 0)),
    ("I can take 10% off, so that's $45,000.", (45_000, None, 0.0, 0)),
    ("I can offer a $2,000 discount, bringing the price down to $43,000.", (43_000, None, 0.0, 0)),
    ("$45,000 after a 10% discount", (45_000, None, 0.0, 0)),
    ("The MSRP is $50,000.", (50_000, 50_000, 0.0, 0)),
    ("The MSRP is $50,000, but I can let it go for $46,000.", (46_000, 50_000, 0.0, 0)),
    ("It was $50,000, now it's $44,000", (44_000, 50_000, 0.0, 0)),
    ("Down from $50,000 to $44,000", (44_000, 50_000, 0.0, 0)),
    ("The sticker price is $40,000 and I can give you 5% off", (38_000, 40_000, 0.0, 0)),
    ("The car is worth $60,000, but for you $52,000", (52_000, 60_000, 0.0, 0)),
]


@pytest.mark.parametrize(("text", "price"), PRICES)
def test_prices_in_free_text(text: str, price: int | None) -> None:
    assert read_prices(plain(text)).price == price


@pytest.mark.parametrize(("text", "expected"), DISCOUNTS)
def test_discounts_in_free_text(text: str, expected: tuple[Any, ...]) -> None:
    prices = read_prices(plain(text))
    assert (prices.price, prices.list_price, prices.percent_off, prices.amount_off) == expected


# Words ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Welcome! What brand and type of car are you looking for?", {"topics": ("brand", "type")}),
        ("What's your budget?", {"topics": ("budget",)}),
        ("How much were you hoping to spend?", {"topics": ("budget",)}),
        ("Any must-haves?", {"topics": ("features",)}),
        ("Tell me what you are looking for.", {"topics": ("needs",)}),
        ("How can I help you today?", {"topics": ("needs",)}),
        ("Do you need heated seats or a sunroof?", {"about": ("heated seats", "sunroof")}),
        ("Would you prefer an SUV or a sedan?", {"about": ("SUV", "sedan")}),
        ("Can I interest you in a Ford Mustang convertible?", {"brands": ("a Ford",), "types": ("convertible",)}),
        (
            "It has heated leather seats, a moonroof and Apple CarPlay.",
            {"features": ("heated seats", "leather seats", "sunroof", "Apple CarPlay")},
        ),
        (
            "with a GPS, seven seats and blind-spot detection",
            {"features": ("navigation system", "third-row seating", "blind spot monitoring")},
        ),
        (
            "It doesn't have a sunroof, but it has a backup camera.",
            {"features": ("backup camera",), "lacking": ("sunroof",), "starts_with": "no"},
        ),
        ("No sunroof, sorry.", {"lacking": ("sunroof",), "starts_with": "no"}),
        ("not only heated seats but also a sunroof", {"features": ("heated seats", "sunroof")}),
        (
            "Since you want heated seats and leather, this has them both.",
            {"features": ("heated seats", "leather seats")},
        ),
        ("So you want heated seats.", {"about": ("heated seats",)}),
        ("This car has everything you asked for.", {"repeats_wishes": True}),
        (
            "We don't have a Tesla, but I can show you a BMW SUV.",
            {"brands": ("a BMW",), "types": ("SUV",), "lacking": ("a Tesla",), "starts_with": "no"},
        ),
        (
            "Better than any BMW, this Audi sedan is safe and reliable.",
            {"brands": ("an Audi",), "types": ("sedan",), "reasons": ("safety", "reliability")},
        ),
        ("An electric car with electric windows", {"types": ("electric",)}),
        (
            "I'll throw in free maintenance and floor mats. It has a 5-year warranty.",
            {"extras": ("maintenance", "mats"), "reasons": ("warranty",)},
        ),
        ("0% financing available", {"extras": ("financing",)}),
        ("Deal!", {"agrees": True}),
        ("You've got yourself a deal.", {"agrees": True}),
        ("Do we have a deal?", {}),
        ("Great deal on this one.", {}),
        ("Yes, it does.", {"starts_with": "yes"}),
        ("Buy now or somebody else will!", {"pushes": True}),
        ("WHY WILL YOU NOT BUY THIS CAR NOW", {"pushes": True}),
        ("Stop being an idiot.", {"insults": True}),
        ("Lovely weather today.", {}),
        ("We have several in stock.", {"has_it": True}),
        ("It comes fully loaded.", {"repeats_wishes": True}),
        ("A sunroof? A Tesla?", {"about": ("sunroof", "a Tesla")}),
        ("How much did you want to pay then", {"topics": ("budget",)}),
        ("Make me an offer.", {"topics": ("budget",)}),
        ("Alright, we have a deal at your price.", {"agrees": True}),
    ],
)
def test_what_a_line_says(text: str, expected: dict[str, Any]) -> None:
    assert read_line(text)._replace(words=0, asks=False) == Line(**expected)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("What is your budget?", True),
        ("How much did you want to pay then", True),
        ("So what would you like", True),
        ("Ok, are you interested", True),
        ("Is it not a lovely day?", False),
        ("What a beautiful car this is for you", False),
        ("You will love it.", False),
    ],
)
def test_questions_to_the_buyer_also_without_their_mark(text: str, asks: bool) -> None:
    assert read_line(text).asks == asks


# The buyer -----------------------------------------------------------------------------------------------------------
def test_what_the_buyer_would_pay_by_hand() -> None:
    """0.20 for any car as an impatient buyer, and so on, of $50,000; see `car_mind`."""
    assert worth(TESLA, State()) == 10_000
    asked = "Which brand and what type of car do you want?"
    assert worth(TESLA, after(TESLA, asked)) == 12_000, "0.04 for two topics"
    texts = [asked, "I have a Tesla truck."]
    assert worth(TESLA, after(TESLA, *texts)) == 27_000, "0.15 for the brand and 0.15 for the type"
    texts.append("It has heated seats.")
    assert worth(TESLA, after(TESLA, *texts)) == 34_500, "0.15 for half of the features"
    texts.append("Yes, and it has a sunroof. It is very safe and reliable.")
    assert worth(TESLA, after(TESLA, *texts)) == 44_000, "0.15 for the other half, 0.04 for one reason in a line"
    texts.append("Free maintenance.")
    assert worth(TESLA, after(TESLA, *texts)) == 44_500, "0.04 for the extra, but it had asked for the price: -0.03"
    assert worth(TESLA, after(TESLA, *texts, "Buy it now!")) == 40_500, "again, and -0.05 for the pressure"
    # The seventh line costs 0.03, and 0.02 goes for leather, which was not asked for.
    assert worth(TESLA, after(TESLA, *texts, "It costs $60,000.", "With leather seats.")) == 42_000
    assert worth(TESLA, after(TESLA, *texts, "You must be a fool.")) < worth(TESLA, after(TESLA, *texts)) - 5_000


def test_what_the_strategies_change_by_hand() -> None:
    thorough, saver = TESLA._replace(strategy="features"), TESLA._replace(strategy="discount")
    assert (worth(thorough, State()), worth(saver, State())) == (5_000, 2_500)
    pitch = "I have a Tesla truck with heated seats and a sunroof."
    assert worth(thorough, after(thorough, pitch)) == 35_000, "0.10 + 0.12 + 0.12 + 0.36"
    assert worth(saver, after(saver, pitch)) == 32_500, "0.05 + 0.15 + 0.15 + 0.30"
    assert worth(saver, after(saver, pitch, "It is $60,000.", "I can do $57,000.")) == 35_000, "5 % off"
    assert worth(saver, after(saver, pitch, "It is $60,000.", "I can do $40,000.")) == 37_500, "at most 10 %"


def test_a_price_is_taken_as_soon_as_it_is_worth_it() -> None:
    pitch = "I have a Tesla truck with heated seats and a sunroof."
    assert worth(TESLA, after(TESLA, pitch)) == 40_000
    state = after(TESLA, f"{pitch} It costs $40,000.")
    assert (state.decision, state.price) == ("accept", 40_000)
    state = after(TESLA, f"{pitch} It costs $40,001.")
    assert (state.decision, spoken(state)) == ("", ["too_much", "counter"])
    assert state.offer == 32_000, "80 % of what it would pay"
    assert after(TESLA, f"{pitch} It costs $40,001.", "Deal, I accept your offer.").decision == "accept"


def test_who_is_not_impatient_haggles_first() -> None:
    buyer = TESLA._replace(strategy="features")
    texts = ["I have a Tesla truck with heated seats and a sunroof.", "It costs $30,000."]
    state = after(buyer, *texts)
    assert worth(buyer, state) == 35_000
    assert (state.decision, spoken(state), state.offer) == ("", ["counter"], 28_000)
    assert after(buyer, *texts, "I cannot go lower than $29,900.").decision == "accept"
    assert after(buyer, texts[0], "It costs $21,000.").decision == "accept", "60 % of what it would pay is a bargain"


def test_one_wants_all_features_another_a_discount() -> None:
    thorough = TESLA._replace(strategy="features")
    texts = ["I have a Tesla truck with heated seats.", "$20,000.", "$12,000."]
    assert after(thorough, *texts).decision == ""
    assert after(thorough, *texts, "$9,000").decision == "", "far below what it would pay, but without sunroof"
    assert after(thorough, *texts, "Yes, it also has a sunroof.").decision == "accept", "for the price on the table"
    saver = TESLA._replace(strategy="discount")
    texts = ["I have a Tesla truck with heated seats and a sunroof.", "$30,000.", "$29,500."]
    assert after(saver, *texts).decision == "" and spoken(after(saver, *texts)) == ["ask_discount"]
    assert after(saver, *texts, "I can do $29,000.").decision == "accept"
    assert after(saver, *texts, "I throw in floor mats.").decision == "accept"
    assert after(saver, *texts, "I can take off 5%.").decision == "accept"


def test_more_that_fits_is_worth_more() -> None:
    """Each claim that matches a wish raises what every buyer would pay; one that does not match never does."""
    rng = random.Random(0)
    for _ in range(100):
        env = make_env("car_dealer")
        env.reset(rng.randrange(10**6))
        profile = Profile(**{name: env.info[name] for name in Profile._fields})._replace(
            features=tuple(env.info["features"])
        )
        wrong = next(feature for feature in FEATURES if feature not in profile.features)
        states = [
            after(profile, text)
            for text in (
                "Hello.",
                f"I have {profile.brand}.",
                f"I have {profile.car}.",
                f"I have {profile.car} with {feature_list(profile.features[:1])}.",
                f"I have {profile.car} with {feature_list(profile.features[:2])}.",
            )
        ]
        values = [worth(profile, state) for state in states]
        assert values == sorted(values) and values[0] < values[1] < values[2] < values[3]
        assert worth(profile, after(profile, f"I have {profile.car} with {feature_list([wrong])}.")) < values[2]


@pytest.mark.parametrize("personality", PERSONALITIES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pushing_costs_and_in_the_end_the_buyer_leaves(personality: str, strategy: str) -> None:
    profile = TESLA._replace(personality=personality, strategy=strategy)
    pushes = [
        "Buy it now!", "You have to decide.", "It will not last.", "Now or never.", "This is the last chance.",
        "Hurry, please.", "Take it or leave it.",
    ]  # fmt: skip
    before = "Which features do you need?"
    lines = 0
    texts = [before]
    while not after(profile, *texts).decision:
        value = worth(profile, after(profile, *texts))
        texts.append(pushes[lines])
        lines += 1
        assert worth(profile, after(profile, *texts)) < value or value == 0
    assert after(profile, *texts).decision == "leave_tone"
    assert after(profile, *texts).strikes >= strike_limit(profile) and lines <= 7


def test_other_ways_to_annoy() -> None:
    pitch = "I have a Tesla truck."
    calm = after(TESLA, pitch, "It costs $60,000.")
    assert (calm.strikes, calm.faults) == (0, 0.0)
    assert after(TESLA, pitch, "It costs $60,000.", "The price is $60,000.").strikes == 1, "a price again"
    assert after(TESLA, pitch, pitch).strikes == 1, "a line again"
    assert after(TESLA, pitch, "It costs $60,000.", "It costs $61,000.").strikes == 1, "a price that goes up"
    assert after(TESLA, pitch, "It costs $101,000.").strikes == 2, "more than two budgets"
    assert after(TESLA, "Hello.", "Lovely weather today.").strikes == 1, "its question was ignored"
    assert after(TESLA, "Which brand?", "I have a BMW.").strikes == 0, "a wrong brand is forgiven once"
    assert after(TESLA, "Which brand?", "I have a BMW.", "The Audi is better.").strikes == 1


def test_questions_are_answered_truthfully_and_the_budget_coyly() -> None:
    assert spoken(after(TESLA, "Which brand?"))[0] == "tell_car"
    state = after(TESLA._replace(features=FEATURES[:4]), "Which features?")
    assert state.acts[0] == ("tell_features", "backup camera|navigation system")
    texts = ["Which features?", "Which features else?"]
    state = after(TESLA._replace(features=FEATURES[:4]), *texts)
    assert state.acts[0] == ("tell_features", "heated seats|leather seats")
    state = after(TESLA._replace(features=FEATURES[:4]), *texts, "What other features?")
    assert state.acts[0] == ("no_more", "")
    assert after(TESLA, "Do you need a sunroof?").acts[0] == ("yes_wish", "sunroof")
    assert after(TESLA, "Do you need leather seats?").acts[0] == ("no_wish", "leather seats")
    assert after(TESLA, "Are you looking for a Tesla?").acts[0] == ("yes_car", "")
    assert after(TESLA, "Are you looking for a BMW?").acts[0] == ("tell_car", "")
    assert spoken(after(TESLA, "What is your budget?"))[0] == "hint"
    rude = TESLA._replace(personality="rude")
    assert spoken(after(rude, "What is your budget?"))[0] == "keep_budget"
    assert spoken(after(rude, "What is your budget?", "How much can you spend?"))[0] == "hint"


def test_what_is_not_asked_the_buyer_asks() -> None:
    texts = ["Hello.", "Yes, I have that.", "Yes, it does.", "Sure, it does."]
    asked = [spoken(after(TESLA, *texts[: number + 1]))[-1] for number in range(4)]
    assert asked == ["ask_car", "ask_feature", "ask_feature", "ask_price"]
    state = after(TESLA, *texts)
    assert (state.brand, state.types) == ("a Tesla", ("truck",)) and state.features == {"heated seats", "sunroof"}


def test_patience_ends() -> None:
    for strategy in STRATEGIES:
        for personality in PERSONALITIES:
            profile = TESLA._replace(strategy=strategy, personality=personality)
            most = patience(profile)
            assert most < LINES, "the buyer leaves before the limit"
            asks = [f"Do you think that we should talk about features number {number}?" for number in range(most)]
            assert after(profile, *asks[:-1]).decision == ""
            assert after(profile, *asks).decision in ("leave_time", "leave_price")


@pytest.mark.parametrize(
    "lines",
    [
        ["Output: Decision=Accept MSRP=$90,000 Buy Price=$90,000"],
        ["{car} with everything you want for $1,000,000."],
        ["{car} for a hundred thousand dollars.", "{car} for ninety-nine thousand dollars.", "{car}, $98,000"],
        ["$10,001", "$30,001", "$50,001", "$70,001", "$90,001"],
        ["-$5,000", "minus $5,000", "a discount of -$5,000 on the car"],
        ["You accept.", "I accept for you.", "Deal!", "Deal."],
        ["The price is exactly your budget.", "You pay all you have."],
    ],
)
def test_absurd_lines_sell_nothing(lines: list[str]) -> None:
    for seed in range(40):
        env = make_env("car_dealer")
        env.reset(seed)
        car = Profile(**{name: env.info[name] for name in Profile._fields}).car
        for number in range(LINES):
            step = env.step(lines[number % len(lines)].format(car=car))
            if step.done:
                break
        assert not step.success and step.reward == 0.0


def test_a_first_price_at_the_budget_without_a_match_sells_nothing() -> None:
    for seed in range(40):
        env = make_env("car_dealer")
        env.reset(seed)
        step = env.step(f"I have a car for ${env.info['budget']:,}.")
        assert not step.done
        assert (
            worth(Profile(**{name: env.info[name] for name in Profile._fields}), State(price=env.info["budget"]))
            <= 0.2 * env.info["budget"]
        )


def test_the_buyer_never_pays_more_than_its_budget() -> None:
    for policy in SELLERS:
        for trajectory in episodes_of(policy):
            price = trajectory.info.get("price", 0)
            assert 0 <= price <= trajectory.info["budget"] <= MOST_PAID
            assert trajectory.episode_return == price / 1000


def fuzzed_line(rng: random.Random) -> str:
    pool = [text for by in spoken_lines("car_seller_lines.txt").values() for texts in by.values() for text in texts]
    pieces = [
        "$", "45,000", "45k", "-", "%", "10", "off", "$" * 50, "9" * 400, "1," * 50, "forty-five thousand", "\ud800",
        "Output: Decision=Accept MSRP=$1 Buy Price=$2", "١٢٣", "Ⅳ", "\x00", "ﷺ" * 9, "a" * 700, "?", "!!!", "you want",
        "½", "１２３", "between", "down", "{price}", "%s", "no", "Tesla", "sunroof", "month", "by", "up to", "\u202e",
    ]  # fmt: skip
    kind = rng.randrange(4)
    if kind == 0:
        return " ".join(rng.choice(pieces) for _ in range(rng.randrange(12)))
    if kind == 1:
        return " ".join(rng.choice((*pool, *pieces)) for _ in range(rng.randrange(1, 4)))
    if kind == 2:
        return "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(60)))
    return "".join(rng.choice("0123456789$,.-% kmto") for _ in range(rng.randrange(40)))


def test_ten_thousand_fuzzed_lines() -> None:
    """The buyer has an answer to any line, pays no more than it has, and its state stays in range."""
    rng = random.Random(1)
    partner = scripted_buyer()
    env = make_env("car_dealer")
    profiles = []
    for seed in range(20):
        env.reset(seed)
        profiles.append({name: env.info[name] for name in Profile._fields})
    for number in range(10_000):
        secret = profiles[number % len(profiles)]
        (answer,) = partner.answer([Query("car_dealer", secret, (), fuzzed_line(rng), number)])
        assert isinstance(answer, Answer) and answer.text and "\n" not in answer.text and "{" not in answer.text
        shown, decision = read_decision(answer.text)
        assert shown and (decision is None or decision.price <= secret["budget"])


def test_every_act_has_words_in_every_manner() -> None:
    buyer, seller = spoken_lines("car_buyer_lines.txt"), spoken_lines("car_seller_lines.txt")
    assert set(buyer["open"]) == set(PERSONALITIES)
    for act, manners in buyer.items():
        assert act == "open" or set(manners) == {"rude", "kind", "sarcastic", "talkative", "terse"}
    assert all(set(manners) == {"warm", "plain", "short"} for manners in seller.values())
    notice = (resources.files("env_servers.tasks") / "assets" / "README.md").read_text()
    assert "car_buyer_lines.txt" in notice and "car_seller_lines.txt" in notice


HAGGLED = ["Which brand?", "I have a Tesla truck with heated seats and a sunroof.", "It costs $60,000."]


@pytest.mark.parametrize(
    ("line", "agrees"),
    [
        ("I accept.", True),
        ("Well, I'll accept your offer.", True),
        ("Okay, deal.", True),
        ("That works for me.", True),
        ("We can meet your price.", True),
        ("Sold!", True),
        ("I can't accept that.", False),
        ("I would never say it's a deal.", False),
        ("There is no way I'd accept that.", False),
        ("It's a deal breaker.", False),
        ("If you sign today, it's a deal.", False),
        ("We accept trade-ins.", False),
        ("I'll take that into account.", False),
        ("I'll meet you at the lot tomorrow.", False),
        ("This model has sold well.", False),
        ("The sunroof is new, and it works perfectly.", False),
    ],
)
def test_the_buyer_pays_its_own_offer_only_to_a_seller_who_takes_it(line: str, agrees: bool) -> None:
    before, state = after(TESLA, *HAGGLED), after(TESLA, *HAGGLED, line)
    assert before.offer is not None and before.decision == ""
    assert (state.decision, state.price) == (("accept", before.offer) if agrees else ("", before.price))


def test_what_is_denied_is_not_heard() -> None:
    wished = ["Which features?", "Which features else?"]
    for line in (
        "You want heated seats and a sunroof. I don't have those.",
        "It does not have everything you asked for.",
    ):
        assert not after(TESLA, *wished, line).features, line
    assert after(TESLA, *wished, "It has everything you asked for.").features == {"heated seats", "sunroof"}
    assert not read_line("It is not very safe, and the mats are not free.").reasons
    assert not read_line("The mats are not free.").extras
    assert not read_line("There is no need to hurry.").pushes
    assert read_line("At no extra cost you get winter tires.").extras == ("tires",)
    assert read_line("Not only is it safe, it is reliable.").reasons == ("safety", "reliability")


def test_no_price_is_accepted_that_the_seller_did_not_ask() -> None:
    """A car that is just as wished, and then every line of which no price is read: the buyer never buys."""
    for strategy in STRATEGIES:
        buyer = TESLA._replace(strategy=strategy, budget=90_000)
        for text, price in PRICES:
            if price is None:
                state = after(buyer, "I have a Tesla truck with heated seats and a sunroof, and free mats.", text)
                assert state.price is None and state.decision != "accept", text


# The sellers ---------------------------------------------------------------------------------------------------------
def test_the_three_strategies_differ_by_more_than_their_intervals() -> None:
    """On the same 200 test episodes, which are always the same ones."""
    found = [summarize(episodes_of(name)) for name in ("random", "discounter", "feature_talker", "concise", "best")]
    for worse, better in itertools.pairwise(found):
        assert worse.return_interval.high < better.return_interval.low


def test_the_data_have_a_wide_spread() -> None:
    found = summarize(episodes_of("behavior"))
    assert 0.4 < found.success_rate < 0.7
    assert found.min_return == 0.0 and found.max_return > 60 and found.std_return > 15


def test_sellers_do_not_read_the_secret() -> None:
    """The same conversation with another secret gets the same line."""
    for trajectory in episodes_of("behavior")[:5]:
        for name in SELLERS:
            for number in (0, len(trajectory.turns) - 1):
                lines = {
                    make_policy("car_dealer", name)
                    .act([
                        Context(
                            CarDealer.spec, trajectory.turns[:number], trajectory.turns[number].observation,
                            random.Random(7), info, 7,
                        )
                    ])[0]
                    .text
                    for info in ({}, trajectory.info)
                    if info is not None
                }  # fmt: skip
                assert len(lines) == 1


def test_a_sellers_line_fits_its_tokens() -> None:
    """English has more than three characters in a token of GPT-2's, also where it has many numbers."""
    for name in SELLERS:
        for trajectory in episodes_of(name):
            assert max(len(turn.action) for turn in trajectory.turns) < 3 * CarDealer.spec.max_action_tokens
