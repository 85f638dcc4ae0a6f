"""Parses a German sentence of `toy_de_en` into its meanings.

Analysis by synthesis: the words suggest readings of the verb and of each noun phrase; a reading counts only if the
grammar generates exactly the given sentence from it. So a parse can be missing but never wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

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
    Pronoun,
)

K = TypeVar("K")
V = TypeVar("V")


def _index(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


# Every form of the lexicon with its readings.
_NOUNS = _index(
    (form, (noun, number))
    for noun in NOUNS
    for number in ((SINGULAR, PLURAL) if noun.countable else (SINGULAR,))
    for form in {noun.german(case, number) for case in CASES}
)
_DETERMINERS = _index(
    (form, determiner)
    for determiner in DETERMINERS
    if determiner is not BARE
    for form in {determiner.german(*each) for each in itertools.product(CASES, "mnf", determiner.numbers)}
)
_PRONOUNS = _index((form, pronoun) for pronoun in PRONOUNS for form in {pronoun.german(case) for case in CASES} - {""})
_ENDINGS = {ending for declension in DECLENSIONS.values() for ending in declension.adjective_endings}
_ADJECTIVES = {adjective.stem + ending: adjective for adjective in ADJECTIVES for ending in _ENDINGS}
_PREDICATES = {adjective.german: adjective for adjective in ADJECTIVES}
_PREPOSITIONS = {verb.preposition for verb in VERBS} - {""}
_VERBS = [
    (verb, tense, person)
    for verb in VERBS
    for tense in (("present", "perfect") if verb.frame == "copula" else TENSES)
    for person in range(6)
]
# The forms of a verb, in their order in the clause: in clauses that end with their verb, and in all others.
_LAST = _index(
    (tuple(verb.german_last(tense, person).split()), (verb, tense, person)) for verb, tense, person in _VERBS
)
_SECOND = _index(
    (tuple(filter(None, verb.german(tense, person))), (verb, tense, person)) for verb, tense, person in _VERBS
)


def _noun_phrase(words: list[str], start: int) -> tuple[list[NounPhrase | Pronoun], int]:
    """The readings of the noun phrase that begins at `start` (none if none does), and where it ends."""
    if words[start] in _PRONOUNS:
        return list(_PRONOUNS[words[start]]), start + 1
    determiners = _DETERMINERS.get(words[start], [])
    position = start
    if determiners:
        position += 1
    adjective = _ADJECTIVES.get(words[position]) if position < len(words) else None
    if adjective:
        position += 1
    if position == len(words) or words[position] not in _NOUNS:
        return [], start
    readings: list[NounPhrase | Pronoun] = [
        NounPhrase(determiner, adjective, noun, number)
        for determiner in determiners or [BARE]
        for noun, number in _NOUNS[words[position]]
        if number in determiner.numbers and not (determiner is BARE and number == SINGULAR and noun.countable)
    ]
    return readings, position + 1


def _chunks(words: list[str]) -> tuple[list[list[NounPhrase | Pronoun]], dict[str, Any], list[str], str]:
    """Cuts a clause into its noun phrases (readings of each), adverbs by slot, verbs; and says what comes first."""
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
        prepositional = words[position] in _PREPOSITIONS and position + 1 < len(words)
        readings, end = _noun_phrase(words, position + prepositional)
        if readings:
            noun_phrases.append(readings)
            first = first or "noun phrase"
            position = end
            continue
        if words[position] == "nicht":
            adverbs["negated"] = True
        elif words[position] in _PREDICATES:
            adverbs["predicate"] = _PREDICATES[words[position]]
        else:
            verbs.append(words[position])
        position += 1
    return noun_phrases, adverbs, verbs, first


def _clauses(text: str, order: str) -> Iterator[Clause]:
    """Every clause from which the grammar generates `text` with its verb in the place `order` (`Clause.german`)."""
    noun_phrases, adverbs, verbs, first = _chunks(text.split())
    roles = {1: [("subject",)], 2: [("subject", "object"), ("object", "subject")]}
    roles[3] = [("subject", "recipient", "object")]
    readings = (_LAST if order == "last" else _SECOND).get(tuple(verbs), [])
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
