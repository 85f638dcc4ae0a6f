"""The queue: what runs together, in which order, what is left out, and how it ends."""

import random
import threading
import time
from concurrent.futures import CancelledError

import pytest

from padir.serve.batching import Batcher
from padir.serve.messages import Refused


class Runs:
    """What a batcher ran; it waits for the gate, and fails on what is bad."""

    def __init__(self):
        self.batches = []
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)
        self.gate.set()

    def __call__(self, key, works):
        self.entered.release()
        assert self.gate.wait(20)
        self.batches.append((key, works))
        if "bad" in works:
            raise ZeroDivisionError("bad")
        return [f"{key}{work}" for work in works]


@pytest.fixture
def runs():
    return Runs()


@pytest.fixture
def make(runs):
    made = []

    def batcher(max_batch=4, max_wait=0.0, max_queue=100, **more):
        sizes = more.pop("sizes", range(1, max_batch + 1))
        made.append(Batcher(runs, sizes=lambda key: sizes, max_wait=max_wait, max_queue=max_queue, **more))
        made[-1].start()
        return made[-1]

    yield batcher
    runs.gate.set()
    for each in made:
        each.close()


def busy(batcher, runs):
    """Lets the thread begin a batch that goes on until the gate opens."""
    runs.gate.clear()
    (future,) = batcher.submit([("busy", 0)])
    assert runs.entered.acquire(timeout=20)
    return future


def finished(runs, futures):
    """The batches after the busy one."""
    runs.gate.set()
    for future in futures:
        future.result(20)
    return runs.batches[1:]


def test_each_gets_its_own_result(make):
    futures = make().submit([("a", 1), ("b", 2), ("a", 3)])
    assert [future.result(20) for future in futures] == ["a1", "b2", "a3"]


def test_only_what_has_a_key_in_common_runs_together_and_the_oldest_first(make, runs):
    batcher = make()
    busy(batcher, runs)
    futures = batcher.submit([("b", 1), ("a", 2), ("b", 3)])
    assert finished(runs, futures) == [("b", [1, 3]), ("a", [2])]


@pytest.mark.parametrize(
    ("count", "expected"), [(4, [1] * 4), (5, [5]), (8, [8]), (14, [8, 6]), (16, [8, 8]), (17, [17]), (40, [32, 8])]
)
def test_a_batch_has_the_largest_size_that_is_filled_by_half(make, runs, count, expected):
    batcher = make(sizes=(1, 8, 32))
    busy(batcher, runs)
    futures = batcher.submit([("a", n) for n in range(count)])
    assert [len(works) for _, works in finished(runs, futures)] == expected


def test_a_lone_job_waits_for_others_and_a_full_batch_does_not(make, runs):
    now = [0.0]  # seconds, which pass only when the test says so
    batcher = make(max_batch=2, max_wait=0.01, clock=lambda: now[0])
    (lone,) = batcher.submit([("a", 1)])
    for n in range(2):
        for future in batcher.submit([("b", n), ("b", n + 1)]):
            future.result(20)
        assert not lone.done() and batcher.waiting == 1
    now[0] = 0.01
    assert lone.result(20) == "a1"
    assert runs.batches == [("b", [0, 1]), ("b", [1, 2]), ("a", [1])]


def test_who_comes_within_the_window_is_taken_along(make, runs):
    now = [0.0]
    batcher = make(max_wait=0.01, clock=lambda: now[0])
    first = batcher.submit([("a", 1)])
    now[0] = 0.009
    second = batcher.submit([("a", 2)])
    now[0] = 0.01
    assert [f.result(20) for f in first + second] == ["a1", "a2"]
    assert runs.batches == [("a", [1, 2])]


def test_what_is_cancelled_is_not_done(make, runs):
    batcher = make()
    busy(batcher, runs)
    kept, dropped, other = batcher.submit([("a", 1), ("a", 2), ("b", 3)])
    assert batcher.waiting == 3
    assert dropped.cancel() and other.cancel() and batcher.waiting == 1
    runs.gate.set()
    assert kept.result(20) == "a1"
    assert runs.batches[1:] == [("a", [1])]


def test_what_has_begun_cannot_be_cancelled(make, runs):
    future = busy(make(), runs)
    assert not future.cancel()
    runs.gate.set()
    assert future.result(20) == "busy0"


def test_the_queue_has_room_for_so_many_and_takes_all_or_none(make, runs):
    batcher = make(max_queue=5)
    busy(batcher, runs)
    first = batcher.submit([("a", 1), ("a", 2)])
    with pytest.raises(Refused, match="2 jobs wait, 2 of this client: 2 more"):
        batcher.submit([("a", 3), ("a", 4)])
    assert batcher.waiting == 2
    first[0].cancel()
    assert len(batcher.submit([("a", 3)])) == 1


class TestClients:
    def test_who_comes_late_shares_the_next_batches_with_a_crowd(self):
        """A thousand waiting jobs hold up another client's job for one batch, whichever its key; nor may it pass."""
        batches, late = [], []

        def run(key, works):
            batches.append((key, works))
            if len(batches) == 5:
                late.extend(batcher.submit([("other", "alone")], "second"))
                late.extend(batcher.submit([("a", "late")] * 8, "third"))
            return works

        batcher = Batcher(run, sizes=lambda key: (1, 2, 4), max_wait=0.0, max_queue=3_000, clock=lambda: 0.0)
        futures = batcher.submit([("a", "crowd")] * 1_000, "first")
        batcher.start()
        [future.result(20) for future in futures + late]
        batcher.close()
        assert ("other", ["alone"]) in batches[5:7]
        assert [works.count("late") for key, works in batches[5:10] if key == "a"] == [2, 2, 2, 2]

    def test_a_turn_comes_after_those_that_a_client_has(self, make, runs):
        batcher = make(max_batch=3)
        busy(batcher, runs)
        futures = batcher.submit([("a", n) for n in range(4)], "one")
        futures += batcher.submit([("a", n) for n in range(10, 12)], "two")
        futures += batcher.submit([("a", n) for n in range(20, 22)], "three")
        assert [works for _, works in finished(runs, futures)] == [[0, 10, 20], [1, 11, 21], [2, 3]]

    def test_who_comes_late_does_not_wait_for_turns_that_are_over(self, make, runs):
        batcher = make(max_batch=2)
        for n in range(5):
            batcher.submit([("a", n)], "one")[0].result(20)
        busy(batcher, runs)
        futures = batcher.submit([("a", "x"), ("a", "y")], "one") + batcher.submit([("a", "z")], "two")
        assert [works for _, works in finished(runs, futures)[-2:]] == [["x", "z"], ["y"]]

    def test_who_waits_for_a_window_saves_up_no_turns(self, make, runs):
        """While its job waits for others of the key, another client's batches run; its next jobs do not pass theirs."""
        batcher = make(max_batch=2, max_wait=60.0, clock=lambda: 0.0)
        batcher.submit([("b", 0)], "one")
        for n in range(3):
            [future.result(20) for future in batcher.submit([("a", n), ("a", n)], "two")]
        futures = batcher.submit([("a", "x")], "two") + batcher.submit([("a", each) for each in "uvw"], "one")
        [future.result(20) for future in futures]
        assert [works for _, works in runs.batches[3:]] == [["x", "u"], ["v", "w"]]

    def test_one_has_no_more_jobs_than_places_are_free(self, make, runs):
        batcher = make(max_queue=8)
        busy(batcher, runs)

        def taken(client):
            count = 0
            with pytest.raises(Refused):
                while futures := batcher.submit([("a", 0)], client):
                    last[client] = futures[0]
                    count += 1
            return count

        last = {}
        assert [taken(client) for client in ("one", "two", "three", "four")] == [4, 2, 1, 0]
        assert last["one"].cancel() and batcher.waiting == 6
        assert [taken(client) for client in ("one", "four")] == [0, 1]
        [future.cancel() for future in last.values()]
        assert set(batcher._clients) == {"one", "two"}  # who does not wait is forgotten


def test_an_error_is_of_the_one_that_made_it(make, runs):
    batcher = make()
    busy(batcher, runs)
    good, bad, better = batcher.submit([("a", 1), ("a", "bad"), ("a", 2)])
    runs.gate.set()
    assert good.result(20) == "a1" and better.result(20) == "a2"
    with pytest.raises(ZeroDivisionError):
        bad.result(20)
    assert batcher.submit([("a", 5)])[0].result(20) == "a5"


def test_too_few_results_are_an_error():
    batcher = Batcher(lambda key, works: works[1:], sizes=lambda key: (1, 2), max_wait=0.0, max_queue=9)
    batcher.start()
    with pytest.raises(ValueError):
        batcher.submit([("a", 1)])[0].result(20)
    batcher.close()


def test_the_end_waits_for_all_that_wait_and_takes_no_more(make, runs):
    batcher = make(max_wait=60.0)
    futures = batcher.submit([("a", 1), ("b", 2)])
    began = time.monotonic()
    batcher.close()
    assert [future.result(0) for future in futures] == ["a1", "b2"]
    assert time.monotonic() - began < 30
    with pytest.raises(Refused):
        batcher.submit([("a", 1)])
    batcher.close()


@pytest.mark.parametrize("closing", [False, True])
def test_while_a_batch_compiles_known_keys_are_answered_and_new_ones_wait(closing):
    """One program is compiled at a time, and nobody waits for the program of another client."""
    gates, begun, now = {"odd": threading.Event(), "new": threading.Event()}, [], []

    def run(key, works):
        begun.append(key)
        now.append(key)
        if key in gates:
            batcher.hand_over()
            batcher.hand_over()  # a second program of the batch
            assert gates[key].wait(20) and now.count(key) == 1
        now.remove(key)
        return works

    batcher = Batcher(run, sizes=lambda key: (1,), max_wait=0.0, max_queue=9)
    batcher.start()
    try:
        assert batcher.submit([("known", 1)])[0].result(20) == 1
        odd, again, new = batcher.submit([("odd", 2), ("odd", 3), ("new", 4)])
        for work in (5, 6):
            assert batcher.submit([("known", work)])[0].result(20) == work
        assert begun == ["known", "odd", "known", "known"] and not odd.done()
        if closing:
            closer = threading.Thread(target=batcher.close)
            closer.start()
        gates["odd"].set()
        assert (odd.result(20), again.result(20)) == (2, 3)
        gates["new"].set()
        assert new.result(20) == 4
    finally:
        [gate.set() for gate in gates.values()]
        batcher.close()
    assert not batcher.waiting and not [thread for thread in batcher._threads if thread.is_alive()]


def test_a_backlog_behind_a_program_has_not_saved_up_turns():
    """While a client's jobs wait for their program, another one's requests are answered; so they are afterwards."""
    gate, order = threading.Event(), []

    def run(key, works):
        if key == "slow" and not gate.is_set():
            batcher.hand_over()
            assert gate.wait(20)
        order.extend(works)
        if works == ["s1"]:
            late.extend(batcher.submit([("known", "late")], "two"))
        return works

    late = []
    batcher = Batcher(run, sizes=lambda key: (1,), max_wait=0.0, max_queue=100)
    batcher.start()
    batcher.submit([("known", "first")], "two")[0].result(20)
    backlog = batcher.submit([("slow", f"s{n}") for n in range(20)], "one")
    for n in range(50):
        batcher.submit([("known", n)], "two")[0].result(20)
    gate.set()
    [future.result(20) for future in backlog + late]
    batcher.close()
    assert order.index("late") <= order.index("s1") + 2


def test_an_end_without_a_beginning():
    Batcher(lambda key, works: works, sizes=lambda key: (1,), max_wait=0.0, max_queue=9).close()


def test_under_a_crowd_nothing_is_lost_or_mixed_up(make, runs):
    """Threads put jobs in and take some out; what is left is answered, and the count of waiting jobs ends at 0."""
    batcher = make(max_batch=5, max_wait=0.001, max_queue=10**6)
    wrong = []

    def client(seed):
        rng = random.Random(seed)
        for n in range(100):
            key = rng.choice("abc")
            (future,) = batcher.submit([(key, (seed, n))])
            if rng.random() < 0.3:
                future.cancel()
            try:
                if future.result(20) != f"{key}{(seed, n)}":
                    wrong.append((seed, n))
            except CancelledError:
                pass

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong and batcher.waiting == 0
    done = [work for _, works in runs.batches for work in works]
    assert len(done) == len(set(done)) and all(1 <= len(works) <= 5 for _, works in runs.batches)
