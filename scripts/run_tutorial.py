"""Runs every command of docs/tutorial.md, and puts what it prints below it.

python scripts/run_tutorial.py --write    # without --write: prints the page

The commands run in the root of the checkout; own/, where they write, is removed first. About ten minutes on 2 cores.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(block: re.Match[str]) -> str:
    """A block with its commands run anew."""
    lines = []
    for command in re.findall(r"^\$ ((?:.*\\\n)*.*)$", block[1], re.MULTILINE):
        print(f"$ {command}", file=sys.stderr, flush=True)
        place = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = os.environ | {"PATH": place, "COLUMNS": "100"}
        done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, **outputs)
        if done.returncode:
            raise SystemExit(f"{command}\n{done.stdout}ended with status {done.returncode}")
        lines += [f"$ {command}", *done.stdout.rstrip().splitlines()]
    return "```console\n" + "".join(f"{line.rstrip()}\n" for line in lines) + "```"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into the page")
    shutil.rmtree(ROOT / "own", ignore_errors=True)
    page = BLOCK.sub(run, PAGE.read_text())
    if parser.parse_args().write:
        PAGE.write_text(page)
    else:
        print(page)
