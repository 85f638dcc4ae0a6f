#!/usr/bin/env bash
# Speed on one GPU at the paper's size in bfloat16, into results/speed_gpu_*: batches of 1 to 256, 30 and 100 tokens, and
# the lengths of real sentences, if a prepared folder is named. It needs an environment with padir and JAX for the GPU.
#   scripts/speed_gpu.sh [PREPARED_FOLDER]
# DRY_RUN=1 takes a tiny model and few sentences, to see that everything runs: 3 minutes on 2 CPU cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-python}"
output="${OUT:-results}"
models=(padir=configs/model/padir_6_6.gin ar=configs/model/ar_6_6.gin)
sizes=(1 8 32 64 128 256) sentences=256 repeats=5 vocabulary=32100
if [[ -n "${DRY_RUN:-}" ]]; then
    folder="$(mktemp -d)"
    cp configs/model/tiny.gin "$folder/padir.gin"
    { cat configs/model/tiny.gin; echo "ModelConfig.causal = True"; } > "$folder/ar.gin"
    models=(padir="$folder/padir.gin" ar="$folder/ar.gin")
    sizes=(1 4) sentences=4 repeats=1 vocabulary=1000
fi

measure() {  # NAME ARGUMENTS: four passes of padir with 1 and 5 hypotheses, against greedy and beam search
    local name="$1"
    shift
    "$python" -m padir benchmark --model "${models[@]}" --set vocab_size="$vocabulary" --strategy mask_predict \
        --precision bfloat16 --top_k 1 5 --beam 1 5 --set repeats="$repeats" --output "$output/speed_gpu_$name" "$@"
}

for tokens in 30 100; do
    measure "${tokens}_tokens" --set tokens="$tokens" --batch_size "${sizes[@]}" --set sentences="$sentences"
done
if [[ -n "${1:-}" ]]; then
    measure real_lengths --data "$1" --batch_size 1 --set sentences="$sentences"
    [[ -n "${DRY_RUN:-}" ]] || "$python" -m padir benchmark --steps 20 --gin_file=configs/run/speed.gin \
        --gin.ModelConfig.dtype='"bfloat16"' --gin.Batching.rows=256 --set vocab_size=32100 --data "$1" \
        --output "$output/speed_gpu_training"
fi
