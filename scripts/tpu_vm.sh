#!/usr/bin/env bash
# Works through a run of the paper on a Cloud TPU: makes the VM if there is none, copies this checkout to its workers, and
# starts train_host.sh there.
#   scripts/tpu_vm.sh NAME ZONE TYPE BUCKET RUN STAGES [OPTION...]
#   scripts/tpu_vm.sh padir us-west4-a v5litepod-8 gs://mine wmt14_de_en teacher,distill,student,evaluate
# train_host.sh explains RUN, STAGES and OPTION. CAPACITY says how the VM is made: `spot` (cheap; may be preempted at any
# time), `on-demand`, or `queued` (on demand; the script waits in the queue). A NAME that is in the queue stays `queued`. After
# a preemption the same command makes a new VM, and the run goes on from the bucket. The last commit is copied, not later
# changes. PAUSE is the time between two tries, and two looks at the queue, in seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($# < 6)); then
    echo "usage: scripts/tpu_vm.sh NAME ZONE TYPE BUCKET RUN STAGES [OPTION...]" >&2
    exit 2
fi
name="$1" zone="$2" type="$3" bucket="$4" run="$5" stages="$6" capacity="${CAPACITY:-spot}"
shift 6
case "$type" in
    v3-* | v4-*) image=tpu-ubuntu2204-base ;;
    v5litepod-*) image=v2-alpha-tpuv5-lite ;;
    v6e-*) image=v2-alpha-tpuv6e ;;
    v2-*)
        echo "TYPE must not be $type: a core of v2 has 8 GiB, and the paper's run may not fit (docs/running.md)" >&2
        exit 2
        ;;
    *)
        echo "TYPE must begin with v3-, v4-, v5litepod- or v6e-, got $type" >&2
        exit 2
        ;;
esac
[[ "$bucket" == gs://?* ]] || { echo "BUCKET must begin with gs://, got $bucket" >&2; exit 2; }
[[ "$capacity" =~ ^(spot|on-demand|queued)$ ]] || { echo "CAPACITY must be spot, on-demand or queued, got $capacity" >&2; exit 2; }
# What is wrong or missing is refused before anything costs money.
for program in gcloud git ssh; do
    command -v "$program" >/dev/null || { echo "scripts/tpu_vm.sh needs $program: install it" >&2; exit 2; }
done
commands="$(scripts/train_host.sh show "$bucket" "$run" "$stages" "$@")"
echo "$commands" >&2
if (($#)) && [[ "$*" != *--coordinator* && -x .venv/bin/padir ]]; then
    .venv/bin/padir train --print_config --gin_file="configs/run/$run.gin" "$@" >/dev/null
fi
for name_of_run in "$run" "${run}_ar"; do
    git cat-file -e "HEAD:configs/run/$name_of_run.gin" 2>/dev/null ||
        { echo "configs/run/$name_of_run.gin is not in the last commit, which the VM gets: commit it" >&2; exit 2; }
done
[[ "$commands" =~ --data\ ([^ ]+) ]] # of the first stage
gcloud storage ls "${BASH_REMATCH[1]}/manifest.json" >/dev/null ||
    {
        echo "found no ${BASH_REMATCH[1]}/manifest.json: give \`padir prepare\` this folder as --output, or see gcloud's message above" >&2
        exit 1
    }

if [[ "$commands" =~ ^padir\ (distill|evaluate)\ --model\ (padir=)?([^ ]+) ]]; then
    gcloud storage ls "${BASH_REMATCH[3]}/manifest.json" >/dev/null ||
        { echo "found no model in ${BASH_REMATCH[3]}: begin with the stage that trains it" >&2; exit 1; }
fi

tpu() {
    gcloud compute tpus tpu-vm "$@" --zone "$zone"
}

queue() {
    gcloud compute tpus queued-resources "$@" --zone "$zone"
}

state_of_vm() {
    tpu describe "$name" --format 'value(state)' 2>/dev/null || true
}

place_in_queue() { # the state of the entry; empty if there is none
    local answer
    answer="$(queue describe "$name" --format 'value(state.state)' 2>&1)" && echo "$answer" && return
    [[ "$answer" == *NOT_FOUND* ]] || { echo "the queue cannot be read: $answer" >&2; return 1; }
}

make_queued() { # returns when the queue has given the VM
    local place
    place="$(place_in_queue)"
    if [[ "$place" == FAILED || "$place" == SUSPENDED ]]; then # its VM is gone, and it will give no other
        queue delete "$name" --force --quiet
        place=""
    fi
    [[ -n "$place" ]] ||
        queue create "$name" --node-id "$name" --accelerator-type "$type" --runtime-version "$image" --scopes "$scopes"
    until [[ "$(state_of_vm)" == READY ]]; do
        place="$(place_in_queue)" || place=unknown
        if [[ "$place" == FAILED || "$place" == SUSPENDED ]]; then
            echo "the queue gives no VM ($place): see the message of gcloud compute tpus queued-resources describe $name" >&2
            exit 1
        fi
        echo "waiting in the queue: $place" >&2
        sleep "${PAUSE:-60}"
    done
}

place="$(place_in_queue)"
[[ -z "$place" ]] || capacity=queued
delete="tpu-vm delete $name --zone $zone"
[[ "$capacity" != queued ]] || delete="queued-resources delete $name --zone $zone --force"
folder="$(mktemp -d)"
# Google makes a VM, or queues for it, even if this script is stopped meanwhile.
trap 'rm -r "$folder"; echo "If $name exists, it costs money. To delete it: gcloud compute tpus $delete" >&2' EXIT
scopes=https://www.googleapis.com/auth/cloud-platform # the bucket's own rights decide
state="" made=""
read -r state made < <(tpu describe "$name" --format 'value(state,acceleratorType.basename())' 2>/dev/null) || true
[[ -z "$made" || "$made" == "$type" ]] || { echo "$name is a VM of TYPE $made, not $type: give another NAME, or delete it" >&2; exit 2; }
if [[ "$state" == PREEMPTED || "$state" == TERMINATED ]]; then
    tpu delete "$name" --quiet
    state=
elif [[ "$state" == STOPPED ]]; then
    tpu start "$name"
fi
if [[ -z "$state" ]]; then
    case "$capacity" in
        spot) tpu create "$name" --accelerator-type "$type" --version "$image" --scopes "$scopes" --spot ;;
        on-demand) tpu create "$name" --accelerator-type "$type" --version "$image" --scopes "$scopes" ;;
        queued) make_queued ;;
    esac
fi

git archive --format=tar.gz --prefix=padir/ --output="$folder/padir.tar.gz" HEAD
tries=1 # a new VM answers only after a while
until tpu scp "$folder/padir.tar.gz" "$name:padir.tar.gz" --worker=all; do
    ((tries++ < 5)) || { echo "$name does not answer (its state is $(state_of_vm)): call again, or delete it" >&2; exit 1; }
    sleep "${PAUSE:-30}"
done
printf -v options ' %q' "$bucket" "$run" "$stages" "$@"
# A unit of systemd outlives the connection. When the VM stops, padir gets SIGTERM, and two minutes to save its checkpoint if
# the VM has them.
tpu ssh "$name" --worker=all --command="if systemctl is-active --quiet padir; then
    echo 'padir runs already on this worker: stop it with sudo systemctl stop padir, and call again' >&2; exit 1; fi
    tar xzf padir.tar.gz && sudo systemd-run --unit=padir --collect --uid=\$(id -u) --setenv=HOME=\$HOME \
    --working-directory=\$HOME/padir --property=TimeoutStopSec=120 --property=LimitMEMLOCK=infinity \
    \$HOME/padir/scripts/train_host.sh tpu$options"
echo "To read its log: gcloud compute tpus tpu-vm ssh $name --zone $zone --command='sudo journalctl -n 200 -fu padir'"
