#!/usr/bin/env bash
# Trains every objective of configs/objective on the built-in corpus, with the same data, size and number of updates, then
# decodes each model with every strategy that applies to it. Tables go to results/toy_objectives.md, all results to
# runs/toy_objectives/table.json. STEPS sets the number of updates. Takes about two hours on 2 cores; resumes if interrupted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

padir() { .venv/bin/python -m padir "$@"; }

make_environment
steps="${STEPS:-3000}"
objectives=(padir one_stage rejecter sundae cmlm mdlm rdm smart glat disco autoregressive)
strategies=(padir mask_predict constant:share=0.2 sundae:share=0.5,temperature=0
    sundae:share=0.3,temperature=0,order=uncertain rejecter threshold entropy_bound renoise frechet factor p2 remdm:temperature=0
    gibbs_corrector:temperature=0 predictor_corrector block_gibbs:temperature=0,order=margin
    independent_parallel:temperature=0 easy_first)

if [[ ! -f data/toy_de_en/manifest.json ]]; then
    padir vocab --task toy_de_en --size 2400 --output data/toy.model
    padir prepare --task toy_de_en --vocab data/toy.model --output data/toy_de_en --max_source_tokens 64 --max_target_tokens 64
fi

models=()
for objective in "${objectives[@]}"; do
    padir train --gin_file=configs/run/toy_cpu.gin --gin_file="configs/objective/$objective.gin" \
        --model_dir "runs/toy_objectives/$objective" --gin.train.num_steps="$steps" --gin.Intervals.evaluate=0 \
        --gin.ModelConfig.length_unit=1 # one length is tried below, also for sundae
    models+=("$objective=runs/toy_objectives/$objective")
done

padir evaluate --model "${models[@]}" --data data/toy_de_en --strategy "${strategies[@]}" --num_steps 1 2 4 10 --top_k 1 \
    --output runs/toy_objectives/table
padir tables runs/toy_objectives/table.json --metrics toy_right toy_mixed bleu passes --across steps \
    --output results/toy_objectives.md
