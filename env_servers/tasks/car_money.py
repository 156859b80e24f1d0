"""Money in a seller's free text: which number is the price of the car, which a list price or a discount, which neither.

`read_prices` takes any text. It finds numbers (`$45,000`, `45k`, `forty-five thousand dollars`), and tells by the
words around each what it stands for. What is no price of a car at all (a year, miles, a monthly rate, a fee, what the
seller says it cannot do) is left out, and so is every negative number. Where a text names several prices for the car,
the lowest counts, as any buyer would have it; a number below `CHEAPEST` dollars is no price of a car.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from env_servers.tasks import car_words as words

CHEAPEST = 2_000
# Of prices that are asked in one text, one of less than the highest divided by this is for something else than the car.
SAME_CAR = 6
# No number is read as more than this, so that nothing downstream has to fear long ones.
LARGEST = 10**12


class Prices(NamedTuple):
    """What a text says about the price, in dollars; discounts on a price of the same text are taken off already.

    Attributes:
        price: What the seller asks for the car now, None where the text names no price.
        list_price: What the car is said to cost otherwise (MSRP, sticker, "was"), None where nothing is said.
        percent_off: Discount in per cent on a price that was named before, 0 where there is none.
        amount_off: Discount in dollars on a price that was named before, 0 where there is none.
        discounted: Whether the text gives a discount of a stated size.
    """

    price: int | None = None
    list_price: int | None = None
    percent_off: float = 0.0
    amount_off: int = 0
    discounted: bool = False


class _Money(NamedTuple):
    kind: str  # offer, list, worth, off, yours, none
    value: int
    start: int
    end: int


# Number words become digits, so that one pattern finds all numbers ----------------------------------------------------
_ONES = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fourty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80,
    "ninety": 90,
}  # fmt: skip
_SCALES = {"hundred": 100, "thousand": 1_000, "grand": 1_000, "million": 1_000_000}
_WORD = "|".join(sorted([*_ONES, *_TENS, *_SCALES], key=len, reverse=True))
_WORDS = re.compile(rf"(?<![\w-])(?<![0-9] )(?:{_WORD})(?:(?:[\s-]|\sand\s)(?:{_WORD}))*(?![\w])")


def _in_digits(found: re.Match[str]) -> str:
    """A run of number words as digits; where it is more than one number, they stand beside each other."""
    numbers: list[int] = []
    total, part, last = 0, 0, 0  # thousands done, what is below the next scale, size of the last word
    for word in re.split(r"[\s-]+", found[0]):
        if word == "and":
            continue
        if word in _SCALES:
            scale = _SCALES[word]
            if scale == 100:
                part = 100 * (part or 1)
            else:
                total, part = total + scale * (part or 1), 0
            last = scale
            continue
        value = _ONES[word] if word in _ONES else _TENS[word]
        fits = last == 0 or last >= 100 or (last >= 20 and value < 10)
        if not fits:
            numbers.append(total + part)
            total, part = 0, 0
        part, last = part + value, max(value, 1)
    numbers.append(total + part)
    return " ".join(map(str, numbers))


_NUMBER = re.compile(
    r"(?<![\w.,])(?<![0-9]-)(?P<minus>(?:negative |minus )?-?)(?P<sign>(?:us)?\$ ?)?(?P<inner>-)?"
    r"(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?![0-9]|,[0-9])(?P<fraction>\.[0-9]+)?"
    r"(?P<scale> ?(?:k|grand|thousand|thou|hundred|million|mil)\b)?(?P<unit> ?(?:dollars?|bucks|usd)\b)?"
)
# Thousands set apart by spaces, where a sign or a unit says that it is money: `$45 000`, `45 000 dollars`
_SPACED = re.compile(
    r"(?<![\w.,])(?:(?<=\$)|(?=[0-9 ]+(?:\$|dollars?\b|bucks\b|usd\b)))[0-9]{1,3}(?: [0-9]{3})+(?![0-9]|,[0-9])"
)
_MULTIPLIERS = {
    "k": 1_000, "grand": 1_000, "thousand": 1_000, "thou": 1_000, "hundred": 100, "million": 10**6, "mil": 10**6,
}  # fmt: skip
_RANGE = re.compile(r"(?<![\w.,])(\$ ?)?([0-9]{1,3})( ?(?:-|to|and) ?)(\$ ?)?([0-9]{1,3}) ?(?:k|grand|thousand)\b")
_PERCENT = re.compile(
    r"(?<![\w.,])(?P<minus>(?:negative |minus )?-?)(?P<digits>[0-9]+(?:\.[0-9]+)?) ?(?:%|percent|per cent)"
)
_NO_MONEY = re.compile(
    r" ?%|[- ]?(?:percent|per cent|miles?|mi|mpg|km|kilomet\w+|hp|horse\w*|rpm|cc|lbs?|pounds|tons?|years?|yrs?|yr|"
    r"months?|mos?|weeks?|days?|hours?|minutes?|mins?|seconds?|seats?|seater|inch\w*|people|passengers?|"
    r"(?:(?:happy|satisfied|other|new|loyal|previous) )?(?:customers?|drivers?|owners?|buyers?)|reviews?|stars?|"
    r"points?|doors?|speed|cylinders?|airbags?|watts?|kwh|volts?|feet|square|st|nd|rd|th|times|x|models?|rows?|speakers?|"
    r"cameras?|cars?|vehicles?|options?|colou?rs?|keys?|other|of|more|to|on|and)\b|"
    r"[-\"/:]"
)
_JOINING = frozenset({"to", "and", "on", "-", "/", ":"})  # what may follow a number that is money all the same
_YEARS = range(1950, 2040)
_BESIDE_NUMBER = re.compile(r"[0-9] $")
_AMOUNT_ENDS = re.compile(r"(?:[0-9]k?|dollars|bucks|grand) $")


def read_prices(text: str) -> Prices:
    """What a text says about the price.

    Args:
        text: In lower case, with plain quotes and dashes and single spaces, as `car_talk.plain` gives it.
    """
    if not any(letter.isdigit() for letter in text) and not _WORDS.search(text) and not words.HALF.search(text):
        return Prices()
    text = _WORDS.sub(_in_digits, text)
    text = _SPACED.sub(lambda found: found[0].replace(" ", ""), text.replace("$ ", "$"))
    text = _RANGE.sub(r"\g<1>\g<2>k\g<3>\g<4>\g<5>k", text)
    ends = [match.end() for match in words.CLAUSE_END.finditer(text)]
    found = [money for match in _NUMBER.finditer(text) if (money := _classify(text, match, ends)) is not None]
    percent, percent_at = _percent_off(text)
    return _combine(text, found, percent, percent_at)


def _value(match: re.Match[str]) -> int:
    digits = match["digits"].replace(",", "")
    if len(digits) > 12:
        return LARGEST
    scale, fraction = (match["scale"] or "").strip(), match["fraction"] or ""
    if len(fraction) == 4 and len(digits) <= 3 and not scale:  # $45.000 as some write it
        return 1_000 * int(digits) + int(fraction[1:])
    number = float(digits + fraction[:6])
    return min(LARGEST, round(number * _MULTIPLIERS.get(scale, 1)))


def _classify(text: str, match: re.Match[str], ends: list[int]) -> _Money | None:
    """What one number stands for; None where it is no money."""
    start, end = match.span()
    begin = max((place for place in ends if place <= start), default=0)
    stop = min((place for place in ends if place > end), default=len(text))
    before, after = text[max(begin, start - 60) : start], text[end : min(stop, end + 40)]
    # The words of the clause before the number also say what a number of the next clause is: "the MSRP, $50,000".
    if not before.strip() and begin and text[begin - 1] in ",:":
        before = text[max(0, start - 40) : start]
    value = _value(match)
    sure = bool(match["sign"] or match["unit"] or (match["scale"] and value >= CHEAPEST))
    if not match["sign"] and not match["unit"] and (word := _NO_MONEY.match(after)):
        follows = word[0].strip()
        if not (value >= CHEAPEST and follows in _JOINING) and not (sure and follows in ("of", "more")):
            return None
    if (
        not match["sign"]
        and not match["unit"]
        and (words.OTHER_BEFORE.search(before) or words.OTHER_AFTER.match(after))
    ):
        return None
    if match["minus"] or match["inner"]:
        return _Money("off", value, match.start("digits"), end) if _subtracts(text, match) else None
    if not sure and value < 1_000:
        short = words.SHORT_BEFORE.search(before) and words.SHORT_AFTER.match(text[end : end + 40])
        if not short or not 8 <= value <= 150:
            return _Money("off", value, start, end) if _is_off(before, after) and value >= 100 else None
        value *= 1_000
    elif (
        not sure
        and "," not in match[0]
        and (
            (value in _YEARS and value % 500)
            or words.MODEL_BEFORE.search(before)
            or _BESIDE_NUMBER.search(text[:start])
        )
    ):
        return None  # a year, a model, a telephone
    kind = _kind(before, after, value)
    if kind == "offer" and _asks_budget(text, start, end):
        kind = "yours"
    elif kind == "offer" and words.REJECTED_NEXT.match(text, end):
        kind = "none"
    return _Money(kind, value, start, end)


def _subtracts(text: str, match: re.Match[str]) -> bool:
    """Whether a minus stands between two numbers, as in `$50,000 minus 10%`, rather than before a negative one."""
    return match["minus"] == "minus " and bool(_AMOUNT_ENDS.search(text[: match.start()]))


def _is_off(before: str, after: str) -> bool:
    if words.OFF_AFTER.match(after) or words.LOWERED_BY.search(before):
        return True
    if words.TAKEN_AFTER.match(after) and words.TAKING.search(before):
        return True
    return bool(words.OFF_BEFORE.search(before)) and not words.TO_BEFORE.search(before)


def _kind(before: str, after: str, value: int) -> str:
    if words.RATE.match(after) or words.SAVED.search(before):
        return "none"
    if words.PART_OF.search(before):  # "20% off the $50,000 sticker"
        return "list"
    if _is_off(before, after):
        return "off"
    if value < CHEAPEST:
        return "none"
    return next((rule.kind for rule in words.RULES if rule.fits(before, after)), "offer")


def _asks_budget(text: str, start: int, end: int) -> bool:
    """Whether a number stands in a question about the other's money."""
    ends = [0, *(match.end() for match in words.SENTENCE_END.finditer(text, 0, start))]
    stop = words.SENTENCE_END.search(text, end)
    if stop is None or stop[0] != "?":
        return False
    before = text[ends[-2] : ends[-1]] if len(ends) > 1 and words.GOES_ON.match(text, ends[-1]) else ""
    return words.BUDGET.search(before + text[ends[-1] : start]) is not None


def _percent_off(text: str) -> tuple[float, int]:
    """The largest discount in per cent that a text gives, and where it stands."""
    best, place = 0.0, -1
    for match in _PERCENT.finditer(text):
        sentence = text[max(text.rfind(stop, 0, match.start()) for stop in ".!?") + 1 :]
        sentence = re.split(r"[.!?](?:\s|$)", sentence, maxsplit=1)[0]
        if (
            (match["minus"] and not _subtracts(text, match))
            or words.OTHER_PERCENT.match(text[match.end() :])
            or not words.DISCOUNT_WORDS.search(sentence)
        ):
            continue
        value = float(match["digits"][:6])
        if best < value < 100:
            best, place = value, match.start("digits")
    if not best and (half := words.HALF.search(text)):
        best, place = 50.0, half.start()
    return best, place


def _combine(text: str, found: list[_Money], percent: float, percent_at: int) -> Prices:
    """One statement on the price from all that was found."""
    lists = [money for money in found if money.kind == "list"]
    offers = [money for money in found if money.kind == "offer"]
    highest = max((money.value for money in offers), default=0)
    offers = [money for money in offers if money.value * SAME_CAR >= highest]
    if not offers and words.AGREEING.search(text):
        offers = [money for money in found if money.kind == "yours"]
    offs = [money for money in found if money.kind == "off"]
    amount = max((money.value for money in offs), default=0)
    discount_at = min([money.start for money in offs] + ([percent_at] if percent else []), default=-1)
    discounted = bool(percent or amount)
    if offers:
        offer = min(offers, key=lambda money: (money.value, money.start))
        higher = [money.value for money in found if money.kind in ("list", "worth") and money.value > offer.value]
        list_price = max(higher, default=None)
        between = text[offer.end : discount_at] if discount_at > offer.end else ""
        if not discounted or not between or words.NET.search(between) or not words.ON_TOP.search(between):
            return Prices(offer.value, list_price, discounted=discounted)
        return _taken_off(offer.value, max(list_price or 0, offer.value), percent, amount)
    if lists:
        highest = max(money.value for money in lists)
        lowest = min(money.value for money in lists)
        if not discounted:
            return Prices(lowest, highest)
        return _taken_off(lowest, highest, percent, amount)
    return Prices(percent_off=percent, amount_off=amount, discounted=discounted)


def _taken_off(price: int, list_price: int, percent: float, amount: int) -> Prices:
    net = discounted_price(price, percent, amount)
    return Prices(price, list_price) if net is None else Prices(net, list_price, discounted=True)


def discounted_price(price: int, percent: float, amount: int) -> int | None:
    """A price less a discount, in whole dollars; None where nobody would mean it, since too little is left."""
    net = round(price * (1 - percent / 100)) - amount
    return net if CHEAPEST <= net < price else None
