"""German-like sentences with spans of every kind, and a translator that mistreats the marks of spans."""

import random
import re

NOUNS = "Garten Löffel Turm Kuchen Brief Wagen Vogel Schrank Teller Brunnen Käfer Hügel".split()
VERBS = "sucht malt findet öffnet trägt baut zählt wäscht".split()
NAMES = "ACME", "Quimby", "PDF", "Nguyen"
KINDS = ("tags", "urls", "numbers", "|".join(NAMES))
VOID = ("<br>", "<hr/>", "<wbr>", "&nbsp;", "&copy;", "&foo;", "<!-- kurz -->")
ENTITIES = ("&amp;", "&quot;", "&ndash;", "&#39;", "&uuml;ber", "Gr&uuml;&szlig;e", "&#228;hnlich", "&lt;", "(&amp;)")
WORDS = (
    *("https://www.example.org/{n}?a=1&amp;b=2", "www.example.org/{name}/%s", "ftp://example.org/a%20b&nbsp;c"),
    *("{name}", "{count}te", "%s", "%(zahl)d", "${PFAD}", "{a}{b}", "{a}{b}lich", "erika@example.org"),
    *("4711", "17", "{n}", "{n}.{n}.19{n}", "{n} km", "{n} %", "1.234,5 €"),
    *("ACME", "ACMEs", "Quimbys", "PDFs", "Nguyen-Haus", "XACME", "un<b>glaub</b>lich", "Dampf<wbr>schiff"),
    *("<i>ACME</i>s", "Haus<br>Boot", "<b>{name}</b>te", "Donau&shy;ufer", "eins</li><li>zwei"),
)
# Spans as they stand in a sentence, the longest first: each must stand in the translation as often.
SPANS = re.compile(
    r"https?://[^\s<>]*b=2|ftp://[^\s<>]*c|www\.[^\s<>]*%s|\w+@example\.org|</?\w+/?>|<!-- \w+ -->"
    r"|&(?:nbsp|copy|foo|shy);|%\(zahl\)d|%s|\$?\{\w+\}|" + "|".join(NAMES) + r"|(?<![\d#])\d+(?:[.,:]\d+)*"
)


def sentence(draw: random.Random) -> str:
    """A sentence of 3 to 9 words with one to four spans; its tags nest."""
    parts = [draw.choice((*NOUNS, *VERBS)) for _ in range(draw.randint(2, 5))]
    for _ in range(draw.randint(1, 4)):
        part = draw.choice(draw.choice((VOID, ENTITIES, WORDS, WORDS)))
        for _ in range(part.count("{n}")):
            part = part.replace("{n}", str(draw.randint(2, 99)), 1)
        parts.insert(draw.randint(0, len(parts)), part)
    for tag in draw.sample(["b", "em", "u", "span"], draw.randint(0, 3)):
        begin = draw.randint(0, len(parts))
        end = draw.randint(begin, len(parts))
        inner = " ".join(parts[begin:end])
        blank = draw.choice(["", "", " "])
        if "</li>" not in inner:
            parts[begin:end] = [f"<{tag}>{blank}{inner}{blank}</{tag}>"]
    return " ".join(parts) + draw.choice(["", ".", "!", "?"])


def hostile(draw: random.Random, marks: list[str]) -> str:
    """A translation that loses, repeats, moves and joins marks."""
    words = [draw.choice(["stone", "river", "and", "the", ",", "(", ")"]) for _ in range(draw.randint(0, 7))]
    for mark in marks:
        for _ in range(draw.choice([0, 1, 1, 1, 2])):
            joined = draw.choice([mark, mark, mark + "s", "by" + mark] if mark.isalpha() else [mark])
            words.insert(draw.randint(0, len(words)), joined)
    return " ".join(words)
