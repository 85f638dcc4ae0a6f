"""Draws meanings for `toy_de_en` that make sense: verbs select their subjects and objects, tenses their times.

Only `rng.random()` is used: of the methods of `random.Random`, it alone is promised to give the same numbers in every
version of Python.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import TypeVar

from grammar import Clause, NounPhrase, Sentence
from lexicon import (
    ADJECTIVES,
    BARE,
    CONJUNCTIONS,
    DEFINITE,
    EVERY,
    FREQUENCIES,
    GOALS,
    HOMES,
    INDEFINITE,
    MANNERS,
    MODALS,
    NOUNS,
    NUMERALS,
    PLACES,
    PLURAL,
    POSSESSIVES,
    PRONOUNS,
    QUANTIFIERS,
    SINGULAR,
    THIS,
    TIME_GROUPS,
    VERBS,
    Adjective,
    Conjunction,
    Determiner,
    Noun,
    Phrase,
    Pronoun,
)

T = TypeVar("T")

MIN_WORDS, MAX_WORDS = 4, 20
_SUBORDINATORS = tuple(CONJUNCTIONS[word] for word in ("weil", "obwohl", "während", "wenn", "bevor"))
_COORDINATORS = (CONJUNCTIONS["und"], CONJUNCTIONS["aber"])
_SPECIFIC = (DEFINITE, THIS, *POSSESSIVES)
_COPULA = next(verb for verb in VERBS if verb.frame == "copula")
_COMPLEMENT_VERBS = tuple(verb for verb in VERBS if verb.frame == "that")
_OTHER_VERBS = tuple(verb for verb in VERBS if verb.frame not in ("that", "copula"))
_FREE_PLACES = (*HOMES, *(place for place in PLACES if place.german in ("im Park", "zu Hause", "im Büro")))


def _pick(rng: random.Random, choices: Sequence[T]) -> T:
    return choices[int(rng.random() * len(choices))]


@functools.cache
def _nouns(kinds: tuple[str, ...]) -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS if noun.kind in kinds)


@functools.cache
def _adjectives(kind: str) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in ADJECTIVES if kind in adjective.kinds)


@functools.cache
def _times(about: str) -> tuple[tuple[Phrase, ...], ...]:
    return tuple(group for group in TIME_GROUPS if about in group[0].times)


def _determiner(rng: random.Random, noun: Noun, number: str) -> Determiner:
    draw = rng.random()
    if noun.name:
        return BARE
    if not noun.countable:
        return BARE if draw < 0.5 else DEFINITE if draw < 0.8 else _pick(rng, POSSESSIVES)
    if number == PLURAL:
        if draw < 0.35:
            return DEFINITE
        if draw < 0.8:
            return BARE if draw < 0.45 else _pick(rng, NUMERALS if draw < 0.65 else QUANTIFIERS)
        return THIS if draw < 0.85 else _pick(rng, POSSESSIVES)
    if draw < 0.72:
        return DEFINITE if draw < 0.42 else INDEFINITE
    return EVERY if draw < 0.75 else THIS if draw < 0.82 else _pick(rng, POSSESSIVES)


def _noun_phrase(rng: random.Random, kinds: tuple[str, ...], adjective_share: float) -> NounPhrase:
    noun = _pick(rng, _nouns(kinds))
    number = PLURAL if noun.countable and rng.random() < 0.3 else SINGULAR
    described = not noun.name and rng.random() < adjective_share
    adjective = _pick(rng, _adjectives(noun.kind)) if described and _adjectives(noun.kind) else None
    return NounPhrase(_determiner(rng, noun, number), adjective, noun, number)


def _argument(rng: random.Random, kinds: tuple[str, ...], case: str, subject: NounPhrase | Pronoun):
    """An object that is not the subject itself; for persons, sometimes a pronoun."""
    if "person" in kinds and rng.random() < 0.15:
        pronoun = _pick(rng, PRONOUNS)
        if pronoun.german(case) and pronoun.person != subject.person:
            return pronoun
    while True:
        phrase = _noun_phrase(rng, kinds, 0.3)
        if not (isinstance(subject, NounPhrase) and subject.noun is phrase.noun):
            return phrase


def _tense(rng: random.Random, about: str, subject: NounPhrase | Pronoun) -> str:
    if about != "future":
        return "present" if about == "habit" else "perfect"
    if rng.random() < 0.4:
        return "future"
    lifeless = isinstance(subject, NounPhrase) and subject.noun.kind not in ("person", "animal")
    return _pick(rng, ("können", "sollen", "müssen")) if lifeless else _pick(rng, MODALS)


def _deniable(phrase: NounPhrase | Pronoun | None) -> bool:
    """True if `nicht` and `not` mean the same: False for clauses with `ein`, `viele` or `jeder`."""
    return not isinstance(phrase, NounPhrase) or phrase.determiner in _SPECIFIC or phrase.noun.name


def _clause(rng: random.Random, about: str, time_share: float, first_share: float) -> Clause:
    """A clause about a habit, the past or the future."""
    verb = _COPULA if about != "future" and rng.random() < 0.1 else _pick(rng, _OTHER_VERBS)
    if "person" in verb.subjects and rng.random() < 0.2:
        subject = _pick(rng, PRONOUNS)
    else:
        subject = _noun_phrase(rng, verb.subjects, 0.0 if verb is _COPULA else 0.2)
    fields = {}
    if verb is _COPULA:
        kind = subject.noun.kind if isinstance(subject, NounPhrase) else "person"
        fields["predicate"] = _pick(rng, _adjectives(kind))
    elif verb.frame == "transitive":
        fields["object"] = _argument(rng, verb.objects, verb.case, subject)
    elif verb.frame == "ditransitive":
        fields["object"] = _noun_phrase(rng, verb.objects, 0.25)
        fields["recipient"] = _argument(rng, ("person",), "dative", subject)
    elif verb.frame == "goal":
        fields["place"] = _pick(rng, GOALS)
    elif verb.frame == "home":
        fields["place"] = _pick(rng, HOMES)
    elif verb.frame == "intransitive":
        if rng.random() < 0.6:
            fields["place"] = _pick(rng, PLACES)
        if rng.random() < 0.3:
            fields["manner"] = _pick(rng, MANNERS)
    if verb.frame == "transitive" and rng.random() < 0.1:
        fields["place"] = _pick(rng, _FREE_PLACES)
    lasting = "predicate" in fields and not fields["predicate"].state
    if rng.random() < time_share and not lasting:
        fields["time"] = _pick(rng, _pick(rng, _times(about)))
    if about != "future" and not lasting and not fields.keys() & {"time", "manner"} and rng.random() < 0.25:
        fields["frequency"] = _pick(rng, FREQUENCIES)
    elif rng.random() < 0.2 and not (about == "habit" and "time" in fields):  # nor `not ... every day`
        fields["negated"] = _deniable(subject) and _deniable(fields.get("object"))
    front = rng.random()
    target = fields.get("object")
    if "time" in fields and front < first_share:
        fields["first"] = "time"
    elif front < 0.25 and verb.frame == "transitive" and not verb.preposition:
        if isinstance(target, NounPhrase) and target.shows_case(verb.case):
            fields["first"] = "object"
    return Clause(subject, verb, _tense(rng, about, subject), **fields)


def _complement(rng: random.Random) -> Sentence:
    """A subordinate clause with its conjunction, such as: dass das Kind schläft."""
    verb = _pick(rng, _COMPLEMENT_VERBS)
    subject = _pick(rng, PRONOUNS) if rng.random() < 0.2 else _noun_phrase(rng, ("person",), 0.2)
    frequency = _pick(rng, FREQUENCIES) if rng.random() < 0.15 else None
    about = _pick(rng, ("habit", "past", "future"))
    main = Clause(subject, verb, "present", frequency=frequency)
    return Sentence(main, CONJUNCTIONS[verb.conjunction], _clause(rng, about, 0.4, 0.0))


def _joined(rng: random.Random, conjunction: Conjunction) -> Sentence:
    about = _pick(rng, conjunction.times)
    if not conjunction.subordinate:
        return Sentence(_clause(rng, about, 0.4, 0.5), conjunction, _clause(rng, about, 0.4, 0.5))
    other_first = rng.random() < 0.4
    main = _clause(rng, about, 0.25, 0.0 if other_first else 0.3)
    if other_first and main.first != "subject":
        return _joined(rng, conjunction)
    return Sentence(main, conjunction, _clause(rng, about, 0.0, 0.0), other_first)


def sample(rng: random.Random) -> Sentence:
    """Draws one meaning, whose German sentence has MIN_WORDS to MAX_WORDS words."""
    while True:
        draw = rng.random()
        if draw < 0.62:
            about = _pick(rng, ("habit", "past", "future"))
            sentence = Sentence(_clause(rng, about, 0.45, 0.33))
        elif draw < 0.74:
            sentence = _complement(rng)
        elif draw < 0.92:
            sentence = _joined(rng, _pick(rng, _SUBORDINATORS))
        else:
            sentence = _joined(rng, _pick(rng, _COORDINATORS))
        if MIN_WORDS <= len(sentence.german().split()) <= MAX_WORDS:
            return sentence
