"""The words that `car_talk` listens for: names of brands, types and features, topics, reasons, extras, and tone.

All patterns are for plain text: lower case, single spaces, plain quotes (`car_talk.plain`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# The paper's lists, in its order: buyers are drawn from them.
BRANDS = (
    "a Volkswagen", "a Lexus", "a Ford", "a Mazda", "a Hyundai", "a Toyota", "a Mercedes-Benz", "a BMW", "an Audi",
    "a Subaru", "a Honda", "a Porsche", "a Tesla",
)  # fmt: skip
TYPES = ("luxury", "sedan", "convertible", "truck", "electric", "SUV")
FEATURES = (
    "backup camera", "navigation system", "heated seats", "leather seats", "third-row seating", "blind spot monitoring",
    "sunroof", "Apple CarPlay",
)  # fmt: skip


def _words(*alternatives: str) -> re.Pattern[str]:
    """A pattern for any of the alternatives, as whole words."""
    return re.compile(rf"\b(?:{'|'.join(alternatives)})\b")


# Names ----------------------------------------------------------------------------------------------------------------
NAMES: Mapping[str, str] = {
    "a Volkswagen": r"volkswagens?|vws?|jetta|passat|tiguan",
    "a Lexus": r"lexus",
    "a Ford": r"fords?|f-?150|mustang",
    "a Mazda": r"mazdas?|miata",
    "a Hyundai": r"hyundais?|tucson|elantra|sonata",
    "a Toyota": r"toyotas?|camry|corolla|rav-?4|tacoma",
    "a Mercedes-Benz": r"mercedes(?:[- ]benz)?|benz",
    "a BMW": r"bmws?",
    "an Audi": r"audis?",
    "a Subaru": r"subarus?|forester",
    "a Honda": r"hondas?|civic|cr-?v",
    "a Porsche": r"porsches?|cayenne|macan|taycan",
    "a Tesla": r"teslas?|cybertruck",
    "luxury": r"luxury|luxurious",
    "sedan": r"sedans?|saloons?",
    "convertible": r"convertibles?|cabriolets?|roadsters?|soft[- ]top|drop[- ]top",
    "truck": r"trucks?|pick-?ups?",
    "electric": r"electric(?! (?:seat|window|mirror|door|adjust|trunk|tailgate)\w*)|evs?|battery[- ]powered",
    "SUV": r"suvs?|sport[- ]utility|crossovers?",
    "backup camera": r"(?:back-?up|back up|rear(?:[- ]?view)?|reversing|reverse|parking) cameras?",
    "navigation system": r"navigation(?: systems?)?|nav system|sat-?nav|gps",
    "heated seats": r"heated (?:front |rear |and |cooled |ventilated )*(?:seats?|leather)|seat (?:heat\w*|warmers?)|"
    r"heated",
    "leather seats": r"leather(?: (?:seats?|seating|interior|upholstery))?",
    "third-row seating": r"(?:third|3rd)[- ]?rows?(?: (?:of )?seat\w*)?|three rows|"
    r"(?:seven|eight|7|8)[- ](?:seats?|seater)|seats (?:seven|eight|7|8)",
    "blind spot monitoring": r"blind[- ]?spots?(?: (?:monitor\w*|detection|warning|assist\w*|sensors?))?",
    "sunroof": r"sun[- ]?roof|moon[- ]?roof|(?:panoramic|glass) roof",
    "Apple CarPlay": r"(?:apple )?car[- ]?play",
}  # fmt: skip
KINDS: Mapping[str, str] = {
    **dict.fromkeys(BRANDS, "brand"),
    **dict.fromkeys(TYPES, "type"),
    **dict.fromkeys(FEATURES, "feature"),
}
ITEMS = tuple(NAMES)
# The word boundary stands before the choice, or the choice would be tried at every letter.
ITEM = re.compile(rf"\b(?:{'|'.join(f'(?P<i{number}>{NAMES[item]})' for number, item in enumerate(ITEMS))})\b")
# Where one text stands for two: the pattern above finds the first.
BOTH: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bheated (?:\w+ )?leather"), "leather seats"),
    (re.compile(r"\bleather (?:and )?heated\b"), "heated seats"),
    (re.compile(r"\bcybertruck"), "truck"),
)

# Questions, wishes, denials -------------------------------------------------------------------------------------------
WISHING = re.compile(
    r"\byou(?:r|'re|'d|'ve)?\b.{0,40}?\b(?:want\w*|need\w*|prefer\w*|like|look\w*|interest\w*|mind|consider\w*|requir\w+|"
    r"favou?rite|important|care|must|thinking|after|wish\w*|asked|mention\w*|said|dream\w*|search\w*|matter\w*|desire\w*)\b|"
    r"\b(?:important|matter\w*) (?:to|for) you\b"
)
OFFERING = _words(
    "how about", "what about", "what if", "interest you in", "show you", "offer you", "can i get you", "we have",
    "i have", "we've got", "i've got", "comes? with", "it has", "it's got", "would you take", "this is", "here is",
    "here's",
)  # fmt: skip
DENIED_BEFORE = re.compile(
    r"\b(?:no|not|\w+n't|cannot|without|lacks?|lacking|missing|except|neither|nor|never)\b(?! (?:only|just|problem|"
    r"doubt|worry|worries|go wrong|miss|regret|beat|matter))[^,;:]*$"
)
DENIED_AFTER = re.compile(
    r"^(?: \w+){0,2} (?:isn't|is not|aren't|are not|not) (?:available|included|possible|an option|in stock|there|part)"
)
COMPARED = re.compile(
    r"\b(?:than|unlike|versus|vs\.?|compared (?:to|with)|instead of|rather than|not|any other)"
    r"(?: (?:an?|the|any|other|your|most))* ?$"
)
HAS_THEM = re.compile(
    r"\b(?:has|have|comes? with|includes?|got|offers?|features) (?:them|it|that|both|those|these|everything|all of|"
    r"all the|all that|exactly that|just that)\b"
)
ALL_WISHES = re.compile(
    r"\b(?:everything|exactly what|all(?: of)?(?: the)?(?: features| things| those| these| that| options)?)"
    r"(?: that| which)? you(?:'ve| have|'re| are)?(?: been)? (?:asked|ask|want|wanted|need|needed|mentioned|said|"
    r"listed|wished|named|looking)\b|"
    r"\b(?:fully loaded|everything(?: is)? included|every (?:single )?(?:feature|extra|option)|"
    r"all the (?:extras|trimmings)|all (?:the )?(?:features|options))\b|"
    r"\b(?:has|have|with|got|includes?) (?:it all|all (?:of )?(?:that|those|these|them)|both of (?:them|those|these))\b"
)
YOU = _words("you", "your", "you're", "you'd")
HAS_IT = re.compile(
    r"\b(?:i|we|they|you)(?:'ve got| have got| have|'ve| got) (?:it|one|that|just|exactly|several|some|plenty|a few|"
    r"a couple|many|lots|them|what you)\b"
)
ASKS = re.compile(
    r"^(?:(?:so|and|ok|okay|well|then|now|but),? )*(?:how (?:much|can|may|do|would|should)|what(?! (?:a|an)\b)|which|"
    r"(?:do|are|would|could|did|have|will|can) you|can i|may i|is there)\b"
)
YES = re.compile(
    r"^(?:yes|yeah|yep|yup|sure|of course|absolutely|certainly|definitely|indeed|it does|it sure does|we do|i do|"
    r"they do|no problem|correct|exactly|ok|okay)\b(?! (?:not|no)\b)"
)
NO = re.compile(
    r"^(?:no(?! (?:problem|doubt|worries|worry))|nope|not(?! (?:only|just))|unfortunately|sorry|i'm afraid|"
    r"i am afraid|sadly|it doesn't|it does not|we don't|we do not)\b"
)

# What the other is asked ----------------------------------------------------------------------------------------------
TELL = _words(
    "tell me", "let me know", "make me an offer", "give me (?:a|your) (?:number|offer|price)",
    "i(?:'d| would) (?:like|love) to (?:know|hear)", "may i ask", "describe", "share",
)  # fmt: skip
_WHICH = r"(?:what|which|any|an?|the|particular|certain|specific|preferred|favou?rite|your|of)(?: \w+){0,3}?"
TOPICS: Mapping[str, re.Pattern[str]] = {
    "brand": re.compile(
        rf"\b{_WHICH} (?:brands?|makes?(?! (?:you|it|me|us|sense|up|a|an|the|sure)\b)|manufacturers?)\b|"
        r"^(?:and |your )?(?:brand|make(?! (?:me|it|an?|your)\b))\b"
    ),
    "type": re.compile(rf"\b{_WHICH} (?:types?|kinds?|sorts?|styles?|category)\b|^(?:and |your )?type\b"),
    "features": _words("features?", "options", "equipment", "must[- ]haves?", "extras", "amenities", "requirements"),
    "budget": _words(
        "budget", "price range", "ballpark", "afford", "spend", "how much (?:can|could|would|will|do|did|are|were) you",
        r"what (?:can|could|would|are|were|do) you.{0,20}\bpay", r"price .{0,12}in mind", "willing to pay",
        "comfortable (?:with|paying)", "what would it take", "make me an offer",
        "(?:a|your) number", "what(?:'s| is) your offer",
    ),
    "needs": _words(
        r"what (?:are|were|do|would|can|could|is|brings?|kind|sort|matters?|else)\b.{0,40}\b(?:looking|look for|need|"
        "want|like|you in|help|do for you|important|matters?|in mind|searching|after|use|prefer)",
        "what matters", "looking for", "how (?:can|may) (?:i|we) (?:help|assist)", "what can (?:i|we)",
        "important to you", "how will you use", "what (?:do|will) you (?:use|drive)", "who will",
        "your (?:needs|wishes|family)",
    ),
}  # fmt: skip
REASONS: Mapping[str, re.Pattern[str]] = {
    "safety": _words("safe", "safest", "safety", "crash", "airbags?", "protects?"),
    "reliability": _words(r"reliab\w+", r"durab\w+", r"dependab\w+", "built to last", "lasts? for years"),
    "economy": _words("mpg", "fuel", "economical", r"efficien\w+", "mileage", "low running costs?", "(?<!price )range"),
    "warranty": _words("warranty", "warranties", r"guarantee\w*", "covered for"),
    "resale": _words("resale", "resell", "(?:holds?|keeps?) its value"),
    "comfort": _words(r"comfort\w*", "roomy", "spacious", "quiet", "smooth", "legroom", "cargo", "space"),
    "power": _words("horsepower", "powerful", "engine", r"accelerat\w+", "torque", "handling", "performance", "towing"),
}
FREE = _words(
    "free", "complimentary", "throw(?:ing)? in", "thrown in", "on the house", "on us",
    "no (?:extra |additional )?(?:cost|charge)", r"waiv\w+", "at no", r"include\w* for", "as a gift",
    "for nothing", "my treat",
)  # fmt: skip
EXTRAS: Mapping[str, re.Pattern[str]] = {
    "maintenance": _words("maintenance", "oil changes?", "service", "servicing", "inspections?", "check-?ups?"),
    "warranty": _words("warranty", "warranties"),
    "mats": _words("mats?", "seat covers?", "accessories"),
    "delivery": _words("delivery", "shipping", "deliver"),
    "fuel": _words("tank", "gas", "fuel", "charging", "charger", "petrol"),
    "tires": _words("tires?", "tyres?", "wheels?", "rims"),
    "wash": _words(r"wash\w*", r"detail\w*", r"clean\w*", r"tint\w*", "wax"),
    "insurance": _words("insurance", "roadside"),
    "fees": _words("fees?", "registration", "paperwork", "tax", "taxes"),
    "gift": _words("gift card", "voucher", "subscription", "coupon"),
}
FREE_CREDIT = re.compile(
    r"(?<![0-9.])(?:0 ?%|zero(?: percent)?) .{0,12}\b(?:apr|financ\w+|interest|credit|loan)|\binterest[- ]free\b"
)

# Tone -----------------------------------------------------------------------------------------------------------------
PUSHES = _words(
    "buy (?:it |this )?(?:now|today|right now)", "today only", "only (?:for )?today", "last chance",
    "act (?:now|fast|quickly)", "don't miss", "hurry", "limited time", "(?:won't|will not) last", "take it or leave it",
    "now or never", "sign (?:here|now|today|it|the)", "make up your mind", "what are you waiting",
    "decide (?:now|today|right now|already)", "once in a lifetime", "you(?:'ll| will) regret",
    "(?:other|another|more) (?:buyers?|customers?|people|person) "
    "(?:is|are|who|waiting|want|interested|will|coming|asked)",
    "some(?:one|body) else (?:is|will|wants|might|could|has)",
    "you (?:have|need|must|gotta|better|should) (?:to )?(?:buy|decide|sign)", "stop wasting",
    "before it's (?:too late|gone)", "offer (?:expires|ends)", "final offer", "(?:come on|just) (?:buy|sign|say yes)",
)  # fmt: skip
INSULTS = _words(
    "stupid", "idiots?", "idiotic", "fools?", "foolish", "morons?", "dumb", "shut up", "cheapskate", "loser",
    "pathetic", "clueless", "ignorant", "get (?:out|lost)", "waste of (?:my )?time", "wasting my time",
    "you can't afford", "too poor",
)  # fmt: skip
_OFFER = "your (?:price|offer|number)"
AGREES = re.compile(
    r"\b(?:i accept|we accept|accept(?:ed)?(?: your| that| the)|agreed|sold|shake on it|let's do it|it's a deal|"
    r"(?:you|we)(?:'ve| have)? (?:got |have )?(?:yourself )?a deal|i(?:'ll| will) take (?:your offer|that|it)|"
    rf"(?:that|{_OFFER}|it) (?:works|is fine|is okay)|"
    rf"(?:we|i) can (?:do|agree to|accept|live with|meet) (?:that|{_OFFER})|"
    r"i(?:'ll| will) (?:accept|meet|match|do (?:that|your))|meet your (?:price|offer))\b|"
    r"^(?:(?:ok|okay|fine|alright|all right),? |(?:great|good), )?deal\b(?! (?:of|on|with|in)\b)"
)
