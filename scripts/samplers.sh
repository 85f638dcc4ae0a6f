#!/usr/bin/env bash
# Tests the prediction of docs/samplers.md: trains three small models on masks, and scores samplers on them.
#   scripts/samplers.sh    some 25 core-minutes of training and 10 of scoring; resumes if interrupted; writes results/samplers.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
make_environment

padir() { .venv/bin/python -m padir "$@"; }

if [[ ! -f data/toy_de_en/manifest.json ]]; then
    padir vocab --task toy_de_en --size 2400 --output data/toy.model
    padir prepare --task toy_de_en --vocab data/toy.model --output data/toy_de_en --set max_source_tokens=64 max_target_tokens=64
fi
for seed in 0 1 2; do
    run="runs/samplers/mdlm_$seed"
    [[ -f "$run/manifest.json" ]] ||
        padir train components_cpu objective/mdlm --model_dir "$run" --seed "$seed" --steps 4000
    # shellcheck disable=SC2046  # the names of the strategies are words
    [[ -f "$run.json" ]] ||
        padir evaluate --model "$run" --data data/toy_de_en --split test --num_steps 4 --num_lengths 1 --no-drop_repeats --batch_size 256 \
            --strategy $(.venv/bin/python scripts/samplers.py --names) --json "$run.json"
done
.venv/bin/python scripts/samplers.py
