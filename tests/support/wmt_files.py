"""Tiny files of the WMT sets, laid out and packed as WMT distributes them, with text that is hard to keep."""

import gzip
import io
import tarfile
import zipfile

from padir.data import recipes
from padir.data.recipes import PARTS

# Sentences of the foreign side and of English; one side is empty in two pairs.
SIDES = (
    ("\ufeffder rote Zug", "", "drei\u2028vier\r", "R&amp;D\tneu", " ", "ü\x0b"),
    ("the red train", "no source", "three four", " R&D new ", "a blank", ""),
)
SEGMENTS = tuple(tuple(line.strip() for line in side) for side in SIDES)
UNITS = [(f"{i} ă", f"{i} A&B") for i in range(3)]
_BOOKS = {"casict2011": ("casict-A_ch", "casict-B_ch"), "datum2017": ("Book10_cn", "Book1_cn", "Book2_cn")}
_FOLDERS = {"training-parallel-ep-v8.tgz": "training-parallel-ep-v8/", "dev.tgz": "dev/"}
_FOLDERS |= {"UNv1.0.en-zh.tar.gz": "en-zh/", "training-parallel-commoncrawl.tgz": ""}


def _sgm(side):
    segments = "".join(f'<seg id="{i}">{line}</seg>\n' for i, line in enumerate(SEGMENTS[side]))
    return f'<srcset setid="t" srclang="any">\n<doc docid="a & b">\n<p>\n{segments}</p>\n</doc>\n</srcset>\n'


def _tmx():
    unit = '<tu><tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="ro"><seg>{}</seg></tuv></tu>\n'
    units = "".join(unit.format(english.replace("&", "&amp;"), text) for text, english in UNITS)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4"><body>{units}</body></tmx>\n'


def _content(part):
    """Texts of a part by the names of its members, and its pairs."""
    folder = _FOLDERS.get(part.file, "training/")
    if len(part.texts) == 1:
        return {part.texts[0]: _tmx()}, UNITS
    names = [[folder + text for text in part.texts]]
    if part.texts[0].endswith(".sgm"):
        texts, pairs = {name: _sgm(side) for side, name in enumerate(names[0])}, zip(*SEGMENTS, strict=True)
        return texts, [pair for pair in pairs if all(pair)]
    if "*" in part.texts[0]:
        books = _BOOKS.get(part.name, (f"{part.name}_ch",))
        names = [[f"{part.name}/{name}.txt", f"{part.name}/{name[:-2]}en.txt"] for name in books]
    texts, pairs = {}, []
    for number, sides in enumerate(names):
        numbered = [[line and f"{number}{line}" for line in side] for side in SIDES]
        texts.update({name: "\n".join(lines) + "\n" for name, lines in zip(sides, numbered, strict=True)})
        pairs += [pair for pair in zip(*numbered, strict=True) if all(pair)]
    return texts, pairs


def write(monkeypatch, folder, year, *, packed=True):
    """Writes the files of a year and returns the pairs of each part; recipes then expect these sizes and numbers."""
    files, pairs = {}, {}
    for part in (part for parts in PARTS[year].values() for part in parts):
        texts, pairs[part.name] = _content(part)
        files.setdefault(part.file, {}).update(texts)
    for name, texts in files.items():
        members = {member: text.encode() for member, text in texts.items()} | {"__MACOSX/dev/._newstest2013.de": b"no"}
        (folder / name).parent.mkdir(exist_ok=True)
        if packed and name.endswith(".tmx.gz"):
            (folder / name).write_bytes(gzip.compress(members["en-ro.tmx"]))
        elif not packed:
            for member, text in members.items():
                (folder / name / member).parent.mkdir(parents=True, exist_ok=True)
                (folder / name / member).write_bytes(text)
        elif name.endswith(".zip"):
            with zipfile.ZipFile(folder / name, "w") as archive:
                for member, text in reversed(members.items()):
                    archive.writestr(member, text)
        else:
            with tarfile.open(folder / name, "w:gz") as archive:
                for member, text in reversed(members.items()):
                    info = tarfile.TarInfo(member)
                    info.size = len(text)
                    archive.addfile(info, io.BytesIO(text))
    for split, parts in PARTS[year].items() if packed else ():
        sized = [part._replace(size=(folder / part.file).stat().st_size) for part in parts]
        monkeypatch.setitem(PARTS[year], split, sized)
    counts = {split: sum(len(pairs[part.name]) for part in parts) for split, parts in PARTS[year].items()}
    monkeypatch.setitem(recipes.COUNTS, year, counts)
    return pairs
