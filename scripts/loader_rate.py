"""Measure how fast one host's loader makes batches: target tokens a second, by the wall clock and by the CPU's.

    python scripts/loader_rate.py --data data/mine --rows 256 --row_length 256
    python scripts/loader_rate.py --data data/mine --rows 256 --row_length 256 --shard 0 32    # one of 32 hosts

With --shard each batch is planned whole and only this host's rows are read, as in a training run of several processes.
The CPU time counts all threads, so that it hardly depends on other work on the machine.
"""

import argparse
import time

import numpy as np

from padir.data.loader import make_loader
from padir.data.plan import Batching


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR", help="a prepared folder")
    parser.add_argument("--rows", type=int, default=256, help="rows of a batch over all hosts (256)")
    parser.add_argument("--row_length", type=int, default=256, help="target positions of a row (256)")
    parser.add_argument("--shard", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="host I of N (0 1)")
    parser.add_argument("--batches", type=int, default=50, help="number of batches that are timed (50)")
    args = parser.parse_args()
    loader = make_loader(args.data, Batching(rows=args.rows, row_length=args.row_length), shard=tuple(args.shard))
    for _ in range(6):  # more than the loader fetches ahead; the first one plans
        next(loader)
    wall, cpu, tokens = time.perf_counter(), time.process_time(), np.zeros(2)
    for _ in range(args.batches):
        arrays = next(loader)
        tokens += (arrays["source_segment_BS"] > 0).sum(), (arrays["target_segment_BL"] > 0).sum()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    source, target = tokens / args.batches
    print(f"host {args.shard[0]} of {args.shard[1]}: {source:,.0f} source and {target:,.0f} target tokens a batch")
    for name, seconds in (("wall clock", wall), ("CPU", cpu)):
        each = seconds / args.batches
        print(f"{name}: {1e3 * each:.1f} ms a batch, {target / each:,.0f} target tokens a second")


if __name__ == "__main__":
    main()
