"""Measures how fast a host's loader makes batches: target tokens a second, by the wall clock and by the CPU's.

    python scripts/loader_rate.py --data data/mine --hosts 1 4 8 --json FILE

Of several hosts the first is timed: it plans each batch whole and reads its own rows, as in a training run of several
processes. The CPU time counts all threads, so that it hardly depends on other work on the machine.
"""

import argparse
import time

from padir.data.loader import make_loader
from padir.data.plan import Batching
from padir.measuring.benchmark.speed_report import environment
from padir.storage.files import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="a prepared folder")
    parser.add_argument("--rows", type=int, default=512, help="rows of a batch over all hosts (512)")
    parser.add_argument("--row_length", type=int, default=128, help="target positions of a row (128)")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1], metavar="N", help="numbers of hosts (1)")
    parser.add_argument("--batches", type=int, default=50, help="number of batches that are timed (50)")
    parser.add_argument("--json", metavar="FILE", help="write the times and the machine")
    args = parser.parse_args()
    batching = Batching(rows=args.rows, row_length=args.row_length)
    rows = [measured(args.data, batching, hosts, args.batches) for hosts in args.hosts]
    if args.json:
        write_json(
            args.json,
            {"environment": environment(), "rows_of_a_batch": args.rows, "row_length": args.row_length, "rows": rows},
        )


def measured(data: str, batching: Batching, hosts: int, batches: int) -> dict[str, float]:
    """Times the first of some hosts; prints and returns milliseconds and target tokens of its batches."""
    loader = make_loader(data, batching, shard=(0, hosts))
    for _ in range(6):  # more than the loader fetches ahead; the first one plans
        next(loader)
    wall, cpu, tokens = time.perf_counter(), time.process_time(), 0
    for _ in range(batches):
        tokens += int((next(loader)["target_segment_BL"] > 0).sum())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    row = {"hosts": hosts, "wall_ms": 1e3 * wall / batches, "cpu_ms": 1e3 * cpu / batches, "tokens": tokens / batches}
    print(f"the first of {hosts}: {row['tokens']:,.0f} target tokens a batch, {row['cpu_ms']:.1f} ms of CPU time")
    return row


if __name__ == "__main__":
    main()
