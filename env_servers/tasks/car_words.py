"""The words that `car_talk` and `car_money` listen for: names, topics, reasons, extras, tone, what prices stand beside.

All patterns are for plain text: lower case, single spaces, plain quotes (`car_talk.plain`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

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
# The seller takes the buyer's offer, in words that say no more: "I accept trade-ins" is another matter.
_OFFER = r"(?:that|this|it|(?:your|the) (?:last |final |counter ?)?(?:price|offer|number|bid|proposal|deal|terms))"
_NO_MORE = r"(?= *(?:[.,;:!)]|$|and\b|then\b|too\b|of \$|for you\b|gladly\b|right now\b|today\b))"
AGREES = re.compile(
    rf"\b(?:i|we)(?:'ll| will| can| do| would| gladly| happily)* (?:accept(?: {_OFFER})?|"
    rf"(?:take|agree to|do|meet|match|live with|go with) {_OFFER}){_NO_MORE}|"
    rf"\b(?:(?:offer )?accepted|it's a deal|shake on it|let's do it|(?<!as )(?:i|we)(?:'ve| have)? agreed?){_NO_MORE}|"
    rf"\b{_OFFER} (?:works|is (?:fine|okay|ok|good|acceptable))(?: (?:for|with|by) (?:me|us))?{_NO_MORE}(?<!it works)|"
    r"\b(?:you|we)(?:'ve| have)? (?:got |have )?(?:yourself )?a deal\b(?!-| ?breaker)|"
    r"(?:^|[,;:] )(?:(?:ok|okay|fine|alright|all right|great|good|yes|well|then|it's|consider it),? )*"
    rf"(?:deal|agreed|sold){_NO_MORE}"
)
CONDITION = _words("if", "unless", "until", "once", "when", "as soon as")
# What makes of a word its contrary, before it in its clause; "not only" does not.
NEGATED = re.compile(
    r"\b(?:no|not|never|nothing|none|cannot|without|hardly|\w+n't)\b"
    r"(?! (?:only|just|problem|doubt|worry|worries|go wrong|wrong))[^,;:]*$"
)


# What stands before or after a number in its clause -------------------------------------------------------------------
class Rule(NamedTuple):
    """What the words around a number make of it.

    Attributes:
        kind: What the number is: a price that is asked (`offer`), `list` price, what things are `worth`, a discount
            (`off`), what the other said (`yours`), or `none` of these.
        before: Is found at the end of what stands before the number.
        after: Matches what stands after it; one of the two is enough.
        unless: Where this is found before the number, the rule says nothing.
    """

    kind: str
    before: re.Pattern[str] | None = None
    after: re.Pattern[str] | None = None
    unless: re.Pattern[str] | None = None

    def fits(self, before: str, after: str) -> bool:
        """Whether the rule says what the number between the two texts is."""
        found = (self.before is not None and self.before.search(before)) or (
            self.after is not None and self.after.match(after)
        )
        return bool(found) and (self.unless is None or not self.unless.search(before))


def _before(reach: int, *words: str) -> re.Pattern[str]:
    """One of the words, and at most so many characters between it and the number."""
    return re.compile(rf"\b(?:{'|'.join(words)})\b[^$0-9]{{0,{reach}}}$")


def _after(*words: str) -> re.Pattern[str]:
    return re.compile(rf" ?(?:{'|'.join(words)})")


RATE = _after(
    r"(?:/|a |per |each |every )? ?-?(?:months?|mo|monthly|weeks?|weekly|years?|annually|yr)\b",
    r"(?<= )(?:cash )?down\b(?! (?:to|from))",
)
OFF_AFTER = _after(
    r"(?:in |of |as a |straight |right |price )?(?:off|less(?! (?:an? |the )?[0-9$])|discount|cheaper|rebate|"
    r"cash ?back|back|savings?|reduction|lower|markdown|price cut|below|under)\b"
)
TAKEN_AFTER = re.compile(r" (?:from|off|out of)\b")
TAKING = _before(25, r"(?:knock|tak|shav|cut|deduct|slash|subtract|remov)\w*", r"(?<!premium )(?<!the )trim\w*")
OFF_BEFORE = re.compile(
    r"\b(?:(?:knock|tak|shav)\w*(?: \w+)? off|knock\w*|shav\w*|slash\w*|deduct\w*|trim(?:med|ming)|"
    r"(?:can|could|will|'ll) trim|sav(?:e|es|ing)|subtract\w*|discount(?: of)?|rebate(?: of)?|reduction(?: of)?|"
    r"savings?(?: of)?|markdown(?: of)?|off(?: of)?)"
    r"(?: (?:you|up to|about|around|almost|nearly|over|another|an|a|additional|extra|further|full|even|by|of|is|the|"
    r"price|it|that))* ?$"
)
PART_OF = re.compile(
    r"(?:(?:%|percent|per cent|half) (?:off|of)|(?:[0-9]k?|dollars|bucks|grand) off)"
    r"(?: (?:of|the|a|an|our|this|that|its))* ?$"
)
TO_BEFORE = re.compile(r"(?<!up )\bto ?$")
LOWERED_BY = re.compile(
    r"\b(?:reduc|lower|drop|cut|com|bring|go|going|decreas|discount|mark|slash|knock|down)\w*\b.{0,40}\bby"
    r"(?: (?:about|around|another|an extra|an additional|up to|a further|a))* ?$|"
    r"\b(?:com|go|drop)\w* (?:it |the price |me )?(?:down|lower)"
    r"(?: (?:by|about|around|another|an extra|an additional|a))* ?$"
)
REJECTED_NEXT = re.compile(
    r"\?+ (?:no\b(?! problem)|never\b|not\b|are you (?:joking|kidding|serious))|"
    r"[?!.]+ (?:no way|that's (?:too low|not enough|an insult|a joke)|forget it|impossible|you must be \w+ing)"
)
# What has nothing to do with money, where no sign or unit says otherwise.
OTHER_BEFORE = _before(
    15, "odometer", "mileage", "clock", "driven", r"tow\w*", r"haul\w*", "zip code", "order number", "number", "phone",
    "serial", "code", "put",
)  # fmt: skip
OTHER_AFTER = re.compile(r" (?:on (?:it|the (?:clock|odometer|meter|dash))|of (?:range|mileage))\b")
# What is saved already, by the price that has been named.
SAVED = _before(20, r"you(?:'d|'ll| would| will| can)? (?:save|be saving)", "(?:that's|that is|it's|it is) a saving of")
# The first that fits counts; a number that none fits is a price that is asked.
RULES = (
    Rule(
        "none",
        re.compile(
            r"\b(?:extra|additional|add|adds|adding|plus|fees?|tax|taxes|credits?|insurance|deposit|trade[- ]?in|"
            r"upgrade|package|gift card|bonus|month|monthly|payments?|instal\w+|leas(?:e|ed|ing)|increas\w+ by|"
            r"rais\w+ by|go up by|saves? you|with interest|rest|remaining|balance)\b"
            r"(?:(?!\b(?:that's|you(?:'d|'ll)? pay|comes to|or)\b)[^$0-9]){0,14}$"
        ),
        _after(
            r"extra\b", "gift", "deposit", "trade", r"fees?\b",
            r"in (?:fees|tax|taxes|fuel|gas|value|accessories|extras)",
            "worth of", "of (?:free|extras|accessories)", "down payment", "bonus", "instal",
            r"(?:federal |state |ev |government )*(?:tax )?credits?\b",
            r"(?:federal |state |government )*incentives?\b",
            r"(?:for|on|towards?|against) your (?:trade|old|current|used|present|previous)",
            r"(?:with|including|in) interest", r"over (?:the )?[0-9]+ (?:years|months)",
            r"from (?:some|an)(?:one|body|other)\b", r".*\b(?:i|we)(?:'d| would|'ll)? (?:lose|go broke)\b",
            r"(?:starting |from )?(?:tomorrow|next (?:week|month|year)|after (?:today|this week))",
        ),
    ),
    Rule("none", re.compile(r"\b(?:i|we)(?:'d| would|'ll| will)? lose\b.*$"), unless=re.compile("below|under|less")),
    # of others, of the past, of a time to come, of parts
    Rule(
        "none",
        _before(
            25, r"competit\w+", "other (?:dealers?|shops?|places?)", "elsewhere", "on average", "online",
            r"(?:they|he|she|others?|(?:every|any|some)(?:one|body)(?: else)?|people|dealers|shops|places|buyer|"
            r"customer|neighbou?r|friend|guy|man|woman|lady|family|couple|owner|street|road|corner|town|block|door)"
            r"(?: just| already| also| recently| has| have| had)* (?:charg|ask|want|sell|sold|pay|paid|bought|offer|"
            r"gave|got)\w*(?: 1)?", r"(?:i|we)(?: have|'ve)? paid", "costs? (?:me|us)", "(?:my|our|dealer) cost",
            "invoice(?: price)?",
            r"(?:price|it|cost)s?(?: will| would| is)? (?:go|goes|going|jumps?|rises?|climbs?) (?:back |right )?up to",
            r"you (?:can|could|will|would|might|may) (?:then |later )?(?:re)?sell (?:it|this|that|the car)",
            r"(?:engine|repairs?|transmission|battery|shipping|registration|replacement)(?: alone)?"
            r"(?: will| would| can)? costs?(?: you)?",
        ),
    ),
    Rule("worth", _before(25, "worth", "valued?"), re.compile(r" (?:value|worth|elsewhere|online|at other)\b")),
    Rule(
        "none",
        re.compile(
            r"\b(?:can't|cannot|can not|won't|will not|couldn't|could not|wouldn't|would not|unable to|not able to|"
            r"not going to|never|don't|do not)(?: (?:just|really|simply|possibly|ever|even|be able to|afford to))*"
            r"(?: (?:do|go|accept|take|sell|let|give|offer|agree|match|drop|lower|meet|make|think|"
            r"believe)\b(?!.*\b(?:lower|less|below|under|beneath|further|cheaper|more|beyond|over|better)\b).*| ?)$|"
            r"\b(?:not|isn't)(?: for| at| to)? ?$"
        ),
        unless=re.compile("why not"),
    ),
    Rule(
        "none",
        after=_after(
            r"(?:is|would be|'s|was)? ?(?:just |simply |far |way |a bit |much )?(?:too low|too little|"
            r"not (?:possible|enough|going to)|an insult|insulting|a joke|ridiculous|out of|impossible|isn't|won't|"
            r"doesn't|can't|below (?:my|our|the) cost)"
        ),
    ),
    Rule(
        "yours",
        re.compile(
            r"\b(?:your (?:(?:budget|offer|limit|max|maximum|range|proposal|bid|number|figure|suggestion)\b"
            r"[^$0-9]{0,12})?|"
            r"you(?:'ve|'d| have| had)?(?: only| just| already| really)? (?:said|told me|offered|mentioned|proposed|"
            r"suggested|asked|named|wanted|want to (?:pay|spend)|can (?:spend|afford|pay))\b[^$0-9]{0,16}|"
            r"you(?: only| just| really)? have(?: only| just| about| around| exactly)? |budget of )$"
        ),
        _after(r"(?:is|was|would be)(?: \w+)? your (?:limit|budget|max\w*|offer|number)"),
    ),
    Rule(
        "list",
        _before(
            25, "msrp", "sticker", "list", "listed", "lists", "retail", "retails", "retailing", "original",
            "originally", "normally", "usual", "usually", "regular", "regularly", "typically", "from",
            "instead of", "rather than", "market (?:value|price)", "used to (?:be|cost)", "book value",
            "was(?! (?:thinking|hoping|going|able|wondering))", "were",
        ),
        re.compile(r" (?:msrp|sticker|list|retail)\b"),
        unless=_before(20, r"start\w*", r"rang\w*", r"var(?:y|ies)", "anywhere"),
    ),
)  # fmt: skip
# The other's money, in a question; or after one, as in "What is your budget? Around $50,000?"
BUDGET = re.compile(
    r"\b(?:budget|afford|spend(?:ing)?|do you have|have you got|can you (?:pay|go|manage|stretch)|price range|in mind|"
    r"you (?:thinking|looking|hoping|willing))\b"
)
GOES_ON = re.compile(
    r" ?(?:is (?:it|that)|around|about|maybe|perhaps|between|more than|less than|up to|over|under|like)\b"
)
MODEL_BEFORE = re.compile(
    rf"\b(?:{'|'.join(NAMES[brand] for brand in BRANDS)}|ram|silverado|sierra|series|class|model|version|engine|route|"
    r"number|code|room|suite) $"
)
SHORT_BEFORE = re.compile(
    r"\b(?:do|to|about|say|at|for|offer|offer you|take|is|be|it's|make it|you)(?: (?:only|just|about))? $"
)
SHORT_AFTER = re.compile(
    r" ?(?:$|[.,;!?]|and\b|but\b|then\b|for (?:it|you|the|this|that)\b|out the door\b|flat\b|firm\b)"
)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
CLAUSE_END = re.compile(r"[.!?;,:](?=\s|$)|\b(?:but|however|although|though)\b|[()]")
DISCOUNT_WORDS = re.compile(
    r"\b(?:off|discount\w*|less|lower\w*|reduc\w+|knock\w*|shav\w*|sav(?:e|es|ing|ings)|cut|slash\w*|drop\w*|rebate|"
    r"markdown|cheaper|down by|below|under|minus|deduct\w*)\b"
)
OTHER_PERCENT = re.compile(
    r" (?:apr|financ\w+|interest|down|electric|satisf\w+|sure|certain|guarantee\w*|happy|"
    r"of (?:the|our|all|my)? ?(?:drivers|customers|buyers|people|owners))"
)
HALF = re.compile(r"\bhalf (?:price|off|the price)\b")
ON_TOP = re.compile(r"\b(?:but|and|then|minus|less|can|could|will|i'll|we'll|take|knock|give|plus)\b|,")
NET = re.compile(
    r"\b(?:after|which is|that's|that is|including|includes|reflect\w*|already|thanks to|so|because of|meaning|"
    r"sav(?:e|es|ing)(?! (?:you )?(?:another|an extra|an additional|more)))\b"
)
AGREEING = re.compile(r"\b(?:accept|deal|agree\w*|works|fine|sold|ok|okay|can do|will do|take it|meet)\b")
