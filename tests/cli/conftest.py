"""A tiny corpus, prepared and as text, and models of random weights, made once for all tests of the command line."""

import pytest
from support.small_corpus import Numbers
from support.tiny_model import prepared_numbers, random_model_dir


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A model of at most 8 tokens, a prepared folder and its text as files, of sentences of at most 5 words.

    The model has one bucket of lengths, and so few programs to compile.
    """
    folder = tmp_path_factory.mktemp("built")
    random_model_dir(folder, max_length=8)
    numbers = Numbers(longest=5)
    prepared_numbers(folder, numbers)
    for split in ("train", "validation"):
        for language, side in zip(("de", "en"), zip(*numbers.pairs(split), strict=True), strict=True):
            (folder / f"{split}.{language}").write_text("".join(line + "\n" for line in side))
    return folder


@pytest.fixture(scope="session")
def short(built):
    return built / "model"


@pytest.fixture(scope="session")
def long(built):
    """A folder with a model of at most 24 tokens."""
    return random_model_dir(built / "long").parent


@pytest.fixture(scope="session")
def causal(built):
    """An autoregressive model of at most 8 tokens."""
    return random_model_dir(built / "causal", causal=True, max_length=8)
