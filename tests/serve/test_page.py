"""The page: it needs nothing else, its policy lets nothing else in, and its settings are data."""

import base64
import hashlib
import html.parser
import json
import re

import pytest
from support.serving import engine_of, running
from support.tiny_model import random_translator

from padir.serve.app import CONTENT_SECURITY_POLICY, page, settings_of


class Page(html.parser.HTMLParser):
    """A page's tags, ids, and the texts of its style, scripts and settings."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self.texts = [], None, {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        self.texts[self.inside] = self.texts.get(self.inside, "") + data

    def settings(self):
        return json.loads(self.texts["settings"])


def test_the_page_fetches_nothing_and_its_policy_forbids_it(translator):
    with running(engine_of(translator)) as client:
        response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert policy == CONTENT_SECURITY_POLICY and "unsafe" not in policy and policy.startswith("default-src 'none'; ")
    found = Page(response.text)
    for directive in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(found.texts[directive].encode()).digest()).decode()
        assert f"{directive}-src 'sha256-{digest}'" in policy
    links = [value for _, attrs in found.tags for name, value in attrs.items() if name in ("src", "href", "action")]
    assert links == ["data:,"]
    # The policy would let neither run, nor be applied.
    assert not [n for _, attrs in found.tags for n in attrs if n.startswith("on") or n == "style"]
    assert not re.search(r"url\(|@import|https?:", found.texts["style"])
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", found.texts["script"])


def test_every_part_that_the_script_names_is_there_once(translator):
    found = Page(page(settings_of(engine_of(translator), "tiny")))
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    named = set(re.findall(r'\$\("(\w+)"\)|getElementById\("(\w+)"\)', found.texts["script"]))
    assert named and {a or b for a, b in named} <= set(ids) and len(ids) == len(set(ids))
    labelled = {attrs["for"] for tag, attrs in found.tags if tag == "label" and "for" in attrs}
    assert "text" in labelled


@pytest.mark.parametrize("name", ["</script><script>alert(1)</script>", "<!--<script>", '"&amp;%STYLE%'])
def test_a_model_may_have_any_name(translator, name):
    plain, odd = (Page(page(settings_of(engine_of(translator), each))) for each in ("tiny", name))
    assert odd.tags == plain.tags and odd.settings()["model"] == name
    assert odd.texts["title"] == f"padir: {name}, step by step"


def test_settings_are_the_models(tokenizer, translator):
    tiny = settings_of(engine_of(translator), "tiny")
    assert (tiny["source"], tiny["target"], tiny["causal"]) == ("de", "en", False)
    assert (tiny["num_steps"], tiny["hypotheses"], tiny["max_steps"], tiny["max_lengths"]) == (4, 1, 16, 8)
    assert len(tiny["examples"]) == 3 and tiny["blank"] is None
    ctc = settings_of(engine_of(random_translator(tokenizer, readout="ctc")), "tiny")
    assert (tiny["several"], ctc["several"]) == ("num_lengths", "prefix_beam")
    assert ctc["max_lengths"] == 8 and ctc["blank"] == "<extra_id_1>"
    causal = settings_of(engine_of(random_translator(tokenizer, causal=True)), "tiny")
    assert causal["causal"] and causal["num_steps"] is None
