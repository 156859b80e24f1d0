"""What is known of the hundred cities of Guess My City: tables from `assets/`, read once per process.

A city has *tags*, such as `language:spanish` or `terrain:mountains`; a tag is also the set of the cities that have it,
and a yes/no question is in the end such a set. The tables and where they come from are described in `assets/README.md`.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from env_servers.tasks.city_words import plain, with_numbers, without_articles

Cities = npt.NDArray[np.bool_]  # one entry per city, in the order of the list

THIS_YEAR = 2025
CONTINENTS = {
    "AF": "africa", "AS": "asia", "EU": "europe", "NA": "north america", "SA": "south america", "OC": "oceania",
    "AN": "antarctica",
}  # fmt: skip
# What a kind of climate brings; the column `weather` has what a city has besides.
WEATHER = {
    "tropical": ("hot", "rain", "humid", "hot summers"),
    "monsoon": ("hot", "rain", "hot summers"),
    "desert": ("dry",),
    "steppe": ("dry", "hot summers", "cold", "snow", "seasons"),
    "mediterranean": ("mild", "hot summers", "seasons"),
    "oceanic": ("mild", "rain", "seasons"),
    "subtropical": ("humid", "hot summers", "seasons"),
    "northern": ("cold", "snow", "hot summers", "seasons"),
    "continental": ("cold", "snow", "seasons"),
    "highland": ("mild",),
}
# Columns whose values are tags under the column's own name, most important first.
LISTS = (
    "rivers", "seas", "terrain", "places", "roles", "fame", "industry", "sights", "landmarks", "dishes", "extra"
)  # fmt: skip
KIND = {
    "rivers": "river", "seas": "sea", "places": "place", "roles": "role", "landmarks": "landmark", "dishes": "dish",
}  # fmt: skip
TROPIC = 23.44


class Land(NamedTuple):
    """A country that has cities in the list."""

    code: str
    name: str
    names: tuple[str, ...]
    demonyms: tuple[str, ...]
    values: Mapping[str, tuple[str, ...]]


class Country(NamedTuple):
    """Any country of the world, after GeoNames."""

    code: str
    name: str
    continent: str
    population: int
    area: float
    neighbours: tuple[str, ...]


class City(NamedTuple):
    """One of the hundred.

    Attributes:
        name: As it is written today.
        listed: As the paper's list has it.
        names: All names under which it is accepted, the two above included.
        land: Its country.
        values: Columns of the tables, those of its country where it has none of its own.
    """

    name: str
    listed: str
    names: tuple[str, ...]
    land: Land
    population: int
    latitude: float
    longitude: float
    hours: float
    values: Mapping[str, tuple[str, ...]]

    @property
    def founded(self) -> int:
        """Year, negative before our era; often only about right."""
        return int(self.values["founded"][0])

    @property
    def elevation(self) -> int:
        """Metres above the sea, about."""
        return int(self.values["elevation"][0])


class Place(NamedTuple):
    """A city of the world, one of the hundred or not."""

    name: str
    country: str
    population: int
    latitude: float
    longitude: float


def table(name: str) -> list[dict[str, str]]:
    """The rows of `assets/guess_my_city_<name>.csv`."""
    file = resources.files("env_servers.tasks") / "assets" / f"guess_my_city_{name}.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def split(cell: str) -> tuple[str, ...]:
    """The values of a cell."""
    return tuple(filter(None, cell.split(";")))


def key(text: str) -> str:
    """How a phrase reads in a question: plain words without articles."""
    return " ".join(with_numbers(without_articles(plain(text).split())))


class Atlas:
    """The cities and what can be said of them.

    Attributes:
        cities: In the order of the paper's list.
        countries: Of the world, by code.
        world: Cities of the world that a question may name, the hundred first.
        tags: Tag to the cities that have it.
        phrases: Phrase to the tags that it may stand for, with `!` where it is their absence.
        country_names: Phrase to country codes (several for names that two countries share).
        place_names: Phrase to the number in `world`.
    """

    def __init__(self) -> None:
        lands = {row["code"]: _land(row) for row in table("lands")}
        numbers = {row["name"]: row for row in table("numbers")}
        self.cities = tuple(_city(row, lands[row["land"]], numbers[row["name"]]) for row in table("facts"))
        self.countries = {row["code"]: _country(row) for row in table("countries")}
        others = [(split(row["name"]), _place(row)) for row in table("world")]
        ours = [Place(c.name, c.land.code, c.population, c.latitude, c.longitude) for c in self.cities]
        self.world = (*ours, *(place for _, place in others))
        self.population = np.array([city.population for city in self.cities], np.float64)
        self.founded = np.array([city.founded for city in self.cities], np.float64)
        self.elevation = np.array([city.elevation for city in self.cities], np.float64)
        self.latitude = np.array([city.latitude for city in self.cities])
        self.longitude = np.array([city.longitude for city in self.cities])
        self.land_population = np.array([self.country(city).population for city in self.cities], np.float64)
        self.tags: dict[str, Cities] = {}
        for number, city in enumerate(self.cities):
            for tag in self._tags_of(city):
                self.tags.setdefault(tag, np.zeros(len(self.cities), np.bool_))[number] = True
        self.country_names = self._name_countries(lands)
        self.phrases = self._collect_phrases()
        self.place_names: dict[str, int] = {}
        for number, (names, _) in enumerate(others, start=len(ours)):
            self.place_names |= {key(name): number for name in names if key(name) not in self.phrases}
        for number, city in enumerate(self.cities):
            self.place_names |= {key(name): number for name in city.names}

    def country(self, city: City) -> Country:
        """The row of a city's country; Hong Kong counts as a part of China."""
        return self.countries["CN" if city.land.code == "HK" else city.land.code]

    def having(self, tag: str) -> Cities:
        """The cities with a tag; none for a tag that no city has."""
        found = self.tags.get(tag)
        return np.zeros(len(self.cities), np.bool_) if found is None else found

    def meant(self, tags: Iterable[str]) -> Cities:
        """The cities with at least one of the tags; `!` before a tag stands for its absence."""
        found = np.zeros(len(self.cities), np.bool_)
        for tag in tags:
            found |= ~self.having(tag[1:]) if tag.startswith("!") else self.having(tag)
        return found

    def _tags_of(self, city: City) -> Iterable[str]:
        values, country, land = city.values, self.country(city), city.land
        for column in LISTS:
            yield from (f"{KIND.get(column, column)}:{value.lower()}" for value in values[column])
        for column in (
            "sports",
            "rule",
            "founders",
            "groups",
            "script",
            "religion",
            "practised",
            "currency",
            "drive",
            "flag",
            "regions",
        ):
            kind = {"sports": "sport", "groups": "group", "regions": "place", "founders": "founder"}.get(column, column)
            yield from (f"{kind}:{value.lower()}" for value in values[column])
        yield from (f"{kind}:{values[kind][0]}" for kind in ("climate", "cuisine", "story"))
        yield f"main sport:{values['sports'][0]}"
        yield f"main industry:{values['industry'][0]}"
        yield from (f"weather:{value}" for value in (*WEATHER[values["climate"][0]], *values["weather"]))
        if "hot" in values["weather"]:
            yield "weather:hot summers"
        yield from _language_tags(values["languages"])
        yield f"place:{CONTINENTS[country.continent]}"
        yield from {f"in:{land.code}", f"in:{country.code}", "all:yes"}
        yield from (f"borders:{code}" for code in country.neighbours)
        yield from _part_tags(values["part"][0])
        if country.population >= 50_000_000:
            yield "land:big"
        if "landlocked" not in values["groups"]:
            yield "land:coast"
        yield from _number_tags(city)
        if values["seas"]:
            yield from ("water:sea", "water:near")
        if "near sea" in values["terrain"]:
            yield "water:near"
        if values["rivers"]:
            yield "water:river"

    def _name_countries(self, lands: Mapping[str, Land]) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {key(row.name): (code,) for code, row in self.countries.items()}
        for land in lands.values():
            if land.code == "HK":
                found[key("Hong Kong")] = ("HK",)
                continue
            for name in (*land.names, *land.demonyms):
                known = found.get(key(name), ()) if name in ("Korea", "Korean") else ()
                found[key(name)] = tuple(dict.fromkeys((*known, land.code)))
            found |= {
                f"{key(name)}s": (land.code,) for name in land.demonyms if name.endswith("n") and name != "Korean"
            }
        for row in table("words"):
            codes = [tag.removeprefix("in:") for tag in split(row["keys"])]
            if all(code in self.countries for code in codes):
                phrases = [key(phrase) for phrase in split(row["phrases"])]
                peoples = [f"{phrase}s" for phrase in phrases if phrase.endswith("an")]
                found |= dict.fromkeys((*phrases, *peoples), tuple(codes))
        return found

    def _collect_phrases(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for tag in self.tags:
            kind, _, value = tag.partition(":")
            if kind in ("place", "language", "currency", "sea", "landmark", "dish", "sport", "flag"):
                found[key(value)] = (*found.get(key(value), ()), tag)
            if kind == "extra" and value[-4:].isdigit():  # "olympics 1988"
                games, year = value[:-5], value[-4:]
                for name in (games, games.replace("olympics", "olympic games"), f"summer {games}"):
                    found |= {
                        key(f"{year} {name}"): (tag,),
                        key(f"{name} in {year}"): (tag,),
                        key(f"{name} of {year}"): (tag,),
                    }
            if kind == "river":
                for phrase in (f"{value} river", f"river {value}", value):
                    if len(phrase) > 4 or phrase in ("nile", "neva"):
                        found[key(phrase)] = (*found.get(key(phrase), ()), tag)
        for half_hours in range(-24, 29):
            hours = half_hours / 2
            found[key(f"zone {'minus' if hours < 0 else 'plus'} {abs(hours):g}")] = (f"zone:{hours:g}",)
        for row in table("words"):
            tags = split(row["keys"])
            if all(tag.startswith("in:") for tag in tags):
                continue
            for phrase in split(row["phrases"]):
                found[key(phrase)] = tuple(dict.fromkeys((*found.get(key(phrase), ()), *tags)))
        return found


def _land(row: Mapping[str, str]) -> Land:
    values = {column: split(cell) for column, cell in row.items() if column not in ("code", "name", "languages")}
    values["languages"] = (row["languages"],)
    values["religion"], besides = languages(row["religion"])
    values["practised"] = (*values["religion"], *besides)
    return Land(row["code"], row["name"], (row["name"], *values["aliases"]), values["demonyms"], values)


def _city(row: Mapping[str, str], land: Land, numbers: Mapping[str, str]) -> City:
    own = {column: split(cell) for column, cell in row.items() if column != "languages"}
    values = {**land.values, **{column: cells for column, cells in own.items() if cells or column not in land.values}}
    values["rule"] = () if row["rule"] == "-" else values["rule"]
    # A city's own dishes are what it is known for; a sport of its own is liked besides those of its country.
    values["dishes"] = tuple(dict.fromkeys((*own["dishes"], *land.values["dishes"])))
    values["sports"] = tuple(dict.fromkeys((*land.values["sports"], *own["sports"])))
    values["languages"] = (row["languages"],) if row["languages"] else land.values["languages"]
    return City(
        name=row["name"],
        listed=row["listed"],
        names=tuple(dict.fromkeys((row["name"], row["listed"], *own["aliases"]))),
        land=land,
        population=int(numbers["population"]),
        latitude=float(numbers["latitude"]),
        longitude=float(numbers["longitude"]),
        hours=float(numbers["hours"]),
        values=values,
    )


def _country(row: Mapping[str, str]) -> Country:
    return Country(
        row["code"], row["name"], row["continent"], int(row["population"]), float(row["area"]), split(row["neighbours"])
    )


def _place(row: Mapping[str, str]) -> Place:
    return Place(
        split(row["name"])[0], row["country"], int(row["population"]), float(row["latitude"]), float(row["longitude"])
    )


def languages(cell: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The main languages of a city, and those that are spoken besides: `Hindi|English;Urdu`; likewise religions."""
    main, _, besides = cell.partition("|")
    return split(main), split(besides)


def _language_tags(cells: Sequence[str]) -> Iterable[str]:
    main, besides = languages(cells[0])
    yield from (f"language:{name.lower()}" for name in (*main, *besides))
    yield from (f"main:{name.lower()}" for name in main)


def _part_tags(part: str) -> Iterable[str]:
    """`northeast` is also in the north and in the east."""
    yield f"part:{part}"
    yield from (f"part:{side}" for side in ("north", "south", "east", "west") if side in part)


def _number_tags(city: City) -> Iterable[str]:
    yield "lat:north" if city.latitude > 0 else "lat:south"
    yield "lat:east" if city.longitude > 0 else "lat:west"
    if abs(city.latitude) > TROPIC:
        yield "lat:above cancer" if city.latitude > 0 else "lat:below capricorn"
    yield f"zone:{city.hours:g}"
    if city.hours:
        yield "hours:ahead" if city.hours > 0 else "hours:behind"
    if abs(city.latitude) < TROPIC:
        yield "lat:tropics"
    if abs(city.latitude) < 10:
        yield "lat:equator"
    if abs(city.latitude) < 1:
        yield "lat:on equator"
    if city.population >= 1_000_000:
        yield "size:million"
    if city.population >= 8_000_000:  # with its suburbs ten million then, what is called a megacity
        yield "size:mega"
    if city.elevation < 50:
        yield "height:low"
    if city.elevation >= 1500:
        yield "height:1500"
    for name, year in (("old", 1700), ("middle ages", 1400), ("ancient", 500)):
        if city.founded < year:
            yield f"era:{name}"


@functools.cache
def atlas() -> Atlas:
    """The tables, read once per process."""
    return Atlas()


@functools.cache
def group(name: str) -> frozenset[str]:
    """A group of words that the grammar treats alike, such as `negation`."""
    return frozenset(word for row in table("groups") if row["group"] == name for word in split(row["words"]))
