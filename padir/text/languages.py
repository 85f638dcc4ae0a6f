"""Language codes, parsed by langcodes: BCP 47 (zh-CN), ISO 639-3 (cmn) and FLORES (zho_Hans)."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from padir.errors import PadirError

if TYPE_CHECKING:
    from langcodes import Language

CHINESE, JAPANESE = frozenset({"Hans", "Hant", "Hani"}), frozenset({"Jpan", "Hrkt", "Hira", "Kana"})
KOREAN = frozenset({"Kore", "Hang"})
# Scripts whose text has no spaces between words.
UNSPACED_SCRIPTS = CHINESE | JAPANESE | {"Thai", "Laoo", "Khmr", "Mymr", "Tibt"}
# How Unicode's names of the letters of a script begin, where that is not the name of the script.
_LETTERS = {
    **dict.fromkeys(CHINESE, ("CJK",)),
    **dict.fromkeys(JAPANESE, ("CJK", "HIRAGANA", "KATAKANA")),
    **dict.fromkeys(KOREAN, ("HANGUL", "CJK")),
}
_NAMES = (
    "Latn LATIN Cyrl CYRILLIC Grek GREEK Arab ARABIC Hebr HEBREW Deva DEVANAGARI Beng BENGALI Guru GURMUKHI Gujr"
    " GUJARATI Orya ORIYA Taml TAMIL Telu TELUGU Knda KANNADA Mlym MALAYALAM Sinh SINHALA Thai THAI Laoo LAO Khmr KHMER"
    " Mymr MYANMAR Tibt TIBETAN Geor GEORGIAN Armn ARMENIAN Ethi ETHIOPIC"
).split()
_LETTERS |= {script: (name,) for script, name in zip(_NAMES[::2], _NAMES[1::2], strict=True)}


@functools.cache
def parsed(code: str) -> Language | None:
    """The parsed code with its likely script and region; None if it is no language code.

    >>> parsed("zho_Hans"), parsed("yue"), parsed("klingon")
    (Language.make(language='zh', script='Hans', territory='CN'), \
Language.make(language='yue', script='Hant', territory='HK'), None)
    """
    import langcodes  # takes long

    try:
        language = langcodes.Language.get(code)
    except ValueError:
        return None
    if not language.is_valid():
        return None
    return langcodes.Language.get(langcodes.standardize_tag(language, macro=True)).maximize()


def script(code: str) -> str:
    """The script of a code, by its ISO 15924 name; "" for an unknown language.

    >>> script("zh"), script("ja-Latn"), script("tha_Thai"), script("")
    ('Hans', 'Latn', 'Thai', '')
    """
    language = parsed(code)
    return (language and language.script) or ""


def primary(code: str) -> str:
    """The shortest code of a language, without script and region; other words come back as they are.

    >>> primary("zho_Hant"), primary("pt-BR"), primary("xx")
    ('zh', 'pt', 'xx')
    """
    language = parsed(code)
    return (language and language.language) or code


def same(one: str, other: str) -> bool:
    """True if two codes have the same language, script and region.

    >>> same("de", "deu_Latn"), same("zh", "zh-Hant")
    (True, False)
    """
    return one == other or (parsed(one) is not None and parsed(one) == parsed(other))


def closest(codes: Sequence[str], language: str) -> list[int]:
    """Places of the code itself; without it, of other codes of a language, or else of its other regions and scripts.

    >>> closest(["fr", "de-AT", "de_CH"], "de"), closest(["deu", "de-AT"], "de"), closest(["fr"], "de")
    ([1, 2], [0], [])
    """
    for fits in (str.__eq__, same, lambda one, other: primary(one) == primary(other)):
        if places := [i for i, code in enumerate(codes) if fits(code, language)]:
            return places
    return []


def distant(one: str, other: str) -> bool:
    """True for two codes of languages whose readers do not understand each other; False for other words.

    >>> distant("fr", "de"), distant("nb", "no"), distant("xx", "de")
    (True, False, False)
    """
    import langcodes

    return bool(parsed(one) and parsed(other)) and langcodes.tag_distance(one, other) >= 80


def pair_of(languages: str) -> tuple[str, str]:
    """The two codes of SRC-TGT, as they are written; either may have hyphens of its own.

    >>> pair_of("zh-CN-en"), pair_of("eng_Latn-zho_Hans")
    (('zh-CN', 'en'), ('eng_Latn', 'zho_Hans'))

    Raises:
      PadirError: these are not two codes of different languages, or they can be read in several ways.
    """
    parts = languages.split("-")
    ways = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    ways = [(source, target) for source, target in ways if parsed(source) and parsed(target)]
    unknown = [code for code in parts if not parsed(code)]
    if len(parts) == 2 and unknown:
        remedy = "write codes such as de, zh_CN or eng_Latn"
        raise PadirError(f"languages {languages!r}: {unknown[0]!r} is no code of a language", remedy=remedy)
    if len(ways) != 1 or same(*ways[0]):
        expected = "SRC-TGT, two codes of different languages such as de-en, zh_CN-en or eng_Latn-zho_Hans"
        remedy = "write regions and scripts with an underscore" if len(ways) > 1 else ""
        raise PadirError("languages", expected, languages, remedy)
    return ways[0]


@functools.cache
def _letter(character: str) -> str:
    """The first word of the name of a letter, such as "LATIN"; "" for another character."""
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def is_foreign(text: str, of_script: str) -> bool:
    """True if fewer than half of a text's letters belong to a script; False for text without letters.

    >>> is_foreign("Привет, world", "Latn"), is_foreign("2024!", "Latn"), is_foreign("我用 Python", "Hans")
    (True, False, True)
    """
    if of_script not in _LETTERS or (of_script == "Latn" and text.isascii()):
        return False
    letters = [name for name in map(_letter, text) if name]
    return 2 * sum(name in _LETTERS[of_script] for name in letters) < len(letters)


def lacks_spaces(texts: Iterable[str]) -> bool:
    """True if most letters belong to scripts without spaces, and the texts have few spaces.

    >>> lacks_spaces(["我们今天去公园"]), lacks_spaces(["我们 今天 去 公园"]), lacks_spaces(["we go"])
    (True, False, False)
    """
    names = {name for each in UNSPACED_SCRIPTS for name in _LETTERS[each]}
    letters = unspaced = words = 0
    for text in texts:
        if not text.isascii():
            for word in text.split():
                found = [name for name in map(_letter, word) if name]
                own = sum(name in names for name in found)
                letters += len(found)
                unspaced += own
                words += own > 0
        else:
            letters += sum(map(str.isalpha, text))
    return 2 * unspaced > letters and unspaced > 6 * words
