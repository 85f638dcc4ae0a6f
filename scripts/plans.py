"""Prints XLA's plan of a training step's memory on devices that need not be here, without compiling machine code.

    python scripts/plans.py [--json FILE] CONFIG TOPOLOGY [OPTION ..]

CONFIG is a file such as configs/run/wmt14_de_en.gin, TOPOLOGY a name such as v3:2x2 or h100:1, and OPTIONs are those of
`padir compile`. The bytes are for each device, with arguments and without the program's code; beside them stand the
bytes that devices exchange in a step. `--json` adds the plan to a file (results/plans.json makes a table of
docs/devices.md).
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from padir.measuring.compilation.program_text import ProgramText
from padir.storage.files import write_json

DUMP = "--xla_dump_to={} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*on_mesh.*"  # the training step
REPORT = "*memory-usage-report.txt"
ACCUMULATION = re.compile(r"Batching\.accumulation_steps=(\d+)")


def planned(folder: Path, accumulation_steps: int) -> dict[str, object]:
    """Bytes of the plan and of exchanged arrays in a folder that XLA has dumped to; an accumulation step is a trip."""
    (report,) = folder.glob(REPORT)
    total = re.search(r"Total bytes(?: used)?: (\d+)", report.read_text())
    if total is None:
        sys.exit(f"plans: no total in {report.name}: XLA writes it in another form")
    (program,) = folder.glob("*after_optimizations.txt")
    return {"bytes": int(total[1]), "exchanged": ProgramText(program.read_text()).collective_bytes(accumulation_steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("config")
    parser.add_argument("topology")
    parser.add_argument("options", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    options = args.options
    command = [
        "padir",
        "compile",
        "--topology",
        args.topology,
        f"--gin_file={args.config}",
        "--what",
        "train",
        *options,
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flags = f"{os.environ.get('XLA_FLAGS', '')} {DUMP.format(folder)}"
        began = time.monotonic()
        running = subprocess.Popen(
            [sys.executable, "-m", *command], env=os.environ | {"XLA_FLAGS": flags}, start_new_session=True
        )
        try:
            while running.poll() is None and not [*folder.glob(REPORT)]:
                time.sleep(1)
            time.sleep(1)  # the report is written at once, the program's text shortly before
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        if not [*folder.glob(REPORT)]:
            sys.exit(f"plans: {' '.join(command)} ended with status {running.returncode} and without a plan")
        steps = ACCUMULATION.search(" ".join(options))
        plan = {
            "config": Path(args.config).stem,
            "topology": args.topology,
            "options": options,
            **planned(folder, int(steps[1]) if steps else 1),
        }
    exchanged = ", ".join(f"{size / 1e6:,.0f} MB {kind}" for kind, size in plan["exchanged"].items() if size >= 1e6)
    print(f"{plan['bytes'] / 1e9:.1f} GB ({time.monotonic() - began:.0f} s); exchanged: {exchanged or 'nothing'}")
    if args.json:
        known = json.loads(args.json.read_text()) if args.json.exists() else []
        keys = ("config", "topology", "options")
        kept = [each for each in known if [each[key] for key in keys] != [plan[key] for key in keys]]
        write_json(args.json, [*kept, plan])


if __name__ == "__main__":
    main()
