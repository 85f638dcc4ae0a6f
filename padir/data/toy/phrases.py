"""The fixed phrases of `toy_de_en`: pronouns, adverbs, places, dates and times, conjunctions."""

from __future__ import annotations

import dataclasses

from padir.data.toy.nouns import NUMBERS, variety


@dataclasses.dataclass(frozen=True, eq=False)
class Phrase:
    """A phrase that is never inflected, its part in the clause (`slot`), and the tenses that it fits (`times`).

    Slots: time, frequency, manner, place, home (where one lives), goal (where one goes).
    Only phrases of the slot time have times: habit, past, future.
    """

    german: str
    british_american: str
    slot: str
    times: frozenset[str] = frozenset()

    def english(self, american: bool) -> str:
        return variety(self.british_american, american)


def _table(slot: str, table: str) -> tuple[Phrase, ...]:
    pairs = (entry.split(" = ") for entry in table.strip().splitlines())
    return tuple(Phrase(german.strip(), english, slot) for german, english in pairs)


FREQUENCIES = _table(
    "frequency",
    """oft = often
    immer = always
    nie = never
    manchmal = sometimes
    selten = rarely""",
)
MANNERS = _table(
    "manner",
    """allein = alone
    leise = quietly
    wieder = again
    eine Stunde = for an hour""",
)
PLACES = _table(
    "place",
    """im Garten = in the garden
    im Park = in the park
    in der Küche = in the kitchen
    in der Schule = at school
    im Büro = at the office
    zu Hause = at home
    im Hotel = at the hotel
    im Wald = in the forest
    in der Bibliothek = in the library
    im Restaurant = in the restaurant
    im Zug = on the train
    am Strand = on the beach
    auf dem Balkon = on the balcony
    im Kino = at the cinema~at the movies""",
)
_CITIES = dict(Berlin="Berlin", London="London", Paris="Paris", Rom="Rome", Wien="Vienna", Köln="Cologne")
HOMES = _table(
    "home",
    """auf dem Land = in the country
    in der Stadt = in the city
    im Dorf = in the village
    am Meer = by the sea
    in der Hauptstadt = in the capital
    im Stadtzentrum = in the city centre~in the city center""",
) + tuple(Phrase(f"in {german}", f"in {english}", "home") for german, english in _CITIES.items())
GOALS = _table(
    "goal",
    """in die Stadt = to the city
    zum Bahnhof = to the station
    zum Flughafen = to the airport
    zur Schule = to school
    zur Arbeit = to work
    ins Museum = to the museum
    ins Theater = to the theatre~to the theater
    zum Markt = to the market
    zum Strand = to the beach
    nach Hause = home
    ins Kino = to the cinema~to the movies
    zum See = to the lake""",
) + tuple(Phrase(f"nach {german}", f"to {english}", "goal") for german, english in _CITIES.items())

_DAYS = dict(
    zip(
        "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split(),
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
        strict=True,
    )
)
_MONTHS = dict(
    zip(
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
        "January February March April May June July August September October November December".split(),
        strict=True,
    )
)
_SEASONS = dict(Frühling="spring", Sommer="summer", Herbst="autumn~fall", Winter="winter")
_UNITS = dict(Tagen="days", Wochen="weeks", Monaten="months", Jahren="years")


def _times(times: str, pairs) -> tuple[Phrase, ...]:
    return tuple(Phrase(german, english, "time", frozenset(times.split())) for german, english in pairs)


def _both(before: str, word: str) -> str:
    """A word of both varieties after another word: next autumn~next fall."""
    return "~".join(before + side for side in word.split("~"))


# Groups, so that 336 dates do not crowd out the other times: a sampler draws the group first.
TIME_GROUPS = (
    _times(
        "habit",
        [("jeden Tag", "every day"), ("jeden Morgen", "every morning"), ("jeden Abend", "every evening")]
        + [("jede Woche", "every week"), ("jedes Jahr", "every year"), ("in der Nacht", "at night")]
        + [("am Wochenende", "at the weekend~on the weekend"), ("am Nachmittag", "in the afternoon")],
    ),
    _times("habit", [(f"jeden {german}", f"every {english}") for german, english in _DAYS.items()]),
    _times(
        "past",
        [("gestern", "yesterday"), ("gestern Abend", "yesterday evening"), ("letzte Woche", "last week")]
        + [("letztes Jahr", "last year"), ("letzten Monat", "last month"), ("heute Morgen", "this morning")]
        + [("vorgestern", "the day before yesterday")],
    ),
    _times(
        "past",
        [
            (f"vor {number} {unit}", f"{NUMBERS[number]} {english} ago")
            for number in list(NUMBERS)[:11]
            for unit, english in _UNITS.items()
        ],
    ),
    _times("past", [(f"im Jahr {year}", f"in {year}") for year in range(1990, 2025)]),
    _times("past", [(f"letzten {german}", _both("last ", english)) for german, english in (_DAYS | _SEASONS).items()]),
    _times(
        "future",
        [("morgen", "tomorrow"), ("übermorgen", "the day after tomorrow"), ("morgen Abend", "tomorrow evening")]
        + [("nächste Woche", "next week"), ("nächstes Jahr", "next year"), ("nächsten Monat", "next month")]
        + [("heute Abend", "this evening")],
    ),
    _times(
        "future",
        [
            (f"in {number} {unit}", f"in {NUMBERS[number]} {english}")
            for number in list(NUMBERS)[:11]
            for unit, english in _UNITS.items()
        ],
    ),
    _times(
        "future", [(f"nächsten {german}", _both("next ", english)) for german, english in (_DAYS | _SEASONS).items()]
    ),
    _times(
        "past future",
        [
            (f"am {day}. {german}", f"on {day} {english}~on {english} {day}")
            for german, english in _MONTHS.items()
            for day in range(1, 29)  # every month has 28 days
        ],
    ),
    _times("past future", [(f"am {german}", f"on {english}") for german, english in _DAYS.items()]),
    _times("habit past future", [(f"im {german}", f"in {english}") for german, english in _MONTHS.items()]),
    _times(
        "habit past future",
        [
            (f"im {german}", "in autumn~in the fall" if german == "Herbst" else f"in {english}")
            for german, english in _SEASONS.items()
        ],
    ),
    _times(
        "habit past future",
        [(f"um {number} Uhr", f"at {english} o'clock") for number, english in list(NUMBERS.items())[:11]],
    ),
)

PHRASES = {
    phrase.german: phrase for group in (*TIME_GROUPS, FREQUENCIES, MANNERS, PLACES, HOMES, GOALS) for phrase in group
}
LONGEST_PHRASE = max(len(german.split()) for german in PHRASES)


@dataclasses.dataclass(frozen=True)
class Conjunction:
    """`subordinate` puts the verb last; `times` are the tenses that both clauses may have."""

    german: str
    english: str
    subordinate: bool
    times: tuple[str, ...] = ("habit", "past", "future")


CONJUNCTIONS = {
    conjunction.german: conjunction
    for conjunction in (
        Conjunction("weil", "because", True),
        Conjunction("obwohl", "although", True),
        Conjunction("während", "while", True, ("habit", "past")),
        Conjunction("wenn", "when", True, ("habit",)),
        Conjunction("bevor", "before", True, ("habit", "past")),
        Conjunction("dass", "that", True),
        Conjunction("ob", "whether", True),
        Conjunction("und", "and", False),
        Conjunction("aber", "but", False),
    )
}
