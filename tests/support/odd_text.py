"""Sentences with odd blanks, decomposed letters, marks of Markdown and capitals, as people paste them."""

import random
import unicodedata

WORDS = (
    "Übung schöne Straße Wörter Zug Bahnhof grün drei vier null eins Café OK NATO x2 5 12:30 {name} <b> Σοφός"
    " ＡＢ ｃ１ ﬁn Straﬀe".split()
)
BLANKS = ["\t", "\u00a0", "\u200b", "\u2009", "\u3000", " \u00a0", "\x0b", "\u2028"]
INVISIBLE = ["\u00ad", "\u2060", "\ufeff", "\u200e"]
EMPHASIS = ["*", "**", "***", "`", "_", "~~"]
BEFORE = ["- ", "* ", "• ", "## ", "> ", "[ ] ", "3) ", "a) ", "\t", "\u00a0 ", "😀 ", "→", "▪ ", "-", "#", ">>"]
AFTER = [" ##", " **", " ", "\t", " 😀", "👨‍👩‍👧", "\u00a0", " ✓", "  "]
ENDS = [".", "!", "?", "…", ""]


def odd_lines(count: int, seed: int = 0) -> list[str]:
    """Lines that differ in up to all of these ways; some have no letter or nothing odd."""
    rng = random.Random(seed)
    return [_line(rng) for _ in range(count)]


def _line(rng: random.Random) -> str:
    if rng.random() < 0.05:
        return "".join(
            rng.choice(["-", "•", " ", "😀", "5", ".", "\u200b", "***", "_"]) for _ in range(rng.randint(0, 6))
        )
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 7))]
    if rng.random() < 0.2:
        words = [word.upper() for word in words]
    if rng.random() < 0.2:
        place, mark = rng.randrange(len(words)), rng.choice(EMPHASIS)
        words[place] = mark + words[place] + mark * (rng.random() < 0.9)
    line = words[0]
    for word in words[1:]:
        line += (rng.choice(BLANKS) if rng.random() < 0.1 else " ") + word
    line += rng.choice(ENDS)
    if rng.random() < 0.1:
        place = rng.randrange(len(line))
        line = line[:place] + rng.choice(INVISIBLE) + line[place:]
    if rng.random() < 0.3:
        mark = rng.choice(EMPHASIS)
        line = mark * (rng.random() < 0.8) + line + mark * (rng.random() < 0.8)
    if rng.random() < 0.2:
        line = unicodedata.normalize("NFD", line)
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        line = rng.choice(BEFORE) + line
    return line + (rng.choice(AFTER) if rng.random() < 0.2 else "")
