"""Processes with many devices that all tests of this folder share."""

import functools

import pytest
from support.workers import Pair, Worker


@pytest.fixture(scope="session")
def worker():
    """Gives the process with so many devices, which starts when it is first asked for."""
    started = []

    @functools.cache
    def get(devices):
        started.append(Worker(devices))
        return started[-1]

    yield get
    for each in started:
        each.close()


@pytest.fixture(scope="session")
def pair():
    """Gives the two processes with so many devices each, which start when they are first asked for."""
    started = []

    @functools.cache
    def get(devices):
        started.append(Pair(devices))
        return started[-1]

    yield get
    for each in started:
        for one in each.workers:
            one.close()
