"""Tiny files of the WMT sets, laid out and packed as WMT distributes them, with text that is hard to keep."""

import io
import tarfile
import zipfile

from padir.data import recipes
from padir.data.recipes import PARTS, RECIPES

# Sentences of the foreign side and of English; one side of a pair is empty twice.
SIDES = (
    ("\ufeffder rote Zug", "", "drei\u2028vier\r", "R&amp;D\tneu", " ", "ü\x0b"),
    ("the red train", "no source", "three four", " R&D new ", "a blank", ""),
)
KEPT = [pair for pair in zip(*SIDES, strict=True) if all(pair)]
# Texts by part, in place of those of `_plain` below: the part, and what precedes _ch.txt or _cn.txt and _en.txt.
_BOOKS = {"casict2011": ("casict-A_ch", "casict-B_ch"), "datum2017": ("Book10_cn", "Book1_cn", "Book2_cn")}
_FOLDERS = {"training-parallel-ep-v8.tgz": "training-parallel-ep-v8/", "dev.tgz": "dev/"}
_FOLDERS |= {"UNv1.0.en-zh.tar.gz": "en-zh/", "training-parallel-commoncrawl.tgz": ""}


def _plain(number, side):
    return "".join(f"{line and str(number) + ' ' * (side == 0)}{line}\n" for line in SIDES[side])


def pairs_of(number):
    """The pairs of the text with this number."""
    return [(f"{number} {source}", f"{number}{target}") for source, target in KEPT]


def _sgm(side):
    segments = "".join(f'<seg id="{i}">{line.strip()}</seg>\n' for i, line in enumerate(SIDES[side]))
    return f'<srcset setid="t" srclang="any">\n<doc docid="a & b">\n<p>\n{segments}</p>\n</doc>\n</srcset>\n'


def _tmx(language):
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{i} A&amp;B</seg></tuv><tuv xml:lang="{language}"><seg>{i} ă</seg></tuv></tu>\n'
        for i in range(3)
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><body>{units}</body></tmx>\n'


def contents(year):
    """Texts by member, for each file of a year's parts, and the pairs of each part."""
    files, expected, number = {}, {}, 0
    for part in (part for parts in PARTS[year].values() for part in parts):
        members = files.setdefault(part.file, {})
        folder = _FOLDERS.get(part.file, "training/")
        if len(part.texts) == 1:
            members[part.texts[0]] = _tmx("ro")
            expected[part.name] = [(f"{i} ă", f"{i} A&B") for i in range(3)]
        elif part.texts[0].endswith(".sgm"):
            members.update({folder + text: _sgm(side) for side, text in enumerate(part.texts)})
            stripped = (tuple(line.strip() for line in pair) for pair in zip(*SIDES, strict=True))
            expected[part.name] = [pair for pair in stripped if all(pair)]
        else:
            texts = [tuple(folder + text for text in part.texts)]
            if "*" in part.texts[0]:
                names = _BOOKS.get(part.name, (f"{part.name}_ch",))
                texts = [(f"{part.name}/{name}.txt", f"{part.name}/{name[:-2]}en.txt") for name in names]
                members[f"__MACOSX/{part.name}/._{names[0]}.txt"] = "not a text"
            expected[part.name] = []
            for pair in texts:
                number += 1
                members.update({text: _plain(number, side) for side, text in enumerate(pair)})
                expected[part.name] += pairs_of(number)
    return files, expected


def write(folder, year, *, packed=True):
    """Writes the files of a year into a folder, and returns the pairs of each part."""
    files, expected = contents(year)
    folder.mkdir(exist_ok=True)
    for name, members in files.items():
        if not packed:
            for member, text in members.items():
                (folder / name / member).parent.mkdir(parents=True, exist_ok=True)
                (folder / name / member).write_bytes(text.encode())
        elif name.endswith(".zip"):
            with zipfile.ZipFile(folder / name, "w") as archive:
                for member, text in reversed(members.items()):
                    archive.writestr(member, text)
        elif name.endswith(".tmx.gz"):
            (folder / name.removesuffix(".gz")).write_text(*members.values(), encoding="utf-8")
        else:
            with tarfile.open(folder / name, "w:gz") as archive:
                for member, text in [*members.items(), ("README", "not a text")]:
                    info = tarfile.TarInfo(member)
                    info.size = len(text.encode())
                    archive.addfile(info, io.BytesIO(text.encode()))
    return expected


def expect(monkeypatch, year, expected):
    """Lets the recipes of a year expect the numbers of pairs of tiny files."""
    counts = {split: sum(len(expected[part.name]) for part in parts) for split, parts in PARTS[year].items()}
    monkeypatch.setitem(recipes.COUNTS, year, counts)


YEARS = tuple(PARTS)
assert {name.split("_")[0] for name in RECIPES} == {*YEARS}
