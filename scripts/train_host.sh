#!/usr/bin/env bash
# Works on this host through the stages of a run of the paper: makes an environment, checks the devices and the bucket, and
# repeats what fails.
#   scripts/train_host.sh tpu|cuda13|cuda12 PLACE RUN STAGES [OPTION...]
#   scripts/train_host.sh cuda13 . wmt14_de_en teacher,distill,student,evaluate
#   scripts/train_host.sh show PLACE RUN STAGES [OPTION...]       # only prints the commands of the stages
# PLACE is a folder or a bucket (gs://BUCKET) with data/RUN; it gets data/RUN_distilled, runs/RUN and runs/RUN_ar. RUN is a
# student of configs/run. OPTION... are further options of `padir train`; every stage gets `--coordinator auto`. The same
# command goes on where an earlier one stopped: a stage that is done ends at once, an evaluation starts over.
# A run of days outlives its connection under tmux:
#   tmux new -s padir scripts/train_host.sh cuda13 . wmt14_de_en teacher,distill,student,evaluate \; set remain-on-exit on
# `tmux send-keys -t padir C-c` saves and stops; `tmux kill-session -t padir` comes before the next start.
# What padir refuses (2) and signals (129, 130, 143) end the script, and so do five failures in a row within an hour each; five
# failures to set up end it, too.
# PAUSE is the time between two tries in seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

refuse() {
    echo "$1" >&2
    exit 2
}
(($# >= 4)) || refuse "usage: scripts/train_host.sh tpu|cuda13|cuda12|show PLACE RUN STAGES [OPTION...]"
device="$1" given="$2" place="${2%/}" run="$3" stages="$4"
shift 4
[[ "$device" =~ ^(tpu|cuda13|cuda12|show)$ ]] || refuse "the first argument must be tpu, cuda13, cuda12 or show, got $device"
[[ -n "$place" && ("$place" != *:* || "$given" == gs://[!/]*) ]] || refuse "PLACE must be a folder or gs://BUCKET, got $given"
[[ -n "$stages" && "$stages," =~ ^(teacher,)?(distill,)?(student,)?(evaluate,)?$ ]] ||
    refuse "STAGES must be some of teacher,distill,student,evaluate in this order, got $stages"
[[ $# == 0 || "$1" == --* ]] || refuse "options of padir train must begin with --, got $1"
together="" options=" $* "
[[ "$options" != *" --coordinator auto "* ]] || together="--coordinator auto"
[[ "${options/ --coordinator auto / }" != *" --coordinator"* ]] || refuse "the stages take no --coordinator but 'auto' (two words)"

at_place() { # configuration, macro: the folder that the configuration names by a macro
    local folder
    folder="$(sed -n "s/^$2 = \"\(.*\)\"/\1/p" "configs/run/$1.gin" 2>/dev/null || true)"
    [[ -n "$folder" ]] || refuse "RUN must be a student of configs/run such as wmt14_de_en: configs/run/$1.gin names no $2"
    echo "$place/$folder"
}
corpus="$(at_place "${run}_ar" DATASET)"
teacher="$(at_place "${run}_ar" MODEL_DIR)"
distilled="$(at_place "$run" DATASET)"
student="$(at_place "$run" MODEL_DIR)"

work() { # stage, options of training: sets the command of a stage
    local stage="$1"
    shift
    case "$stage" in
        teacher) command=(train --gin_file="configs/run/${run}_ar.gin" --data "$corpus" --model_dir "$teacher" "$@") ;;
        student) command=(train --gin_file="configs/run/$run.gin" --data "$distilled" --model_dir "$student" "$@") ;;
        distill) command=(distill --model "$teacher" --data "$corpus" --output "$distilled"
            --beam 5 --batch_size 256 $together) ;;
        evaluate) command=(evaluate --model "padir=$student" "teacher=$teacher" --data "$corpus" --mode refine causal
            --num_steps 4 10 --num_lengths 5 --beam 5 --output "results/$run" $together) ;;
    esac
}
if [[ "$device" == show ]]; then
    for stage in ${stages//,/ }; do
        work "$stage" "$@"
        printf padir
        printf ' %q' "${command[@]}"
        echo
    done
    exit
fi

export PATH="$HOME/.local/bin:$PATH"
unset LD_LIBRARY_PATH # another CUDA would hide JAX's own libraries; tmux may bring the variable back
# The newest gcsfs would warn once a request that it does not know the kind of bucket.
export GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="${GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT:-false}"

setup() { # `set -e` does not work here: the caller tests the status
    if ! command -v uv >/dev/null; then
        curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh || return
    fi
    # The image of a TPU VM has Python 3.10, which is too old. The constraints are the versions that the tests passed with.
    uv venv --allow-existing --python 3.11 .venv &&
        uv pip install --python .venv/bin/python --constraint constraints-3.11.txt '.[gcs]' "jax[$device]" &&
        .venv/bin/python -c 'import jax
found = jax.devices()
print(found)
assert found[0].platform != "cpu", "JAX sees only the CPU"' || return
    [[ "$place" != gs://* ]] || .venv/bin/python -c 'import sys
from padir.storage.remote import RemoteFolder
RemoteFolder.at(sys.argv[1] + "/runs").check_writable()' "$place"
}
tries=1
until setup; do
    if ((tries++ == 5)); then
        echo "this host could not be set up in five tries: mend what the last lines say, and start this script again" >&2
        exit 1
    fi
    echo "setting up failed and is repeated" >&2
    sleep "${PAUSE:-10}"
done

# JAX takes three quarters of a GPU's memory by default. A stage that lost its GPU fails: it would go on on the CPU for weeks.
if [[ "$device" == cuda* ]]; then
    export JAX_PLATFORMS="${JAX_PLATFORMS:-cuda}" XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}"
fi
# The next machine takes compiled programs from the bucket. XLA's own caches for GPUs know no buckets.
if [[ "$place" == gs://* ]]; then
    export JAX_COMPILATION_CACHE_DIR="$place/jax_cache" JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES=none
fi

send_results() { # results are files of this machine; of several workers only the first has them
    local try
    trap - INT TERM # these end the tries
    for try in 1 2 3 4 5; do
        .venv/bin/python - "$place" "results/$run" <<'PYTHON' && return
import glob, os, sys
import fsspec
place, results = sys.argv[1:]
for path in {*glob.glob(f"{results}.*"), *glob.glob(f"{results}.*/**", recursive=True)}:
    if os.path.isfile(path):
        fsspec.filesystem("gs").put_file(path, f"{place}/{path}")
PYTHON
        sleep "${PAUSE:-10}"
    done
    echo "results/$run could not be sent to $place: copy it before you delete this machine" >&2
    exit 1
}

# These signals reach padir, too, and its exit status ends the loop. If one ended this script, systemd would send padir another,
# which interrupts the step. SIGHUP (the terminal is gone) reaches only this script and ends it: then padir gets it.
trap : INT TERM
for stage in ${stages//,/ }; do
    work "$stage" "$@"
    failures=0
    while true; do
        status=0 begun=$SECONDS
        echo "stage $stage: padir ${command[*]}" >&2
        .venv/bin/padir "${command[@]}" || status=$?
        case "$status" in
            0) break ;;
            2 | 129 | 130 | 143) exit "$status" ;;
        esac
        ((SECONDS - begun < 3600)) && failures=$((failures + 1)) || failures=0
        if ((failures == 5)); then
            echo "stage $stage failed five times in a row: mend the cause, and start this script again" >&2
            exit "$status"
        fi
        echo "stage $stage ended with status $status and is repeated" >&2
        sleep "${PAUSE:-10}"
    done
    [[ "$stage" != evaluate || "$place" != gs://* ]] || send_results
done
echo "all stages are done: $stages" >&2
