"""A tiny model, its server, and a model that waits for a gate."""

import pytest
from support.serving import Gated, engine_of, running
from support.tiny_model import random_translator

from padir.serve.messages import Limits


@pytest.fixture(scope="session")
def translator(tokenizer):
    return random_translator(tokenizer, max_length=8)  # few lengths are few programs


@pytest.fixture(scope="session")
def client(translator):
    limits = Limits(max_body=4_000, max_sentences=12, max_steps=8, max_lengths=4)
    with running(engine_of(translator, limits=limits)) as client:
        yield client


@pytest.fixture
def gated(translator):
    model = Gated(translator)
    yield model
    model.gate.set()
