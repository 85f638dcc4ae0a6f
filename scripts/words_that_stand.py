"""Counts the spans that stand in the translations of 1,000 generated German sentences, in every mode.

    PYTHONPATH=. python scripts/words_that_stand.py [--sentences 1000] [--models de_en de_en_ar] [--ways refine]
    PYTHONPATH=. python scripts/words_that_stand.py --pairs test.de.gz test.en.gz --sentences 500 [--json FILE]
    PYTHONPATH=. python scripts/words_that_stand.py --aligned scripts/aligned_pairs.tsv

Each sentence has one to four spans: tags, addresses, e-mail addresses, numbers or names of a list. In the first 200
sentences a tag encloses one word whose English translation is known. Prints, for each model and mode, the share of
sentences with every span exactly once and no further number, the share with tags that nest, the number of the 200 tags
that enclose the right word, and CPU seconds.

With --pairs, each of the first sentences of a test set gets a term: a word of the reference of at least five letters,
linked to a source word by the model itself. Prints the share of terms used, BLEU, chrF and CPU seconds (all cores,
without compiling) without the terms, with them, and with the source word replaced by a placeholder for the term.
--json writes them, too.

With --aligned, prints precision, recall and alignment error rate of word alignments on pairs that were aligned by hand,
for the pairs with even and odd numbers. Rules by hand: words that translate each other are linked, an auxiliary to the
same words as its verb, and each word of an idiom to each word of its translation; other words stay free.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import time
import xml.etree.ElementTree
from typing import Any

from padir import Translator
from padir.constrained.terms import missing
from padir.decoding.alignment import links
from padir.measuring.benchmark.speed_report import environment
from padir.metrics.scores import bleu, chrf
from padir.storage.files import write_json
from padir.text.placing import units
from padir.text.spans import edited

NAMES = "Anneliese Brunhilde Yilmaz Nguyen Kowalski Bielefeld Szczecin Reykjavik Ouagadougou Quimby".split()
KEEP = ("tags", "urls", "numbers", "|".join(NAMES))
GERMAN = "Hund Haus Buch Auto Wasser Mann Kind Stadt Freund Zug".split()
KNOWN: dict[str, str] = dict(
    zip(GERMAN, "dog house book car water man child city|town friend train".split(), strict=True)
)
FRAMES = [
    "Der {w} ist sehr alt.",
    "Ich habe den {w} gestern gesehen.",
    "Wo ist das {w}?",
    "Sie mag das {w} nicht.",
    "Wir brauchen ein {w}.",
]
SLOTS = [
    "Bitte lesen Sie {url} heute.",
    "Schreiben Sie mir an {mail}.",
    "Ich wohne seit {n} Jahren in {name}.",
    "{name} hat {n} Bücher gekauft.",
    "Der Zug fährt um {time} nach {name}.",
    "Klicken Sie auf <{t}>das Bild</{t}>, oder gehen Sie zu {url}.",
    "<{t}>Mein Bruder</{t}> und {name} sind <{u}>sehr müde</{u}>.",
    "Das kostet {n} Euro.<br>Fragen Sie {name}.",
    "<p>Ich habe <{t}>einen <{u}>kleinen</{u}> Hund</{t}>.</p>",
    "Die Datei {{name}} hat {n} Zeilen.",
    "Die Nummer ist {long}.",
    "Es sind {km} bis {name}.",
    # Spans in words, words in entities, addresses that hold spans, and blanks
    "Ich habe {name}s Buch seit {n}&nbsp;Jahren.",
    "Die {{count}}te Seite von {url}&amp;c={{id}} fehlt.",
    "Das ist <{t}>un<{u}>glaub</{u}>lich</{t}> alt.",
    "Der Hund &amp; die Katze hei&szlig;en &quot;{name}&quot;.",
    "<li>Mein Haus</li><li>Ihr Auto ist %s</li>",
    "Die Datei %(file)s ist <br> {n} Tage alt.",
]


def sentence(draw: random.Random) -> str:
    """A sentence with spans."""
    t, u = draw.sample(["b", "i", "u", "em", 'a href="x.html"'], 2)
    text = draw.choice(SLOTS).format(
        url=f"https://www.example.org/{draw.randint(1, 999)}/a?b={draw.randint(1, 9)}",
        mail=f"{draw.choice(NAMES).lower()}@mail.example.org",
        n=draw.randint(2, 4000),
        name=draw.choice(NAMES),
        time=f"{draw.randint(1, 23)}:{draw.randint(10, 59)}",
        long=draw.randint(10**6, 10**10),
        km=f"{draw.randint(2, 900)} km",
        t=t,
        u=u,
    )
    return text.replace('</a href="x.html">', "</a>")


def corpus(count: int) -> tuple[list[str], list[str]]:
    """The sentences, and for each the pattern of the word that its tag must enclose, or ""."""
    draw = random.Random(0)
    texts, words = [], []
    for number in range(count):
        if number < min(200, count // 2):
            word = draw.choice([*KNOWN])
            texts.append(draw.choice(FRAMES).format(w=f"<b>{word}</b>"))
            words.append(KNOWN[word])
        else:
            texts.append(sentence(draw))
            words.append("")
    return texts, words


SPAN = re.compile(
    r"<[^<>]+>|https?://[^\s<>]*[\w}]|[\w.]+@[\w.]+\w|\{\w+\}|%s|%\(file\)s|&nbsp;|\d[\d:]*(?: km)?|" + "|".join(NAMES)
)
STAND_IN = re.compile(r"\b(?:by)?[XZQYVWKJ]s?\b")  # no sentence has one


WAYS: dict[str, dict[str, Any]] = {
    "refine": {"mode": "refine"},
    "one pass": {"mode": "refine", "num_steps": 1},
    "one length": {"mode": "refine", "num_lengths": 1, "rerank": "own"},
    "beam 5": {"mode": "causal", "beam": 5},
    "greedy": {"mode": "causal", "beam": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--models", nargs="+", default=["de_en", "de_en_ar", "de_en_ctc"])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS], help="modes; a model leaves out others")
    parser.add_argument("--aligned", metavar="FILE", help="measure word alignments on pairs aligned by hand")
    parser.add_argument("--pairs", nargs=2, metavar="FILE", help="measure terms on this test set")
    parser.add_argument("--json", metavar="FILE", help="write what --pairs measures, and the machine")
    args = parser.parse_args()
    texts, words = corpus(args.sentences)
    rows = []
    for name in args.models:
        translator = Translator.load(name)
        ways = [way for way in args.ways if translator.card.config.dual or WAYS[way]["mode"] == "causal"]
        if args.pairs:
            rows += measure_terms(translator, name, ways, args.pairs, args.sentences)
        elif args.aligned:
            measure_alignments(translator, name, args.aligned)
        else:
            for way in ways:
                results, seconds = translated(translator, texts=texts, placeholders=KEEP, **WAYS[way])
                print(f"{name:9} {way:9} {report(texts, words, results)}, {seconds:.1f} CPU s", flush=True)
    if args.json:
        write_json(args.json, {"environment": environment(), "rows": rows})


def translated(translator: Translator, **given: Any) -> tuple[list[str], float]:
    """The translations, and the CPU seconds of all cores without compiling."""
    translator.translate(**given)  # compiles
    began = time.process_time()
    return [each.text for each in translator.translate(**given)], time.process_time() - began


def report(texts: list[str], words: list[str], results: list[str]) -> str:
    """The shares of the translations with all spans, and of the tags at the right word."""
    spans, found = ([sorted(SPAN.findall(text)) for text in side] for side in (texts, results))
    kept = sum(map(list.__eq__, spans, found)) / len(texts)
    nest = sum(map(well_formed, results)) / len(texts)
    written = right = 0
    for word, text in zip(words, results, strict=True):
        if word and re.search(rf"\b({word})", re.sub("<[^<>]+>", "", text), re.IGNORECASE):
            written += 1
            right += re.search(rf"<b>[^<]*\b({word})[^<]*</b>", text, re.IGNORECASE) is not None
    left = sum(map(bool, map(STAND_IN.search, results)))
    at = f"tag at the right word {right} of {written} written"
    return f"kept {100 * kept:.1f} %, stand-ins left in {left}, nesting {100 * nest:.1f} %, {at}"


def well_formed(text: str) -> bool:
    """True if the standard library's parser accepts the tags."""
    try:
        xml.etree.ElementTree.fromstring(f"<p>{re.sub('&[a-z]+;', '', text).replace('<br>', '<br/>')}</p>")
    except xml.etree.ElementTree.ParseError:
        return False
    return True


def measure_terms(
    translator: Translator, name: str, ways: list[str], files: list[str], count: int
) -> list[dict[str, Any]]:
    """Measures and prints what terms of the references change, as terms and as placeholders in the source."""
    rows = []
    pairs = list(zip(*map(lines, files), strict=True))[: 2 * count]
    sources, references, terms = map(list, zip(*with_terms(translator, pairs)[:count], strict=True))
    marked = [
        edited(source, [edit._replace(text=f"⟦{edit.text}⟧") for edit in missing(own, source, "")])
        for own, source in zip(terms, sources, strict=True)
    ]
    inputs: dict[str, Any] = {
        "plain": {"texts": sources},
        "terms": {"texts": sources, "terms": terms},
        "placeholders": {"texts": marked, "placeholders": "⟦[^⟧]*⟧"},
    }
    for way in ways:
        for kind, given in inputs.items():
            results, seconds = translated(translator, **given, truncate=True, **WAYS[way])
            texts = [re.sub("[⟦⟧]", "", each) for each in results]
            used = sum(not missing(*each) for each in zip(terms, sources, texts, strict=True))
            scores = bleu(texts, references, translator.card.target_language), chrf(texts, references)
            row = {"model": name, "mode": way, "kind": kind, "sentences": len(texts), "used": used}
            row |= {each.name: each.value for each in scores} | {"seconds": seconds}
            rows.append(row)
            print(
                f"{name:9} {way:9} {kind:12}: {used} of {len(texts)} used,"
                f" BLEU {row['bleu']:.1f}, chrF {row['chrf']:.1f}, {seconds:.1f} CPU s",
                flush=True,
            )
    return rows


def with_terms(translator: Translator, pairs: list[tuple[str, str]]) -> list[tuple[str, str, dict[str, str]]]:
    """The pairs that have a term: a word of each side, which stands once and which the model links alone."""
    found = []
    for (source, target), linked in zip(pairs, links(translator.loaded, pairs, 32), strict=True):
        own, theirs = ([text[begin:end] for begin, end in units(text)] for text in (source, target))
        for t, s in enumerate(linked):
            once = s >= 0 and linked.count(s) == 1 == own.count(own[s])
            if once and len(own[s]) >= 5 and len(theirs[t]) >= 5:
                found.append((source, target, {own[s]: theirs[t]}))
                break
    return found


def measure_alignments(translator: Translator, name: str, file: str) -> None:
    """Prints how well the model's links agree with those of a file: source, target and links, between tabs."""
    sources, targets, by_hand = zip(*(line.split("\t") for line in lines(file)), strict=True)
    found = [set(each) for each in translator.align(sources, targets)]
    true = [{tuple(map(int, link.split("-"))) for link in each.split()} for each in by_hand]
    for half, begin in (("even", 0), ("odd", 1)):
        own, hand = found[begin::2], true[begin::2]
        right, links, all_true = sum(map(len, map(set.__and__, own, hand))), sum(map(len, own)), sum(map(len, hand))
        print(
            f"{name:9} {half} pairs: precision {right / links:.3f}, recall {right / all_true:.3f},"
            f" error rate {1 - 2 * right / (links + all_true):.3f}",
            flush=True,
        )


def lines(path: str) -> list[str]:
    """The lines of a file, plain or compressed."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


if __name__ == "__main__":
    main()
