#!/usr/bin/env bash
# Trains on a Cloud TPU: makes the VM if there is none, copies this checkout to its workers, and starts train_host.sh there.
#   scripts/tpu_vm.sh NAME ZONE TYPE BUCKET RUN [OPTION...]
#   scripts/tpu_vm.sh padir us-west4-a v5litepod-8 gs://mine wmt14_de_en
# RUN names a file of configs/run. Its data and its model directory are the folders of that file, in the bucket. OPTION... are
# further options of `padir train`; several workers need `--coordinator auto`. After a preemption the same command makes a new
# VM, and the run continues from the bucket. The last commit is copied, not later changes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($# < 5)); then
    echo "usage: scripts/tpu_vm.sh NAME ZONE TYPE BUCKET RUN [OPTION...]" >&2
    exit 2
fi
name="$1" zone="$2" type="$3" bucket="$4" config="configs/run/$5.gin"
shift 5
case "$type" in
    v2-* | v3-* | v4-*) image=tpu-ubuntu2204-base ;;
    v5litepod-*) image=v2-alpha-tpuv5-lite ;;
    v6e-*) image=v2-alpha-tpuv6e ;;
    *)
        echo "TYPE must begin with v2-, v3-, v4-, v5litepod- or v6e-, got $type" >&2
        exit 2
        ;;
esac

tpu() {
    gcloud compute tpus tpu-vm "$@" --zone "$zone"
}

in_bucket() { # the folder that the configuration names by a macro
    local folder
    folder="$(sed -n "s/^$1 = \"\(.*\)\"/\1/p" "$config")"
    [[ -n "$folder" ]] || { echo "$config must name $1: take a run such as wmt14_de_en" >&2; return 2; }
    echo "$bucket/$folder"
}
[[ -f "$config" ]] || { echo "RUN must name a file of configs/run, got $config" >&2; exit 2; }
data="$(in_bucket DATASET)"
model="$(in_bucket MODEL_DIR)"

state="$(tpu describe "$name" --format 'value(state)' 2>/dev/null || true)"
if [[ "$state" == PREEMPTED || "$state" == TERMINATED ]]; then
    tpu delete "$name" --quiet
    state=
fi
if [[ -z "$state" ]]; then
    tpu create "$name" --accelerator-type "$type" --version "$image" --spot
fi

folder="$(mktemp -d)"
trap 'rm -r "$folder"' EXIT
git archive --format=tar.gz --prefix=padir/ --output="$folder/padir.tar.gz" HEAD
tpu scp "$folder/padir.tar.gz" "$name:padir.tar.gz" --worker=all
printf -v options ' %q' --gin_file="$config" --data "$data" --model_dir "$model" "$@"
# A unit of systemd outlives the connection. When the VM stops, padir gets SIGTERM, and two minutes to save its checkpoint if
# the VM has them.
tpu ssh "$name" --worker=all --command="if systemctl is-active --quiet padir; then
    echo 'padir runs already on this worker: stop it with sudo systemctl stop padir, and call again' >&2; exit; fi
    tar xzf padir.tar.gz && sudo systemd-run --unit=padir --collect --uid=\$(id -u) --setenv=HOME=\$HOME \
    --working-directory=\$HOME/padir --property=TimeoutStopSec=120 --property=LimitMEMLOCK=infinity \
    \$HOME/padir/scripts/train_host.sh tpu$options"
echo "To read its log: gcloud compute tpus tpu-vm ssh $name --zone $zone --command='sudo journalctl -fu padir'"
echo "The VM costs money until you delete it: gcloud compute tpus tpu-vm delete $name --zone $zone"
