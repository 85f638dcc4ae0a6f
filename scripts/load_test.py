"""Load test of `padir serve`: requests per second that the server holds, and the latency of each.

    python scripts/load_test.py --output results/serve.json            # about 5 minutes; nothing else should run
    python scripts/load_test.py --dry_run                              # half a minute, to see that it works
    python scripts/load_test.py --serve="--num_lengths 5 --precision int8"   # another server
    python scripts/load_test.py --url http://127.0.0.1:8000/           # a server that runs already
    python scripts/load_test.py --worst                                # minutes: a greedy client beside a plain one

There are two kinds of load; each request has one sentence:

- clients: a number of clients, each of which asks again as soon as it has its answer: the server's highest throughput.
- arrivals: requests come at random times (a Poisson process) at a mean rate, without waiting for earlier answers. The
  latency counts from the time at which a request should have been sent, so that a server that falls behind shows it.

--worst measures something else: one client sends the most expensive requests of a kind in a loop. Another client, at
another address (127.0.0.2, which Linux has), asks for a plain sentence again and again. A row has the plain client's
latency and both clients' statuses.

A rate is held if every request is answered, and 99 of 100 within --within seconds. The load comes from this process, on
the same machine; `client_cpu` is the share of a core that this process takes.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import itertools
import random
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from padir.data.toy import ToyDeEn
from padir.errors import PadirError
from padir.measuring.benchmark.speed_report import environment, machine_line
from padir.reporting import tables
from padir.storage.files import write_json

PERCENTILES = (50, 90, 99)
PLAIN = "Wo ist der Bahnhof?"
EVERY = ["tags", "urls", "numbers"]
LONG = "Der alte Mann hat gestern mit seiner Frau den kleinen Hund im großen Garten gesehen. " * 4
# The most expensive requests of each kind: refused ones of the largest size, and accepted ones.
WORST: dict[str, dict[str, Any]] = {
    "nothing": {"text": ""},
    "nested tags": {"text": "<b>" * 5_000 + PLAIN + "</b>" * 5_000, "placeholders": EVERY},
    "unnested tags": {"text": "<b>a</b> " * 7_000, "placeholders": EVERY},
    "entities": {"text": "&amp; " * 10_000, "placeholders": EVERY},
    "numbers": {"text": "1 " * 32_000, "placeholders": EVERY},
    "long text": {"text": f"{PLAIN} " * 3_200, "split": True, "placeholders": EVERY},
    "quotes": {"text": "!'" * 32_000, "split": True, "placeholders": EVERY},
    "tags in a text": {"text": "{a} " * 16_000, "split": True, "placeholders": EVERY},
    "largest body": {"text": "a" * 65_000},
    "64 short": {"text": [PLAIN] * 64},
    "64 long": {"text": [LONG] * 64},
    "64 nested": {"text": ["<b>" * 45 + LONG + "</b>" * 45] * 64, "placeholders": EVERY},
    "capitals": {"text": ("A.B" * 3_000)[:8_192]},
    "64 of 16 passes": {"text": [LONG[:110]] * 64, "mode": "refine", "num_steps": 16, "num_lengths": 8},
    "64 of numbers": {"text": ["1 " * 90] * 64, "placeholders": EVERY},
}


class Load:
    """Sends sentences, and records latencies and statuses.

    Attributes:
      seconds: latency of each answered request.
      statuses: number of answers of each HTTP status; "error" for requests without an answer.
    """

    def __init__(self, client: httpx.AsyncClient, sentences: list[str], fields: dict[str, int]):
        self.client, self.fields = client, fields
        self.sentences = itertools.cycle(sentences)
        self.seconds: list[float] = []
        self.statuses: collections.Counter[str] = collections.Counter()

    async def ask(self, due: float) -> None:
        """Sends one request, which should have been sent at `due`."""
        try:
            response = await self.client.post("translate", json={"text": next(self.sentences), **self.fields})
        except httpx.HTTPError:
            self.statuses["error"] += 1
            return
        self.statuses[str(response.status_code)] += 1
        if response.status_code == 200:
            self.seconds.append(time.perf_counter() - due)

    async def clients(self, count: int, seconds: float) -> None:
        end = time.perf_counter() + seconds

        async def one() -> None:
            while time.perf_counter() < end:
                await self.ask(time.perf_counter())

        await asyncio.gather(*(one() for _ in range(count)))

    async def arrivals(self, rate: float, seconds: float, seed: int = 0) -> None:
        rng, begin, due = random.Random(seed), time.perf_counter(), 0.0
        tasks = []
        while (due := due + rng.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, begin + due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.ask(begin + due)))
        await asyncio.gather(*tasks)


async def measure(url: str, sentences: list[str], fields: dict[str, int], kind: str, size: float, seconds: float):
    """Runs one load and returns its row of metrics."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits) as client:
        load, before = Load(client, sentences, fields), await server_metrics(client)
        began, cpu = time.perf_counter(), time.process_time()
        await (load.clients(int(size), seconds) if kind == "clients" else load.arrivals(size, seconds))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        after = await server_metrics(client)
    change = {name: after[name] - before.get(name, 0.0) for name in after}
    batches = max(1.0, change["padir_batch_sentences_count"])
    row: dict[str, Any] = {
        "kind": kind,
        "size": size,
        "seconds": took,
        "requests": load.statuses.total(),
        "statuses": dict(load.statuses),
        "per_second": len(load.seconds) / took,
        "mean_batch": change["padir_batch_sentences_sum"] / batches,
        "batch_ms": 1000 * change["padir_batch_seconds_sum"] / batches,
        "client_cpu": cpu / took,
    }
    if load.seconds:
        row |= {f"p{q}_ms": 1000 * float(np.percentile(load.seconds, q)) for q in PERCENTILES}
        row["max_ms"] = 1000 * max(load.seconds)
    return row


async def beside(url: str, kind: str, requests: int, pause: float) -> dict[str, Any]:
    """Measures a plain client beside a client that sends the worst requests of a kind in a loop."""
    greedy: collections.Counter[int] = collections.Counter()
    statuses: collections.Counter[int] = collections.Counter()
    took: list[float] = []
    there = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with (
        httpx.AsyncClient(base_url=url, timeout=120.0) as plain,
        httpx.AsyncClient(base_url=url, timeout=120.0, transport=there) as other,
    ):

        async def loop() -> None:
            while True:
                greedy[(await other.post("translate", json=WORST[kind])).status_code] += 1

        await other.post("translate", json=WORST[kind])  # compiles what it needs
        worst = asyncio.create_task(loop())
        for _ in range(requests):
            await asyncio.sleep(pause)
            began = time.perf_counter()
            statuses[(await plain.post("translate", json={"text": PLAIN})).status_code] += 1
            took.append(time.perf_counter() - began)
        worst.cancel()
    p50, p95 = np.percentile(took, (50, 95))
    row = {"kind": kind, "p50_ms": 1000 * p50, "p95_ms": 1000 * p95, "max_ms": 1000 * max(took)}
    return row | {"statuses": dict(statuses), "greedy_statuses": dict(greedy)}


def show_worst(rows: list[dict[str, Any]], where: str) -> None:
    lines = []
    for row in rows:
        times = [f"{row[name]:.0f}" for name in ("p50_ms", "p95_ms", "max_ms")]
        lines.append([row["kind"], *times, str(row["statuses"]), str(row["greedy_statuses"])])
    tables.show(where, ["beside", "p50 ms", "p95 ms", "max ms", "statuses", "greedy client's"], lines)


async def server_metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """The server's Prometheus metrics by name."""
    text = (await client.get("metrics")).text
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


def held(row: dict[str, Any], within: float) -> bool:
    """True if all requests of a load were answered, and 99 of 100 within so many seconds."""
    return set(row["statuses"]) == {"200"} and row["p99_ms"] <= 1000 * within


@contextlib.contextmanager
def server(options: str) -> Iterator[str]:
    """Runs `padir serve` on a free port; yields its address when it is ready."""
    command = [sys.executable, "-m", "padir", "serve", "--port", "0", *shlex.split(options)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            began = time.perf_counter()
            lines = []
            for line in process.stderr:
                print(line, end="", file=sys.stderr)
                lines.append(line)
                if line.startswith("padir: ready at "):
                    print(f"ready after {time.perf_counter() - began:.1f} s", file=sys.stderr)
                    # Later messages must not fill the pipe.
                    threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sys.stderr), daemon=True).start()
                    yield line.split()[-1]
                    break
            else:
                raise PadirError(f"the server did not start: {lines[-1].strip() if lines else 'it said nothing'}")
        finally:
            process.terminate()


def sentences_of(path: str | None, count: int = 1000) -> list[str]:
    """The lines of a file, or sentences of the built-in corpus."""
    if path is None:
        return [source for source, _ in itertools.islice(ToyDeEn().pairs("test"), count)]
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise PadirError(f"{path} has no sentences: give a file with one a line")
    return lines


def show(rows: list[dict[str, Any]], within: float, where: str) -> None:
    def cell(row: dict[str, Any], name: str) -> str:
        return f"{row[name]:.1f}" if name in row else ""

    columns = ["load", "requests", "per second", "p50 ms", "p90 ms", "p99 ms", "mean batch", "client cpu", "held"]
    names = ("per_second", *(f"p{q}_ms" for q in PERCENTILES), "mean_batch", "client_cpu")
    lines = []
    for row in rows:
        load = f"{row['size']:g} {'clients' if row['kind'] == 'clients' else 'a second'}"
        is_held = ("yes" if held(row, within) else "no") if row["kind"] == "arrivals" else ""
        lines.append([load, f"{row['requests']:,}", *(cell(row, name) for name in names), is_held])
    tables.show(where, columns, lines)


def main() -> int:
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--url", help="address of a running server; default: start one")
    parser.add_argument("--serve", default="", metavar="OPTIONS", help="options of the server that is started")
    parser.add_argument("--input", metavar="FILE", help="sentences, one a line; default: those of the built-in corpus")
    parser.add_argument("--num_steps", type=int, help="option of every request; default: the server's")
    parser.add_argument("--num_lengths", type=int, help="option of every request; default: the server's")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64], help="numbers of clients")
    rates = [5, 10, 20, 30, 40, 60, 80]
    parser.add_argument("--rates", type=float, nargs="+", default=rates, help="arrivals per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each load")
    parser.add_argument("--within", type=float, default=1.0, help="seconds within which 99 of 100 answers must come")
    about = "measure a plain client beside a greedy one that sends these requests (all kinds)"
    parser.add_argument("--worst", nargs="*", choices=list(WORST), metavar="KIND", help=about)
    parser.add_argument("--requests", type=int, default=60, help="plain requests beside each kind of --worst")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two plain requests of --worst")
    parser.add_argument("--output", metavar="FILE", help="write the metrics as JSON")
    parser.add_argument("--dry_run", action="store_true", help="two short loads, to see that it works")
    args = parser.parse_args()
    if args.dry_run:
        args.clients, args.rates, args.seconds = [2], [2.0], 3.0
    fields = {name: getattr(args, name) for name in ("num_steps", "num_lengths") if getattr(args, name) is not None}
    sentences = sentences_of(args.input)
    loads = [("clients", size) for size in args.clients] + [("arrivals", size) for size in args.rates]
    rows: list[dict[str, Any]] = []
    with contextlib.nullcontext(args.url) if args.url else server(args.serve) as url:
        if args.worst is not None:
            for kind in args.worst or WORST:
                rows.append(asyncio.run(beside(url, kind, args.requests, args.pause)))
                print(f"beside {kind}: at most {rows[-1]['max_ms']:.0f} ms", file=sys.stderr)
            show_worst(rows, machine_line(environment()))
            if args.output:
                write_json(args.output, {"environment": environment(), "server": args.url or args.serve, "rows": rows})
            return 0
        # Programs of larger batches are compiled here, not in a timed load.
        for size in sorted({1, *args.clients}):
            asyncio.run(measure(url, sentences, fields, "clients", size, args.seconds / 4))
        for kind, size in loads:
            rows.append(asyncio.run(measure(url, sentences, fields, kind, size, args.seconds)))
            print(f"{kind} {size:g}: {rows[-1]['per_second']:.1f} requests a second", file=sys.stderr)
    where = environment()
    show(rows, args.within, machine_line(where))
    rates = [row["size"] for row in rows if row["kind"] == "arrivals" and held(row, args.within)]
    found = {
        "environment": where,
        "server": args.url or f"padir serve {args.serve}".strip(),
        "sentences": {"file": args.input or "toy_de_en test", "count": len(sentences), "fields": fields},
        "within_seconds": args.within,
        "held_per_second": max(rates, default=0),
        "rows": rows,
    }
    if args.output:
        write_json(args.output, found)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PadirError as error:
        print(f"load_test: error: {error}", file=sys.stderr)
        sys.exit(2)
