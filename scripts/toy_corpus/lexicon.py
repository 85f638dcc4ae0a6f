"""The words of `toy_de_en` and their forms, read from `tables`: one table for each kind of entry.

Each German word has one English meaning, except that a verb of two frames (essen; etwas essen) has two entries. In the
tables, `-` is nothing, and `british~american` is a wording that differs between the two varieties of English.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import TypeVar, get_type_hints

T = TypeVar("T")

SINGULAR, PLURAL = "singular", "plural"
THIRD_SINGULAR, THIRD_PLURAL = 2, 5  # persons are numbered ich 0, du 1, er 2, wir 3, ihr 4, sie 5
MODALS = ("können", "wollen", "sollen", "müssen", "dürfen")


def variety(english: str, american: bool) -> str:
    """One side of `british~american`, or the text itself where the two agree."""
    return english.split("~")[american] if "~" in english else english


def _words(value: str) -> tuple[str, ...]:
    return () if value == "-" else tuple(word.strip("-") for word in value.split())


_READERS = {str: lambda value: value.strip("-"), int: int, bool: "yes".__eq__, tuple[str, ...]: _words}


def _entries(kind: type[T], table: str) -> tuple[T, ...]:
    """The lines of a table as dataclasses; the first line names the fields."""
    text = (Path(__file__).parent / "tables" / f"{table}.tsv").read_text(encoding="utf-8")
    names, *rows = (line.split("\t") for line in text.splitlines())
    types = get_type_hints(kind)
    entries = [dict(zip(names, row, strict=True)) for row in rows]
    return tuple(kind(**{name: _READERS[types[name]](value) for name, value in entry.items()}) for entry in entries)


@dataclasses.dataclass(frozen=True, eq=False)
class Noun:
    """A German noun and its English meaning; verbs and adjectives select nouns by `kind`.

    `oblique` is the singular in the accusative and the dative (den Jungen), `name` is True for first names.
    """

    kind: str
    singular: str
    oblique: str
    plural: str
    dative_plural: str
    gender: str
    english_singular: str
    english_plural: str
    name: bool

    @property
    def countable(self) -> bool:
        """False for mass nouns (Milch) and for names, which have no plural."""
        return bool(self.plural)

    def german(self, case: str, number: str) -> str:
        if number == SINGULAR:
            return self.singular if case == "nominative" else self.oblique
        return self.dative_plural if case == "dative" else self.plural

    def english(self, number: str, american: bool) -> str:
        return variety(self.english_plural if number == PLURAL else self.english_singular, american)


@dataclasses.dataclass(frozen=True, eq=False)
class Adjective:
    """`stem` takes the endings (teuer, teur-); `kinds` are the kinds of nouns that it can describe.

    `state` is True for states that come and go. For other adjectives (alt, groß), adverbs of time make little sense.
    """

    german: str
    stem: str
    english: str
    kinds: tuple[str, ...]
    state: bool


@dataclasses.dataclass(frozen=True)
class Declension:
    """Endings of determiners and of the adjectives that follow, each for masculine, neuter, feminine and plural."""

    declension: str
    case: str
    endings: tuple[str, ...]
    adjective_endings: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Determiner:
    """A determiner: the beginning of a noun phrase, and the endings of its adjective.

    `numbers` are the grammatical numbers of the nouns that it can precede.
    """

    kind: str
    stem: str
    declension: str
    english_singular: str
    english_plural: str
    numbers: tuple[str, ...]

    def german(self, case: str, gender: str, number: str) -> str:
        return self.stem + DECLENSIONS[self.declension, case].endings[_column(gender, number)]

    def adjective_ending(self, case: str, gender: str, number: str) -> str:
        return DECLENSIONS[self.declension, case].adjective_endings[_column(gender, number)]

    def english(self, number: str) -> str:
        return self.english_plural if number == PLURAL else self.english_singular


def _column(gender: str, number: str) -> int:
    return 3 if number == PLURAL else "mnf".index(gender)


@dataclasses.dataclass(frozen=True)
class Pronoun:
    """A personal pronoun; a case is "" where its form would be ambiguous (sie: her or them)."""

    person: int
    nominative: str
    accusative: str
    dative: str
    subject_form: str
    object_form: str

    def german(self, case: str) -> str:
        return getattr(self, case)

    def english(self, american: bool, subject: bool) -> str:
        return self.subject_form if subject else self.object_form


@dataclasses.dataclass(frozen=True)
class Auxiliary:
    """The present of a German auxiliary, and the English one, affirmative and negated."""

    name: str
    forms: tuple[str, ...]
    english: str
    negated: str


@dataclasses.dataclass(frozen=True, eq=False)
class Verb:
    """A verb in one frame.

    Attributes:
      frame: intransitive (place or manner may follow), bare (they may not), home (in Berlin wohnen), goal (nach Berlin
        fahren), transitive (one object of any case), ditransitive, that (with a clause), copula (with an adjective).
      case, preposition: of the German object; conjunction: of the clause that follows.
      forms: the present, by person.
      third: the third person singular of the English present.
      particle, english_preposition: as in `pick up` and `look at`: picks it up, but looks at it.
      objects, subjects: the kinds of nouns that make sense.
    """

    frame: str
    case: str
    preposition: str
    conjunction: str
    infinitive: str
    prefix: str
    forms: tuple[str, ...]
    participle: str
    auxiliary: str
    english: str
    third: str
    past: str
    particle: str
    english_preposition: str
    objects: tuple[str, ...]
    subjects: tuple[str, ...]

    def german(self, tense: str, person: int) -> tuple[str, str]:
        """The finite verb and what closes the clause: (kauft, ein), (hat, eingekauft), (will, einkaufen)."""
        if self.frame == "copula":
            return AUXILIARIES["war" if tense == "perfect" else "sein"].forms[person], ""
        if tense == "present":
            return self.forms[person], self.prefix
        if tense == "perfect":
            return AUXILIARIES[self.auxiliary].forms[person], self.participle
        return AUXILIARIES[tense].forms[person], self.prefix + self.infinitive

    def german_last(self, tense: str, person: int) -> str:
        """The verbs at the end of a subordinate clause: einkauft, eingekauft hat, einkaufen will."""
        finite, closing = self.german(tense, person)
        if not closing:
            return finite
        return closing + finite if tense == "present" else f"{closing} {finite}"


@dataclasses.dataclass(frozen=True, eq=False)
class Phrase:
    """A phrase that is never inflected, its part in the clause (`slot`), and the tenses that it fits (`times`).

    Slots: time, frequency, manner, place, home (where one lives), goal (where one goes).
    Only phrases of the slot time have times (habit, past, future) and a group.
    """

    slot: str
    group: str
    german: str
    british_american: str
    times: tuple[str, ...]

    def english(self, american: bool) -> str:
        return variety(self.british_american, american)


@dataclasses.dataclass(frozen=True)
class Conjunction:
    """`subordinate` puts the verb last; `times` are the tenses that both clauses may have."""

    german: str
    english: str
    subordinate: bool
    times: tuple[str, ...]


NOUNS = _entries(Noun, "nouns")
ADJECTIVES = _entries(Adjective, "adjectives")
DECLENSIONS = {(entry.declension, entry.case): entry for entry in _entries(Declension, "declensions")}
DETERMINERS = _entries(Determiner, "determiners")
DEFINITE, INDEFINITE, BARE, THIS, EVERY = DETERMINERS[:5]  # BARE: singular with names and mass nouns only
POSSESSIVES, QUANTIFIERS, NUMERALS = (
    tuple(determiner for determiner in DETERMINERS if determiner.kind == kind)
    for kind in ("possessive", "quantifier", "numeral")
)
PRONOUNS = _entries(Pronoun, "pronouns")
AUXILIARIES = {entry.name: entry for entry in _entries(Auxiliary, "auxiliaries")}
VERBS = _entries(Verb, "verbs")
_PHRASES = _entries(Phrase, "phrases")
FREQUENCIES, MANNERS, PLACES, HOMES, GOALS, _TIMES = (
    tuple(phrase for phrase in _PHRASES if phrase.slot == slot)
    for slot in ("frequency", "manner", "place", "home", "goal", "time")
)
# Groups, so that 336 dates do not crowd out the other times: a sampler draws the group first.
TIME_GROUPS = tuple(tuple(phrases) for _, phrases in itertools.groupby(_TIMES, key=lambda phrase: phrase.group))
CONJUNCTIONS = {conjunction.german: conjunction for conjunction in _entries(Conjunction, "conjunctions")}
