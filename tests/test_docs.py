"""Pages that show code or quote messages: the code runs, and the messages are those of the library."""

import dataclasses
import re
from pathlib import Path

import pytest
from support.tiny_model import random_translator

import padir
from padir.options import OPTIONS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module", autouse=True)
def pages():
    if not DOCS.exists():
        pytest.skip("needs a checkout with docs/")


def run_snippets(page, tokenizer, monkeypatch):
    """The names that a page's snippets make with a model like the one that comes with padir."""
    made = random_translator(tokenizer, dual=True)
    card = dataclasses.replace(made.card, decoding={"beam": 1, "num_lengths": 3})
    translator = padir.Translator(made.params, card, tokenizer)
    monkeypatch.setattr(padir.Translator, "load", lambda *_, **__: translator)
    names = {"__name__": "page"}
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def test_the_snippet_of_a_strategy_runs(tokenizer, monkeypatch, capsys):
    names = run_snippets("examples/strategies/README.md", tokenizer, monkeypatch)
    assert names["options"].mode == "refine" and len(capsys.readouterr().out.splitlines()) == 1


def test_the_snippets_of_the_cookbook_run(tokenizer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    load = padir.Translator.load
    names = run_snippets("docs/cookbook.md", tokenizer, monkeypatch)
    assert len(names["translations"]) == len(names["table"]["en"]) == 2
    assert names["refined"].passes_B.tolist() == [3, 3]
    saved = load("models/mine").decoding
    assert saved.length_min_p == 0.03 and saved.num_lengths == 5


def test_the_messages_are_those_of_the_library():
    source = "".join(path.read_text() for path in (ROOT / "padir").rglob("*.py"))
    # Texts that adjoin, over the end of a line, are one text; what a brace holds is shown as "...".
    text = re.sub(r"""["']\s+f?["']""", "", source)
    section = (DOCS / "help.md").read_text().split("\n## Messages and causes\n")[1].split("\n## ")[0]
    messages = re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)
    assert len(messages) >= 20
    parts = [part for message in messages for part in message.split("...")]
    assert [part for part in parts if part.strip() and part not in text] == []


def test_the_defaults_in_the_table_of_decoding_options():
    rows = re.findall(r"^\| `--(\w+) \w+` \|[^|]*? \(([\d.]+)\)", (DOCS / "decoding.md").read_text(), re.MULTILINE)
    assert len(rows) == 3 and rows == [(name, str(OPTIONS[name].default)) for name, _ in rows]


def test_links_between_pages_lead_to_pages():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text()):
            made = target in ("changelog.md", "commands.md", "api.md", "try/index.html")
            assert re.match(r"\w+:", target) or made or (page.parent / target).exists(), f"{page.name}: {target}"
