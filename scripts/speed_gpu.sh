#!/usr/bin/env bash
# Speed on one GPU at the paper's size in bfloat16, into results/speed_gpu_*: 30 and 100 tokens in batches of 1, 32 and 256
# and, if a prepared folder is named, training steps. It needs an environment with padir and JAX for the GPU.
#   scripts/speed_gpu.sh [PREPARED_FOLDER [OPTION...]]
#   TOKENS= scripts/speed_gpu.sh data/wmt14_de_en --gin.Batching.accumulation_steps=2    # training alone, on a GPU of 40 GB
# OPTION... are options of the training steps. TOKENS="30", SIZES="1 32" and TRAIN="wmt14_de_en" take a part of all this. Each
# part is a process of its own with its own results. OUT=my_results is the folder of results: the default replaces those of an
# H200, from which docs/devices.md has its tables. PYTHON=python3.11 is the interpreter. DRY_RUN=1 takes a tiny model and few sentences, to see that everything runs: 3 minutes on 2 CPU cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ -n "${DRY_RUN:-}" ]] || export JAX_PLATFORMS=cuda # without a GPU it would measure the CPU
python="${PYTHON:-python}"
output="${OUT:-results}"
models=(padir=configs/model/padir_6_6.gin ar=configs/model/ar_6_6.gin)
sizes="1 32 256" vocabulary=32100 steps=20 shrink=()
if [[ -n "${DRY_RUN:-}" ]]; then
    folder="$(mktemp -d)"
    cp configs/model/tiny.gin "$folder/padir.gin"
    { cat configs/model/tiny.gin; echo "ModelConfig.causal = True"; } > "$folder/ar.gin"
    models=(padir="$folder/padir.gin" ar="$folder/ar.gin")
    sizes="1 4" vocabulary=4000 steps=2
    for binding in ModelConfig.{width=64,heads=2,head_dim=32,mlp=128,encoder_layers=1,decoder_layers=1} Batching.rows=8; do
        shrink+=("--gin.$binding")
    done
fi

for length in ${TOKENS-30 100}; do
    for size in ${SIZES-$sizes}; do
        sentences=$((size < 64 ? 64 : size)) repeats=10
        [[ -z "${DRY_RUN:-}" ]] || sentences=$size repeats=1
        # Four passes of padir with 1 and 5 hypotheses, against greedy and beam search.
        "$python" -m padir benchmark --model "${models[@]}" --mode refine causal --strategy mask_predict --precision bfloat16 \
            --num_lengths 1 5 --beam 1 5 --batch_size "$size" --output "$output/speed_gpu_${length}_tokens_batch_$size" \
            --set vocab_size="$vocabulary" tokens="$length" sentences="$sentences" repeats="$repeats"
    done
done
if [[ -n "${1:-}" ]]; then
    # The plan of the student's step is 47.4 GB (docs/devices.md), and JAX takes three quarters of a GPU by default.
    export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}"
    for run in ${TRAIN-wmt14_de_en wmt14_de_en_ar}; do
        "$python" -m padir benchmark --steps "$steps" --gin_file="configs/run/$run.gin" "${shrink[@]}" --data "$1" \
            "${@:2}" --set vocab_size="$vocabulary" --output "$output/speed_gpu_training_$run"
    done
fi
