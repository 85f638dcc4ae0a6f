"""The grammar corpus: hand-written sentences with their translations, the splits, and the judge."""

import collections
import hashlib
import itertools
import random

import pytest
from support.refusals import refuses

from padir.data.toy import ToyDeEn, has_unseen_pair, judge, references
from padir.data.toy.grammar import NounPhrase
from padir.data.toy.lexicon import ADJECTIVES, CASES, DEFINITE, INDEFINITE, NOUNS, PLURAL, SINGULAR
from padir.data.toy.parser import parse
from padir.data.toy.sampler import MAX_WORDS, MIN_WORDS, sample

NUM_TRAIN = 6_000


@pytest.fixture(scope="module")
def corpus():
    source = ToyDeEn(num_train=NUM_TRAIN, num_validation=100, num_test=200)
    return {split: list(source.pairs(split)) for split in source.splits}


@pytest.fixture(scope="module")
def meanings(corpus):
    return {split: [parse(german) for german, _ in pairs] for split, pairs in corpus.items()}


# Sentences with one translation; what German and English rules they show is said above them.
ONE = {
    # verb second, whatever comes first; an object that comes first is known by its case
    "Der alte Mann kauft ein Buch.": "The old man buys a book.",
    "Den Hund hat der Junge gesehen.": "The boy saw the dog.",
    "Dem Kind hilft die Lehrerin.": "The teacher helps the child.",
    # verb last, alone and in clusters
    "Er schläft, weil er müde war.": "He sleeps because he was tired.",
    "Ich glaube, dass das Kind den Apfel gegessen hat.": "I believe that the child ate the apple.",
    "Wir fragen, ob ihr den Brief lesen könnt.": "We ask whether you can read the letter.",
    # separable verbs: apart, together, in the participle, in the infinitive; a pronoun stands before the particle
    "Die Mädchen rufen ihn an.": "The girls call him.",
    "Sie hofft, dass die Mädchen ihn abholen.": "She hopes that the girls pick him up.",
    "Sie haben den Arzt abgeholt.": "They picked up the doctor.",
    "Du sollst die Lampe nicht ausmachen.": "You should not turn off the lamp.",
    # gender and case, weak nouns, the dative plural
    "Ein kleiner Hund folgt einem kleinen Pferd.": "A small dog follows a small horse.",
    "Der Student dankt den freundlichen Kindern.": "The student thanks the friendly children.",
    "Der Polizist sieht den Studenten.": "The policeman sees the student.",
    "Maria trinkt frische Milch.": "Maria drinks fresh milk.",
    "Einige junge Ärztinnen warten auf den Bus.": "Some young doctors wait for the bus.",
    # numbers and plurals; a and an
    "Zwölf Schafe spielen im Park.": "Twelve sheep play in the park.",
    "Paul kann zwei Messer verstecken.": "Paul can hide two knives.",
    "Peter zeichnet einen alten Elefanten.": "Peter draws an old elephant.",
    # negation, with do and without
    "Anna wäscht das Auto nicht.": "Anna does not wash the car.",
    "Ich habe nicht auf dich gewartet.": "I did not wait for you.",
    "Ihr müsst die Tür nicht öffnen.": "You do not have to open the door.",
    "Die Küche war nicht sauber.": "The kitchen was not clean.",
    # adverbs: before the object and in the middle of a German clause, around the verb and last in an English one
    "Die Frau isst oft Käse.": "The woman often eats cheese.",
    "Er ist immer müde.": "He is always tired.",
    "Sie haben vor zwei Tagen leise im Garten gesungen.": "They sang quietly in the garden two days ago.",
}


@pytest.mark.parametrize("german", ONE)
def test_one_translation(german):
    assert [(reference.text, reference.probability) for reference in references(german)] == [(ONE[german], 1.0)]


# Sentences with several: 0.7 British, 0.3 American; 0.6 kept in place, 0.4 moved; 0.5 for either dative.
SEVERAL = {
    "Die Frau gibt dem Kind das Buch.": {
        "The woman gives the child the book.": 0.5,
        "The woman gives the book to the child.": 0.5,
    },
    "Gestern hat Anna gekocht.": {"Yesterday Anna cooked.": 0.6, "Anna cooked yesterday.": 0.4},
    "Weil das Kind müde ist, schläft sie ein.": {
        "Because the child is tired, she falls asleep.": 0.6,
        "She falls asleep because the child is tired.": 0.4,
    },
    "Den Hund hat der Junge am 3. Mai gesehen.": {
        "The boy saw the dog on 3 May.": 0.7,
        "The boy saw the dog on May 3.": 0.3,
    },
    "Im Herbst kauft der alte Mann eine Wohnung.": {
        "In autumn the old man buys a flat.": 0.42,
        "The old man buys a flat in autumn.": 0.28,
        "In the fall the old man buys an apartment.": 0.18,
        "The old man buys an apartment in the fall.": 0.12,
    },
    # a mode holds in both clauses at once
    "Im Winter wartet ihr, aber im Herbst wartet der Nachbar.": {
        "In winter you wait, but in autumn the neighbour waits.": 0.42,
        "You wait in winter, but the neighbour waits in autumn.": 0.28,
        "In winter you wait, but in the fall the neighbor waits.": 0.18,
        "You wait in winter, but the neighbor waits in the fall.": 0.12,
    },
}


@pytest.mark.parametrize("german", SEVERAL)
def test_several_translations_with_their_probabilities(german):
    found = {reference.text: reference.probability for reference in references(german)}
    assert found == pytest.approx(SEVERAL[german])
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize(
    "german",
    [
        "",
        ".",
        "The man sleeps.",
        "Der Mann das Buch kauft.",  # verb last in a main clause
        "Er schläft, weil er ist müde.",  # verb second in a subordinate clause
        "Weil er arm ist, er schläft.",
        "Das Mann kauft ein Buch.",  # gender
        "Der Mann sieht der Hund.",  # case
        "Die Männer kauft ein Buch.",  # number
        "Er sieht alte Hund.",  # a singular that needs a determiner
        "Der Mann kauft ein Buch ein.",  # a prefix too many
        "Der Mann kauft ein Buch",
        "der Mann kauft ein Buch.",
    ],
)
def test_what_the_grammar_does_not_say_is_refused(german):
    refuses(references, "expected a German sentence of toy_de_en", german)


def test_declension():
    """der gute Mann, ein gutes Kind, ... in all cases against a school grammar's table."""
    noun = {noun.singular: noun for noun in NOUNS}
    old = next(adjective for adjective in ADJECTIVES if adjective.german == "alt")

    def declined(determiner, word, number):
        return [NounPhrase(determiner, old, noun[word], number).german(case) for case in CASES]

    assert declined(DEFINITE, "Mann", SINGULAR) == ["der alte Mann", "den alten Mann", "dem alten Mann"]
    assert declined(DEFINITE, "Frau", SINGULAR) == ["die alte Frau", "die alte Frau", "der alten Frau"]
    assert declined(DEFINITE, "Kind", PLURAL) == ["die alten Kinder", "die alten Kinder", "den alten Kindern"]
    assert declined(INDEFINITE, "Mann", SINGULAR) == ["ein alter Mann", "einen alten Mann", "einem alten Mann"]
    assert declined(INDEFINITE, "Frau", SINGULAR) == ["eine alte Frau", "eine alte Frau", "einer alten Frau"]
    assert declined(INDEFINITE, "Kind", SINGULAR) == ["ein altes Kind", "ein altes Kind", "einem alten Kind"]
    assert declined(DEFINITE, "Junge", SINGULAR) == ["der alte Junge", "den alten Jungen", "dem alten Jungen"]


@pytest.mark.parametrize(
    "output, verdict",
    [
        ("In autumn the old man buys a flat.", "right"),
        ("  The old man buys an apartment  in the fall. ", "right"),
        ("In the fall the old man buys a flat.", "mixed"),  # American, then British: counted from the end
        ("In autumn the old man buys an flat.", "mixed"),
        ("In old man buys a flat in autumn.", "mixed"),  # the place, twice
        ("In autumn the young man buys a flat.", "wrong"),  # a word of no translation
        ("In autumn the old man buys flat.", "wrong"),  # shorter than any
        ("The old man buys a flat.", "wrong"),  # something is missing, nothing mixed
        ("", "wrong"),
    ],
)
def test_judge_of_four_translations(output, verdict):
    assert judge("Im Herbst kauft der alte Mann eine Wohnung.", output) == verdict


@pytest.mark.parametrize(
    "output, verdict",
    [
        ("The woman gives the book to the child.", "right"),
        ("The woman gives the child to book.", "mixed"),
        ("The woman gives the book the child.", "mixed"),  # 7 words, as the first; `child.` is the second's last
        ("The woman gives the book to the book.", "mixed"),
        ("The woman gives the the book child.", "wrong"),  # no translation has `the` as its fifth word, or third last
        ("The woman gives the book to book.", "mixed"),
        ("Woman the gives the child the book.", "wrong"),
    ],
)
def test_judge_of_two_translations_of_unequal_length(output, verdict):
    assert judge("Die Frau gibt dem Kind das Buch.", output) == verdict


def test_where_one_translation_is_right_nothing_is_mixed():
    source = "Der alte Mann kauft ein Buch."
    right = "The old man buys a book.".split()
    for changed in itertools.product(*[(word, right[0]) for word in right]):
        assert judge(source, " ".join(changed)) == ("right" if list(changed) == right else "wrong")


def test_independent_words_of_right_translations_are_right_or_mixed(corpus):
    """A decoder that knows every position's distribution, and nothing of the others, draws such words."""
    rng = random.Random(0)
    verdicts = collections.Counter()
    for source, _ in corpus["test"][:80]:
        right = [reference.text.split() for reference in references(source)]
        if len(right) == 1:
            continue
        for length in {len(words) for words in right}:
            columns = [[words[place] for words in right if place < len(words)] for place in range(length)]
            verdicts[judge(source, " ".join(rng.choice(column) for column in columns))] += 1
    assert verdicts.keys() == {"right", "mixed"}
    assert verdicts["mixed"] > verdicts["right"]


def test_splits_are_what_was_asked_for_and_share_no_source(corpus):
    sources = {split: {german for german, _ in pairs} for split, pairs in corpus.items()}
    assert {split: len(found) for split, found in sources.items()} == {
        "train": NUM_TRAIN,
        "validation": 100,
        "test": 200,
    }
    assert not sources["train"] & (sources["test"] | sources["validation"])
    assert not sources["validation"] & sources["test"]


def test_no_split_meets_another_of_a_different_seed(corpus):
    train = {german for german, _ in ToyDeEn(seed=1, num_train=300).pairs("train")}
    assert not train & {german for split in ("test", "validation") for german, _ in corpus[split]}
    assert train != {german for german, _ in corpus["train"][:300]}


def test_sentences_have_4_to_20_words(corpus):
    lengths = {len(german.split()) for german, _ in corpus["train"]}
    assert (min(lengths), max(lengths)) == (MIN_WORDS, MAX_WORDS) == (4, 20)


def test_every_sentence_has_one_meaning_and_its_target_is_a_reference(corpus, meanings):
    for split, pairs in corpus.items():
        for (german, english), found in zip(pairs, meanings[split], strict=True):
            assert len({meaning.references() for meaning in found}) == 1, german
            assert english in [reference.text for reference in found[0].references()], german


def test_probabilities_sum_to_one(meanings):
    for meaning, *_ in meanings["test"]:
        probabilities = [reference.probability for reference in meaning.references()]
        assert sum(probabilities) == pytest.approx(1.0) and min(probabilities) > 0


def test_about_a_third_of_the_sources_have_several_translations(meanings):
    share = sum(len(meaning.references()) > 1 for (meaning, *_) in meanings["train"]) / NUM_TRAIN
    assert 0.3 < share < 0.45


def test_translations_are_drawn_by_their_probabilities(corpus, meanings):
    """The likeliest of two is drawn as often as it should be, within 4 standard deviations, for each pair of shares."""
    drawn: dict[float, list[bool]] = {}
    for (_, english), (meaning, *_) in zip(corpus["train"], meanings["train"], strict=True):
        choices = meaning.references()
        if len(choices) == 2:
            drawn.setdefault(choices[0].probability, []).append(english == choices[0].text)
    assert drawn.keys() == {0.5, 0.6, 0.7}
    for probability, hits in drawn.items():
        deviation = (probability * (1 - probability) / len(hits)) ** 0.5
        assert abs(sum(hits) / len(hits) - probability) < 4 * deviation


def _pairs(meanings):
    """The (verb, object noun) pairs, each a pair of words."""
    clauses = [clause for (meaning, *_) in meanings for clause in (meaning.main, meaning.other) if clause]
    return {
        (clause.verb.prefix + clause.verb.infinitive, clause.object.noun.singular)
        for clause in clauses
        if isinstance(clause.object, NounPhrase)
    }


@pytest.mark.parametrize("split", ["validation", "test"])
def test_every_other_sentence_holds_a_verb_and_object_that_training_lacks(meanings, split):
    assert [has_unseen_pair(meaning) for (meaning, *_) in meanings[split][:6]] == [True, False] * 3
    train = _pairs(meanings["train"])
    unseen, seen = _pairs(meanings[split][::2]), _pairs(meanings[split][1::2])
    assert all(_pairs([meaning]) - train for meaning in meanings[split][::2])
    assert len(unseen - train) > 30  # distinct combinations, of words that training knows:
    assert {verb for verb, _ in unseen} <= {verb for verb, _ in train}
    assert {noun for _, noun in unseen} <= {noun for _, noun in train}
    assert len(seen & train) > 0.8 * len(seen)  # the rest are rare, not kept out: this training split is small


def test_the_corpus_is_the_same_everywhere(corpus):
    """Fixed sums: any change to a word, a rule or a draw is a new corpus, and scores on it are not comparable."""
    first = {
        split: "".join(f"{german}\t{english}\n" for german, english in pairs[:40]) for split, pairs in corpus.items()
    }
    assert {split: hashlib.sha256(text.encode()).hexdigest()[:16] for split, text in first.items()} == {
        "train": "ca2041bfc343dc0c",
        "validation": "e06385cb557bcaf8",
        "test": "fad9c06f0231a609",
    }


@pytest.mark.slow
def test_a_hundred_thousand_distinct_sentences():
    assert len({german for german, _ in ToyDeEn().pairs("train")}) == 100_000


def test_the_sampler_draws_every_kind_of_sentence():
    rng = random.Random(0)
    sentences = [sample(rng) for _ in range(1_000)]
    clauses = [clause for sentence in sentences for clause in (sentence.main, sentence.other) if clause]
    assert {clause.first for clause in clauses} == {"subject", "time", "object"}
    assert len({clause.tense for clause in clauses}) == 8
    assert {sentence.conjunction.german for sentence in sentences if sentence.conjunction} == set(
        "weil obwohl während wenn bevor dass ob und aber".split()
    )


def test_bad_arguments_are_explained():
    refuses(ToyDeEn().pairs, "no split 'dev': use one of train, validation, test", "dev")
