"""Car Dealer of the original release, in its two schemas.

(a) `buyer_info`, `lines` with `role` and `text`, and `output` with `car_bought`, `msrp` and `buy_price`.
(b) The file that was published: no `output`, but each line has `purchase_prob` and `purchase_price`. The outcome is
that of the last line that has a price above 0 and a probability: the car is sold at that price if the probability is at
least one half. A probability above 1 is in per cent, a price below 1,000 in thousands. That reading of the release is
ours: its maintainers say that the reward is the price, not weighed by the probability, and not how low that may be.

The seller is the agent and speaks first, after `Start`; where the buyer does, that line stands below `Start`. Lines of
the same speaker that follow each other are one, and each is one line of text. The reward of the seller's last line is
what the environment pays by default: the price in thousands of dollars up to its highest, 0 without a sale or a price.
All others have 0.

The environment takes the buyer's recorded lines, with the decision behind the last one as a model would write it
(`answers` in `info`), and its default reward asks for nothing else of the buyer. So a conversation replays although the
seed draws another buyer than the one that spoke, unless the buyer began or the seller had more lines than are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from env_servers.tasks import load_task
from hub_datasets.importers import POLICY, Draft, Layout, MalformedRecord, Steps
from hub_datasets.importers.values import fields, flag, items, number, shown, text, turns_of

OTHER_COURSE = "the environment lets the seller begin, ends at a decision, and counts lines"
FIRST = "Start"
SELLERS, BUYERS = ("seller", "dealer", "agent"), ("buyer", "customer")
SOLD, NO_SALE = "accepted", "rejected"
# The sentence by which the release's buyer tells its decision; the seller does not read it.
DECISION = re.compile(r"\s*Output: Decision=(?:Accept|Reject) MSRP=\$[\d,]+(?: Buy Price=\$[\d,]+)?")
_AMOUNT = re.compile(r"\$?\s*(\d[\d,]*(?:\.\d+)?)\s*(k|%)?", re.IGNORECASE)
LEAST_DOLLARS = 1_000.0  # no car costs so little: what is below was written in thousands


def _read(record: Any) -> Steps:
    found = fields(record, "buyer_info", "lines")
    lines = [
        fields(line, "role", "text", where=f"line {place}") for place, line in enumerate(items(found["lines"], "lines"))
    ]
    steps = _steps(lines)
    if found.get("output") is not None:
        steps.facts = {"outcome": _told_outcome(fields(found["output"], "car_bought", where="output"))}
    elif any("purchase_price" in line for line in lines):
        steps.facts = {"outcome": _last_outcome(lines)}
    else:
        raise MalformedRecord("it has no output, and no line has a purchase_price, so that nothing tells how it ended")
    info = fields(found["buyer_info"], where="buyer_info")
    budget = {"budget": _dollars(info["budget"], "budget")} if info.get("budget") is not None else {}
    steps.facts = {**steps.facts, "buyer": {**_plain(info, "buyer_info"), **budget}}
    return steps


def _steps(lines: list[dict[str, Any]]) -> Steps:
    """The lines in turn, those of one speaker in a row joined."""
    spoken: list[tuple[bool, str]] = []  # whether it is the seller who speaks
    for place, line in enumerate(lines):
        role = str(line["role"]).strip().lower()
        if role not in SELLERS + BUYERS:
            raise MalformedRecord(
                f"role of line {place} is {shown(line['role'])}; known are {', '.join(SELLERS + BUYERS)}"
            )
        words = " ".join(DECISION.sub("", text(line["text"], f"text of line {place}")).split())
        if spoken and spoken[-1][0] == (role in SELLERS):
            spoken[-1] = (spoken[-1][0], f"{spoken[-1][1]} {words}".strip())
        else:
            spoken.append((role in SELLERS, words))
    opening = FIRST
    if spoken and not spoken[0][0]:
        opening = f"{FIRST}\n{spoken.pop(0)[1]}"
    if not spoken:
        raise MalformedRecord("the seller says nothing")
    sold, bought = ([words for seller, words in spoken if seller is of_seller] for of_seller in (True, False))
    final = bought[-1] if len(bought) == len(sold) else None
    return Steps([opening, *bought[: len(sold) - 1]], sold, [], final, True)


def _told_outcome(output: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of schema (a)."""
    amounts = {key: None if output.get(key) is None else _dollars(output[key], key) for key in ("msrp", "buy_price")}
    return {"sold": flag(output["car_bought"], "car_bought"), "msrp": amounts["msrp"], "price": amounts["buy_price"]}


def _last_outcome(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The outcome of schema (b)."""
    outcome: dict[str, Any] = {"sold": False, "price": None, "probability": None}
    for place, line in enumerate(lines):
        price, probability = line.get("purchase_price"), line.get("purchase_prob")
        if price is None or probability is None:
            continue
        dollars, share = _dollars(price, f"purchase_price of line {place}"), _share(probability, place)
        if dollars > 0:
            outcome = {"sold": share >= 0.5, "price": dollars, "probability": share}
    return outcome


def _amount(value: Any, where: str) -> tuple[float, str]:
    """A number as such or in words such as `$45,000`, `90k` or `80%`, and what follows it."""
    if not isinstance(value, str):
        return number(value, where), ""
    found = _AMOUNT.fullmatch(value.strip())
    if found is None or len(found[1]) > 20:
        raise MalformedRecord(f"{where} is {shown(value)}; it must be a number, such as 45000, $45,000 or 45k")
    return number(float(found[1].replace(",", "")), where), (found[2] or "").lower()


def _dollars(value: Any, where: str) -> float:
    amount, unit = _amount(value, where)
    if amount < 0 or unit == "%":
        raise MalformedRecord(f"{where} is {shown(value)}; it must be dollars, at least 0")
    return amount * 1000 if unit == "k" or 0 < amount < LEAST_DOLLARS else amount


def _share(value: Any, place: int) -> float:
    where = f"purchase_prob of line {place}"
    amount, unit = _amount(value, where)
    share = amount / 100 if unit == "%" or amount > 1 else amount
    if unit == "k" or not 0 <= share <= 1:
        raise MalformedRecord(f"{where} is {shown(value)}; it must be a probability, such as 0.8, 80 or 80%")
    return share


def _plain(value: Any, where: str) -> Any:
    """The same JSON, its texts and numbers checked."""
    if isinstance(value, dict):
        return {text(key, where): _plain(inner, where) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, where) for inner in value]
    if isinstance(value, str):
        return text(value, where)
    return value if value is None or isinstance(value, bool | int) else number(value, where)


def _draft(steps: Steps, options: Mapping[str, Any]) -> Draft:
    outcome = steps.facts.get("outcome")
    if not isinstance(outcome, Mapping) or not {"sold", "price"} <= set(outcome):
        raise MalformedRecord(f"the outcome is {shown(outcome)}; it must have sold and price")
    sold, price = bool(outcome["sold"]), outcome["price"]
    most = load_task("car_dealer").spec.max_return
    revenue = min(most, number(price, "price") / 1000) if sold and price is not None else 0.0
    rewards = [0.0] * (len(steps.actions) - 1) + [revenue]
    answers = [*steps.observations[1:], f"{steps.final or ''} {_decision(outcome)}".strip()]
    facts = {name: value for name, value in steps.facts.items() if name != "success"}
    return Draft(
        turns=turns_of(steps, rewards),
        final_observation=steps.final,
        terminated=True,
        end_reason=SOLD if sold else NO_SALE,
        success=sold,
        env_kwargs=options,
        # Another partner than the environment's own, so that replaying takes the recorded answers.
        info={**facts, "answers": answers, "partner": POLICY, "partner_revision": "release"},
    )


def _decision(outcome: Mapping[str, Any]) -> str:
    """The sentence by which a buyer tells the outcome."""
    words = [f"Output: Decision={'Accept' if outcome['sold'] else 'Reject'}"]
    for name, value in (("MSRP", outcome.get("msrp")), ("Buy Price", outcome["price"] if outcome["sold"] else None)):
        if value:
            words.append(f"{name}=${value:,.0f}")
    return " ".join(words)


LAYOUTS = {
    "car_dealer": Layout(
        read=_read,
        draft=_draft,
        reasons={SOLD: "the buyer took the car", NO_SALE: "the buyer did not take the car"},
        no_replay=(OTHER_COURSE,),
        tried=OTHER_COURSE,
    )
}
