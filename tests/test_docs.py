"""The check of the built documentation notices links that lead nowhere and pages that load something from elsewhere."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "docs_check.py"
PAGE = '<h1 id="top">padir</h1><a href="{link}">x</a>'


@pytest.fixture(scope="module")
def check():
    if not SCRIPT.exists():
        pytest.skip("needs a checkout with scripts/")
    return runpy.run_path(str(SCRIPT))["check"]


@pytest.mark.parametrize(
    "link",
    [
        "#top",
        "other/#there",
        "other/index.html",
        "https://example.org/of-another-site",
        "https://github.com/padir/padir/blob/main/pyproject.toml",
    ],
)
def test_links_that_lead_somewhere_are_no_faults(check, tmp_path, link):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h2 id="there">x</h2>')
    (tmp_path / "index.html").write_text(PAGE.format(link=link))
    assert list(check(tmp_path)) == []


@pytest.mark.parametrize(
    "link", ["#nowhere", "missing/", "../outside.html", "https://github.com/padir/padir/blob/main/missing.py"]
)
def test_links_that_lead_nowhere_are_faults(check, tmp_path, link):
    (tmp_path / "index.html").write_text(PAGE.format(link=link))
    (fault,) = check(tmp_path)
    assert fault.startswith("index.html: ")


@pytest.mark.parametrize(
    "name, text",
    [
        ("index.html", '<script src="https://cdn.example/x.js"></script>'),
        ("index.html", '<link rel="stylesheet" href="//fonts.example/css">'),
        ("style.css", "@import 'https://fonts.example/css';"),
        ("style.css", "a { background: url(//cdn.example/x.png) }"),
    ],
)
def test_what_is_loaded_from_elsewhere_is_a_fault(check, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (fault,) = check(tmp_path)
    assert fault.startswith(f"{name}: loads ")
