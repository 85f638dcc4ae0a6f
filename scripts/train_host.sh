#!/usr/bin/env bash
# Trains on this host until the run has ended: makes an environment, checks the devices, and repeats `padir train` if it fails.
#   scripts/train_host.sh tpu|cuda13|cuda12 OPTION...
# OPTION... are the options of `padir train`. A run of days outlives its connection under tmux:
#   tmux new -s padir scripts/train_host.sh cuda13 --gin_file=configs/run/wmt14_de_en.gin \; set remain-on-exit on
# A run that has ended (status 0), wrong options (2) and signals (129, 130, 143) are not repeated, nor is a run that fails five
# times in a row within ten minutes each. PAUSE is the time between two tries in seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
device="${1:?tpu, cuda13 or cuda12}"
shift

export PATH="$HOME/.local/bin:$PATH"
if ! command -v uv >/dev/null; then
    curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
fi
# The image of a TPU VM has Python 3.10, which is too old. The constraints are the versions that the tests passed with.
uv venv --allow-existing --python 3.11 .venv
uv pip install --python .venv/bin/python --constraint constraints-3.11.txt '.[gcs]' "jax[$device]"
.venv/bin/python -c 'import jax; found = jax.devices(); print(found); assert found[0].platform != "cpu", "JAX sees only the CPU"'

# JAX takes three quarters of a GPU's memory by default, and the paper's run on one H100 needs all of that.
[[ "$device" == tpu ]] || export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}"

# These signals reach padir, too, and its exit status ends the loop. If one ended this script, systemd or tmux would send padir
# another, which interrupts the checkpoint.
trap : INT TERM HUP
failures=0
while true; do
    status=0 begun=$SECONDS
    .venv/bin/padir train "$@" || status=$?
    case "$status" in
        0 | 2 | 129 | 130 | 143) exit "$status" ;;
    esac
    ((SECONDS - begun < 600)) && failures=$((failures + 1)) || failures=0
    if ((failures == 5)); then
        echo "padir train failed five times in a row: mend the cause, and start this script again" >&2
        exit "$status"
    fi
    echo "padir train ended with status $status and is repeated" >&2
    sleep "${PAUSE:-10}"
done
