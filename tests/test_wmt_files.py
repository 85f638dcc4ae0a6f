"""`scripts/wmt_files.sh` with the true curl and a server on this machine."""

import hashlib
import http.server
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTENT = bytes(range(256)) * 400
if shutil.which("curl") is None:
    pytest.skip("needs curl", allow_module_level=True)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT as every file. Names say how it fails, as servers of WMT's files do."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if self.path.startswith("/missing"):
            return self.send_error(404)
        content = CONTENT[:100] if self.path.startswith("/short") else CONTENT
        if self.path.startswith("/whole"):  # it knows no ranges
            begin = 0
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        breaks = not any(path == self.path for path, _ in self.server.asked[:-1]) and self.path.startswith("/break")
        self.wfile.write(content[begin : begin + 5000] if breaks else content[begin:])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    server.asked = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def fetch(tmp_path, server, origins, *, sha256=None):
    """Calls the script in a clone whose table has files of these names."""
    script = tmp_path / "clone" / "scripts" / "wmt_files.sh"
    table = tmp_path / "clone" / "padir" / "data" / "wmt_parts.tsv"
    for path in (script, table):
        path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "scripts" / "wmt_files.sh", script)
    lines = [(ROOT / "padir" / "data" / "wmt_parts.tsv").read_text().splitlines()[0]]
    sha256 = sha256 or hashlib.sha256(CONTENT).hexdigest()
    for name in origins:
        origin = name if "://" in name else f"http://127.0.0.1:{server.server_port}/{name}"
        lines += [f"wmt14\ttrain\tpart\t{len(CONTENT)}\t{sha256}\t{origin}\tx.de x.en\tit is gone"] * 2
    lines += [f"wmt16\ttrain\tpart\t5\t{sha256}\thttp://127.0.0.1:{server.server_port}/other\tx\t-"]
    table.write_text("\n".join(lines) + "\n")
    command = [script, "wmt14_de_en", "files"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PAUSE": "0"}, capture_output=True, text=True
    )
    names = {path.name: path.stat().st_size for path in (tmp_path / "files").iterdir()}
    return done.returncode, done.stderr, names


def test_files_are_fetched_once(tmp_path, server):
    whole = {"a.tgz": len(CONTENT), "b.tgz": len(CONTENT)}
    status, _, names = fetch(tmp_path, server, ["a.tgz", "b.tgz"])
    assert (status, names) == (0, whole)
    assert [path for path, _ in server.asked] == ["/a.tgz", "/b.tgz"]
    assert fetch(tmp_path, server, ["a.tgz", "b.tgz"])[::2] == (0, whole) and len(server.asked) == 2


@pytest.mark.parametrize("begun", [0, 7000])
def test_a_broken_transfer_goes_on(tmp_path, server, begun):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "break.tgz.part").write_bytes(CONTENT[:begun])
    assert fetch(tmp_path, server, ["break.tgz"])[::2] == (0, {"break.tgz": len(CONTENT)})
    assert server.asked[-1] == ("/break.tgz", f"bytes={begun + 5000}-")


def test_a_server_without_ranges_sends_the_whole_file(tmp_path, server):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "whole.tgz.part").write_bytes(CONTENT[:7000])
    assert fetch(tmp_path, server, ["whole.tgz"])[::2] == (0, {"whole.tgz": len(CONTENT)})


def test_a_full_disk_ends_the_script(tmp_path, server):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.tgz.part").symlink_to("/dev/full")
    status, errors, names = fetch(tmp_path, server, ["a.tgz", "b.tgz"])
    assert status == 1 and "a.tgz.part cannot be written: is the disk full?" in errors
    assert len(server.asked) == 1 and "b.tgz" not in names


def test_what_cannot_be_fetched_is_named_and_the_rest_is_there(tmp_path, server):
    dead = "ftp://nlp.nju.edu.cn/parallel/neu2017.zip"
    status, errors, names = fetch(tmp_path, server, [dead, "missing.tgz", "short.tgz", "a.tgz"])
    assert (status, names) == (1, {"a.tgz": len(CONTENT)})
    assert f"neu2017.zip: it is gone ({dead} is dead)" in errors and "short.tgz: http" in errors
    assert f"missing.tgz: http://127.0.0.1:{server.server_port}/missing.tgz did not give it" in errors


def test_another_file_is_not_taken(tmp_path, server):
    status, errors, names = fetch(tmp_path, server, ["a.tgz"], sha256="0" * 64)
    assert (status, names) == (1, {}) and "another sum" in errors
    for mine in (b"mine", bytes(len(CONTENT))):  # of another size, and of the same
        (tmp_path / "files" / "b.tgz").write_bytes(mine)
        status, errors, names = fetch(tmp_path, server, ["b.tgz"])
        assert (status, names) == (1, {"b.tgz": len(mine)})
        assert f"b.tgz: the file here is another one ({len(mine)} bytes, expected {len(CONTENT)})" in errors


@pytest.mark.parametrize("arguments", [[], ["wmt14_de_en"], ["wmt15_de_en", "x"], ["wmt14_de_en", "x", "y"]])
def test_wrong_arguments_are_refused(tmp_path, arguments):
    command = [ROOT / "scripts" / "wmt_files.sh", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "usage" in done.stderr and not [*tmp_path.iterdir()]


def test_the_table_has_one_size_and_sum_for_each_file():
    lines = (ROOT / "padir" / "data" / "wmt_parts.tsv").read_text().splitlines()[1:]
    files = {tuple(line.split("\t")[3:6]) for line in lines}
    assert len(files) == len({origin for *_, origin in files}) == 14
    assert all(int(size) > 2e7 and len(bytes.fromhex(sha256)) == 32 for size, sha256, _ in files)
