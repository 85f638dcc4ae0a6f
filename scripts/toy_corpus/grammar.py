"""The meaning of a sentence of `toy_de_en`, and its German and English wordings.

A `Sentence` is one or two clauses; a `Clause` is a verb with its arguments and adverbs. German has exactly one wording
for each sentence. English has one wording for each `Mode`, and a mode holds for the whole sentence.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

from lexicon import (
    AUXILIARIES,
    PLURAL,
    SINGULAR,
    THIRD_PLURAL,
    THIRD_SINGULAR,
    Adjective,
    Conjunction,
    Determiner,
    Noun,
    Phrase,
    Pronoun,
    Verb,
    variety,
)


@dataclasses.dataclass(frozen=True)
class Mode:
    """The three choices that English has, each made once for a whole sentence.

    american: `in the fall`, `on May 3` against `in autumn`, `on 3 May`, in every word of the sentence at once.
    moved: what German puts first (an adverbial of time, a subordinate clause) goes to the end.
    prepositional: `gives the book to the child` against `gives the child the book`.
    """

    american: bool
    moved: bool
    prepositional: bool


# The choices are independent of each other; where a sentence gives no occasion for one it makes no difference.
AMERICAN, MOVED, PREPOSITIONAL = 0.3, 0.4, 0.5
MODES = tuple(
    (Mode(american, moved, prepositional), p * q * r)
    for (american, p), (moved, q), (prepositional, r) in itertools.product(
        ((False, 1 - AMERICAN), (True, AMERICAN)),
        ((False, 1 - MOVED), (True, MOVED)),
        ((False, 1 - PREPOSITIONAL), (True, PREPOSITIONAL)),
    )
)


@dataclasses.dataclass(frozen=True)
class Reference:
    """One right translation, and the probability with which the corpus chooses it."""

    text: str
    probability: float


@dataclasses.dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjective, noun: `der alte Mann`, `drei Äpfel`, `Milch`, `Anna`."""

    determiner: Determiner
    adjective: Adjective | None
    noun: Noun
    number: str

    @property
    def person(self) -> int:
        return THIRD_PLURAL if self.number == PLURAL else THIRD_SINGULAR

    def shows_case(self, case: str) -> bool:
        """True if the phrase cannot be taken for a subject when it comes first: den Mann, but not das Kind."""
        return self.number == SINGULAR and self.german(case) != self.german("nominative")

    def german(self, case: str) -> str:
        gender = self.noun.gender
        words = [self.determiner.german(case, gender, self.number)]
        if self.adjective:
            words.append(self.adjective.stem + self.determiner.adjective_ending(case, gender, self.number))
        words.append(self.noun.german(case, self.number))
        return " ".join(filter(None, words))

    def english(self, american: bool, subject: bool) -> str:
        words = [variety(self.adjective.english, american)] if self.adjective else []
        words.append(self.noun.english(self.number, american))
        determiner = self.determiner.english(self.number)
        if determiner == "a" and words[0][0] in "aeiou":
            determiner = "an"
        return " ".join(filter(None, [determiner, *words]))


_BE = {"present": ("am", "are", "is", "are", "are", "are"), "perfect": ("was", "were", "was", "were", "were", "were")}


@dataclasses.dataclass(frozen=True)
class Clause:
    """A verb with its subject, objects and adverbs.

    Attributes:
      tense: present, perfect (English simple past), future, or a modal verb.
      object: the accusative, dative or prepositional object; recipient: the dative of a ditransitive verb.
      predicate: the adjective of a copula.
      first: what stands before the verb of a main clause: subject, time or object.
    """

    subject: NounPhrase | Pronoun
    verb: Verb
    tense: str
    object: NounPhrase | Pronoun | None = None
    recipient: NounPhrase | Pronoun | None = None
    predicate: Adjective | None = None
    time: Phrase | None = None
    frequency: Phrase | None = None
    manner: Phrase | None = None
    place: Phrase | None = None
    negated: bool = False
    first: str = "subject"

    def german(self, order: str = "second") -> str:
        """The clause with its verb second, first (after a subordinate clause) or last (in a subordinate clause).

        Middle field: subject, pronoun, time, frequency, recipient, object, nicht, manner, place, prepositional object.
        """
        verb = self.verb
        subject = self.subject.german("nominative")
        parts: list[tuple[str, str | None]] = [("subject", subject)]
        light = []
        full = []
        last = []
        if self.recipient:
            recipient = ("recipient", self.recipient.german("dative"))
            (light if isinstance(self.recipient, Pronoun) else full).append(recipient)
        if self.object:
            text = self.object.german(verb.case)
            if verb.preposition:
                last.append(("object", f"{verb.preposition} {text}"))
            else:
                (light if isinstance(self.object, Pronoun) else full).append(("object", text))
        parts += light
        parts += [("time", self.time and self.time.german), ("frequency", self.frequency and self.frequency.german)]
        parts += full
        parts += [("not", "nicht" if self.negated else None), ("manner", self.manner and self.manner.german)]
        parts += [("place", self.place and self.place.german)]
        parts += last
        parts += [("predicate", self.predicate and self.predicate.german)]

        person = self.subject.person
        middle = [text for name, text in parts if text and (order != "second" or name != self.first)]
        if order == "last":
            return " ".join([*middle, verb.german_last(self.tense, person)])
        finite, closing = verb.german(self.tense, person)
        front = [text for name, text in parts if name == self.first and text] if order == "second" else []
        return " ".join(filter(None, [*front, finite, *middle, closing]))

    def english(self, mode: Mode, fronted: bool) -> str:
        """Subject, verb, objects, manner, place, time; the time comes first if `fronted`."""
        american = mode.american
        words = [self.subject.english(american, subject=True), self._english_verb(american)]
        words += self._english_objects(mode)
        words += [phrase.english(american) for phrase in (self.manner, self.place) if phrase]
        if self.time:
            words.insert(0 if fronted else len(words), self.time.english(american))
        return " ".join(filter(None, words))

    def _english_verb(self, american: bool) -> str:
        verb = self.verb
        person = self.subject.person
        third = person == THIRD_SINGULAR
        frequency = self.frequency.english(american) if self.frequency else ""
        if verb.frame == "copula":
            words = [_BE[self.tense][person], "not" if self.negated else "", frequency]
        elif self.tense == "present":
            finite = verb.third if third else verb.english
            words = ["does" if third else "do", "not", verb.english] if self.negated else [frequency, finite]
        elif self.tense == "perfect":
            past = variety(verb.past, american)
            words = ["did", "not", verb.english] if self.negated else [frequency, past]
        else:
            auxiliary = AUXILIARIES[self.tense]
            modal = auxiliary.negated if self.negated else auxiliary.english
            modal = modal.format(do="does" if third else "do", want="wants" if third else "want")
            words = [modal, verb.english]
        return " ".join(filter(None, words))

    def _english_objects(self, mode: Mode) -> list[str]:
        verb = self.verb
        said = self.object.english(mode.american, subject=False) if self.object else ""
        if self.predicate:
            return [variety(self.predicate.english, mode.american)]
        if self.recipient:
            recipient = self.recipient.english(mode.american, subject=False)
            return [said, "to", recipient] if mode.prepositional else [recipient, said]
        if isinstance(self.object, Pronoun) and not verb.english_preposition:
            return [said, verb.particle]  # picks him up
        return [verb.particle, verb.english_preposition, said]


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:] + "."


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One clause, or two with a conjunction; `other_first` puts the subordinate clause before the main clause."""

    main: Clause
    conjunction: Conjunction | None = None
    other: Clause | None = None
    other_first: bool = False

    def german(self) -> str:
        if self.conjunction is None or self.other is None:
            return _capitalised(self.main.german())
        other = f"{self.conjunction.german} {self.other.german('last' if self.conjunction.subordinate else 'second')}"
        if self.other_first:
            return _capitalised(f"{other}, {self.main.german('first')}")
        return _capitalised(f"{self.main.german()}, {other}")

    def english(self, mode: Mode) -> str:
        main = self.main.english(mode, self.main.first == "time" and not mode.moved and not self.other_first)
        if self.conjunction is None or self.other is None:
            return _capitalised(main)
        second = not self.conjunction.subordinate
        other = self.other.english(mode, second and self.other.first == "time" and not mode.moved)
        other = f"{self.conjunction.english} {other}"
        if self.other_first and not mode.moved:
            return _capitalised(f"{other}, {main}")
        return _capitalised(f"{main}{',' if second else ''} {other}")

    def references(self) -> tuple[Reference, ...]:
        """All right translations with their probabilities, the likeliest first (ties in the order of `MODES`)."""
        clauses = [clause for clause in (self.main, self.other) if clause]
        movable = self.other_first or any(clause.first == "time" for clause in clauses)
        dative = any(clause.recipient for clause in clauses)
        english = functools.cache(self.english)  # most sentences give no occasion for most choices
        probabilities: dict[str, float] = {}
        for mode, probability in MODES:
            text = english(Mode(mode.american, mode.moved and movable, mode.prepositional and dative))
            probabilities[text] = probabilities.get(text, 0.0) + probability
        ranked = sorted(probabilities.items(), key=lambda item: -round(item[1], 9))
        return tuple(Reference(text, round(probability, 9)) for text, probability in ranked)
