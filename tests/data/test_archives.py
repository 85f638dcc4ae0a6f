"""Archives: members are read where they are regular files, and refused by name where they are not."""

import gzip
import io
import struct
import tarfile
import zipfile

import pytest
from support.refusals import refuses

from padir.data.archives import members
from padir.text.lines import lines_of

TEXT = b"eins\nzwei\n"
LINES = ["eins", "zwei"]


def tar(**fields):
    """A tar archive with a member x/a.de with these fields, and other files around it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("b.de", "x/a.de", "c.de"):
            member = tarfile.TarInfo(name)
            member.size = len(TEXT)
            for field, value in fields.items():
                if name == "x/a.de":
                    setattr(member, field, value)
            archive.addfile(member, io.BytesIO(TEXT))
    return gzip.compress(buffer.getvalue())


def sparse(number):
    """A GNU sparse member of `number` bytes of which one block is there."""
    header = bytearray(tarfile.TarInfo("a.de").tobuf(tarfile.GNU_FORMAT)[:512])
    header[124:136] = b"%011o\0" % 512
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (0, 512)
    header[483:495] = b"%011o\0" % (8**11 - 1) if number > 8**11 else b"%011o\0" % number
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return gzip.compress(bytes(header) + b"x" * 512 + bytes(1024))


def long_name(size):
    """A header with a name of `size` bytes, which tarfile would hold in memory."""
    member = tarfile.TarInfo("././@LongLink")
    member.type = tarfile.GNUTYPE_LONGNAME
    member.size = size
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(size), 1)


def zipped(*names, change=lambda content: content, attributes=0):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            info = zipfile.ZipInfo(name)
            info.external_attr = attributes << 16
            archive.writestr(info, TEXT * 50, zipfile.ZIP_DEFLATED)
    return change(buffer.getvalue())


def patched(signature, place, value):
    """A function that changes a number in every header of a zip archive with this signature."""

    def change(content):
        parts = content.split(signature)
        size = len(value)
        return parts[0] + b"".join(signature + part[:place] + value + part[place + size :] for part in parts[1:])

    return change


LOCAL, CENTRAL = b"PK\3\4", b"PK\1\2"


def both(local, central, value):
    return lambda content: patched(CENTRAL, central, value)(patched(LOCAL, local, value)(content))


def overlapping(content):
    """Lets the second member stand where the first does; their sizes are far beyond the file's."""
    return patched(CENTRAL, 16, struct.pack("<I", len(content)))(content)


REFUSED = {
    "a symbolic link": ("a.tgz", tar(type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0), "link"),
    "a hard link": ("a.tgz", tar(type=tarfile.LNKTYPE, linkname="b.de", size=0), "link"),
    "a link to itself": ("a.tgz", tar(type=tarfile.SYMTYPE, linkname="a.de", size=0), "link"),
    "a device": ("a.tgz", tar(type=tarfile.CHRTYPE, size=0), "link or a sparse file"),
    "a sparse member": ("a.tgz", sparse(1 << 40), "sparse"),
    "a huge name": ("a.tgz", long_name(1 << 24), "more than 8,388,608 bytes"),
    "a huge size": ("a.tgz", gzip.compress(tarfile.TarInfo("x").tobuf()[:124] + b"7" * 11), "not a whole tar file"),
    "no tar": ("a.tgz", gzip.compress(b"no tar" * 99), "not a whole tar file"),
    "a tar archive in it": ("a.tgz", gzip.compress(tar()), "not a whole tar file"),
    "a cut tar archive": ("a.tgz", tar()[:-9], "not a whole tar file"),
    "no archive": ("a.zip", b"PK\3\4" + bytes(99), "not a whole zip file"),
    "an encrypted member": ("a.zip", zipped("a.de", change=both(2, 4, b"\1\0")), "encrypted"),
    "AES": ("a.zip", zipped("a.de", change=both(4, 6, struct.pack("<H", 99))), "not a whole zip file"),
    "a link in a zip archive": ("a.zip", zipped("a.de", attributes=0o120777), "link"),
    "members that overlap": ("a.zip", zipped("1/a.de", "2/a.de", change=overlapping), "overlap"),
    "a size that is too small": ("a.zip", zipped("a.de", change=patched(CENTRAL, 20, b"\5\0\0\0")), "not a whole zip"),
    "a zip archive in it": ("a.zip", zipped("a.zip"), "has no a.de"),
}


def read(path):
    found = members(path, "a.de", "http://wmt")
    return [(name.partition(", ")[2], list(lines_of(content, name))) for name, content in found]


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_regular_member_is_refused(tmp_path, kind):
    name, content, words = REFUSED[kind]
    (tmp_path / name).write_bytes(content)
    refuses(read, words, tmp_path / name)


@pytest.mark.parametrize("name", ["/etc/a.de", "../../a.de", "x/../a.de"])
def test_places_of_members_are_only_names(tmp_path, name):
    (tmp_path / "a.tgz").write_bytes(tar(name=name))
    (tmp_path / "a.zip").write_bytes(zipped(name))
    assert read(tmp_path / "a.tgz") == [(name, LINES)]
    assert read(tmp_path / "a.zip") == [(name, LINES * 50)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tgz", "a.zip"]


def test_folders_and_other_links_are_left_out(tmp_path):
    for fields in ({"name": "b/x.de", "type": tarfile.SYMTYPE, "linkname": "y"}, {"type": tarfile.DIRTYPE}):
        (tmp_path / "a.tgz").write_bytes(tar(**fields, size=0))
        refuses(read, "has no a.de: fetch http://wmt", tmp_path / "a.tgz")
