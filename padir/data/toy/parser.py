"""Parses a German sentence of `toy_de_en` into its meanings.

Analysis by synthesis: the words suggest readings of the verb and of each noun phrase; a reading counts only if the
grammar generates exactly the given sentence from it. So a parse can be missing but never wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from padir.data.toy.grammar import Clause, NounPhrase, Sentence
from padir.data.toy.lexicon import (
    ADJECTIVES,
    BARE,
    CASES,
    CONJUNCTIONS,
    DECLENSIONS,
    DETERMINERS,
    LONGEST_PHRASE,
    NOUNS,
    PHRASES,
    PLURAL,
    PRONOUNS,
    SINGULAR,
    TENSES,
    VERBS,
    Adjective,
    Determiner,
    Noun,
    Pronoun,
    Verb,
)


@dataclasses.dataclass(frozen=True)
class _Tables:
    """Every form of the lexicon with its readings, built once."""

    nouns: dict[str, list[tuple[Noun, str]]]
    determiners: dict[str, list[Determiner]]
    adjectives: dict[str, Adjective]
    predicates: dict[str, Adjective]
    pronouns: dict[str, list[Pronoun]]
    prepositions: frozenset[str]
    # From a clause's verb forms, in their order in the clause, to their readings (verb, tense, person): `last` for
    # clauses that end with their verb, `second` for all others.
    second: dict[tuple[str, ...], list[tuple[Verb, str, int]]]
    last: dict[tuple[str, ...], list[tuple[Verb, str, int]]]


@functools.cache
def _tables() -> _Tables:
    nouns = {}
    determiners = {}
    pronouns = {}
    for noun in NOUNS:
        for number in (SINGULAR, PLURAL) if noun.countable else (SINGULAR,):
            for form in {noun.german(case, number) for case in CASES}:
                nouns.setdefault(form, []).append((noun, number))
    for determiner in DETERMINERS:
        if determiner is not BARE:
            forms = itertools.product(CASES, "mnf", determiner.numbers)
            for form in {determiner.german(*form) for form in forms}:
                determiners.setdefault(form, []).append(determiner)
    for pronoun in PRONOUNS:
        for form in {pronoun.german(case) for case in CASES} - {""}:
            pronouns.setdefault(form, []).append(pronoun)
    adjective_endings = {ending for declension in DECLENSIONS.values() for ending in declension.adjective_endings}
    second = {}
    last = {}
    for verb in VERBS:
        tenses = ("present", "perfect") if verb.frame == "copula" else TENSES
        for tense, person in itertools.product(tenses, range(6)):
            reading = (verb, tense, person)
            second.setdefault(tuple(filter(None, verb.german(tense, person))), []).append(reading)
            last.setdefault(tuple(verb.german_last(tense, person).split()), []).append(reading)
    return _Tables(
        nouns,
        determiners,
        {adjective.stem + ending: adjective for adjective in ADJECTIVES for ending in adjective_endings},
        {adjective.german: adjective for adjective in ADJECTIVES},
        pronouns,
        frozenset(verb.preposition for verb in VERBS) - {""},
        second,
        last,
    )


def _noun_phrase(words: list[str], start: int) -> tuple[list[NounPhrase | Pronoun], int]:
    """The readings of the noun phrase that begins at `start` (none if none does), and where it ends."""
    tables = _tables()
    if words[start] in tables.pronouns:
        return list(tables.pronouns[words[start]]), start + 1
    determiners = tables.determiners.get(words[start], [])
    position = start
    if determiners:
        position += 1
    adjective = tables.adjectives.get(words[position]) if position < len(words) else None
    if adjective:
        position += 1
    if position == len(words) or words[position] not in tables.nouns:
        return [], start
    readings: list[NounPhrase | Pronoun] = [
        NounPhrase(determiner, adjective, noun, number)
        for determiner in determiners or [BARE]
        for noun, number in tables.nouns[words[position]]
        if number in determiner.numbers and not (determiner is BARE and number == SINGULAR and noun.countable)
    ]
    return readings, position + 1


def _chunks(words: list[str]) -> tuple[list[list[NounPhrase | Pronoun]], dict[str, Any], list[str], str]:
    """Cuts a clause into its noun phrases (readings of each), adverbs by slot, verbs; and says what comes first."""
    tables = _tables()
    noun_phrases = []
    adverbs = {}
    verbs = []
    first = ""
    position = 0
    while position < len(words):
        for length in range(LONGEST_PHRASE, 0, -1):
            phrase = PHRASES.get(" ".join(words[position : position + length]))
            if phrase:
                break
        if phrase:
            adverbs["place" if phrase.slot in ("home", "goal") else phrase.slot] = phrase
            first = first or phrase.slot
            position += length
            continue
        prepositional = words[position] in tables.prepositions and position + 1 < len(words)
        readings, end = _noun_phrase(words, position + prepositional)
        if readings:
            noun_phrases.append(readings)
            first = first or "noun phrase"
            position = end
            continue
        if words[position] == "nicht":
            adverbs["negated"] = True
        elif words[position] in tables.predicates:
            adverbs["predicate"] = tables.predicates[words[position]]
        else:
            verbs.append(words[position])
        position += 1
    return noun_phrases, adverbs, verbs, first


def _clauses(text: str, order: str) -> Iterator[Clause]:
    """Every clause from which the grammar generates `text` with its verb in the place `order` (`Clause.german`)."""
    noun_phrases, adverbs, verbs, first = _chunks(text.split())
    roles = {1: [("subject",)], 2: [("subject", "object"), ("object", "subject")]}
    roles[3] = [("subject", "recipient", "object")]
    tables = _tables()
    readings = (tables.last if order == "last" else tables.second).get(tuple(verbs), [])
    for names in roles.get(len(noun_phrases), []):
        for verb, tense, person in readings:
            if {"transitive": 2, "ditransitive": 3}.get(verb.frame, 1) != len(names):
                continue
            if (verb.frame == "copula") != ("predicate" in adverbs):
                continue
            front = "time" if order == "second" and first == "time" else "object" if names[0] == "object" else "subject"
            for chosen in itertools.product(*noun_phrases):
                arguments = dict(zip(names, chosen, strict=True))
                if arguments["subject"].person != person:
                    continue
                target = arguments.get("object")
                if front == "object" and not (isinstance(target, NounPhrase) and target.shows_case(verb.case)):
                    continue
                clause = Clause(verb=verb, tense=tense, first=front, **arguments, **adverbs)
                if clause.german(order) == text:
                    yield clause


def parse(source: str) -> list[Sentence]:
    """Every meaning from which the grammar generates `source`; empty if `source` is no sentence of the grammar."""
    if not source.endswith(".") or len(source) < 2:
        return []
    meanings = []
    for text in {source[0].lower() + source[1:-1], source[:-1]}:
        meanings += [sentence for sentence in _sentences(text) if sentence.german() == source]
    return meanings


def _sentences(text: str) -> Iterator[Sentence]:
    if ", " not in text:
        for clause in _clauses(text, "second"):
            yield Sentence(clause)
        return
    left, right = text.split(", ", 1)
    head, _, rest = left.partition(" ")
    if head in CONJUNCTIONS:  # Weil das Kind müde ist, schläft es.
        conjunction = CONJUNCTIONS[head]
        for other, main in itertools.product(_clauses(rest, "last"), _clauses(right, "first")):
            yield Sentence(main, conjunction, other, other_first=True)
    head, _, rest = right.partition(" ")
    if head in CONJUNCTIONS:
        conjunction = CONJUNCTIONS[head]
        order = "last" if conjunction.subordinate else "second"
        for main, other in itertools.product(_clauses(left, "second"), _clauses(rest, order)):
            yield Sentence(main, conjunction, other)
