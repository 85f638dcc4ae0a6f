#!/usr/bin/env bash
# Trains several objectives with equal data, size and number of updates, then decodes each model with every strategy that
# has a meaning for it. Tables go to results/.
#   scripts/objectives.sh toy [OBJECTIVE..]           the built-in corpus; all objectives, or those that are named
#   scripts/objectives.sh multi30k DIR KNOWN_WORDS..  Multi30k de-en, a teacher's translations, two objectives; DIR has its files
# KNOWN_WORDS are files of human English text; outputs with a word that they lack are counted. The teacher is `de_en_ar`,
# trained further on Multi30k. STEPS sets the number of updates (toy: 3,000, multi30k: 1,500). Takes hours on 2 cores; resumes if
# interrupted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

strategies=(padir mask_predict mask_predict:schedule=cosine mask_predict:schedule=geometric constant:share=0.2 sundae:share=0.5,temperature=0
    sundae:share=0.3,temperature=0,order=uncertain rejecter threshold entropy_bound renoise frechet factor p2 remdm:temperature=0
    block_gibbs:temperature=0,order=margin
    independent_parallel:temperature=0 easy_first)
models=()

padir() { .venv/bin/python -m padir "$@"; }

prepared() { [[ -f "data/$1/manifest.json" ]]; }

# train_objective RUNS NAME WORDS..: leaves the model RUNS/NAME.
train_objective() {
    local runs="$1" name="$2" files=()
    case "$name" in
        self_conditioning) files=(--gin_file=configs/objective/padir.gin --gin_file=configs/ablation/self_conditioning.gin) ;;
        *) files=("--gin_file=configs/objective/$name.gin") ;;
    esac
    padir train "--gin_file=$3" "${files[@]}" --model_dir "$runs/$name" --gin.train.num_steps="$steps" \
        --gin.Intervals.evaluate=0 "${@:4}"
    models+=("$name=$runs/$name")
}

# compare CORPUS STEPS METRICS WORDS..: writes results/CORPUS_strategies.md; STEPS and METRICS are lists of words.
compare() {
    local num_steps metrics
    read -ra num_steps <<<"$2"
    read -ra metrics <<<"$3"
    padir evaluate --model "${models[@]}" --strategy "${strategies[@]}" --num_steps "${num_steps[@]}" --top_k 1 \
        --batch_size 256 --output "runs/$1_objectives/table" "${@:4}"
    padir tables "runs/$1_objectives/table.json" --metric "${metrics[@]}" --set across=steps --output "results/$1_strategies.md"
}

toy() {
    local name steps="${STEPS:-3000}"
    (($#)) || set -- padir self_conditioning one_stage rejecter sundae cmlm mdlm rdm smart glat disco autoregressive
    if ! prepared toy_de_en; then
        padir vocab --task toy_de_en --size 2400 --output data/toy.model
        padir prepare --task toy_de_en --vocab data/toy.model --output data/toy_de_en --set max_source_tokens=64 max_target_tokens=64
    fi
    for name; do
        train_objective runs/toy_objectives "$name" configs/run/toy_cpu.gin --gin.ModelConfig.length_unit=1 # also for sundae
    done
    compare toy "1 2 4 10" "toy_right toy_mixed bleu passes" --data data/toy_de_en
}

multi30k() {
    local name steps="${STEPS:-1500}" data=data/multi30k_de_en_general teacher=runs/multi30k_objectives/teacher
    local words=("${@:2}")
    prepared multi30k_de_en_general || padir prepare --task multi30k_de_en --data_dir "$1" --output "$data" \
        --vocab padir/pretrained/de_en_ar/vocab.model --set max_source_tokens=120 max_target_tokens=120
    padir train --gin_file=configs/run/multi30k_de_en_ar_cpu.gin --data "$data" --model_dir "$teacher" \
        "--gin.train.start_from='de_en_ar'" --gin.train.num_steps=1200 --gin.ModelConfig.dropout_rate=0.1 \
        --gin.Cosine.peak=1e-2 --gin.Cosine.warmup_steps=50 --gin.Batching.row_length=80 --gin.Batching.rows=13
    prepared multi30k_de_en_general_distilled || padir distill --model "$teacher" --data "$data" \
        --output "${data}_distilled" --beam 5 --batch_size 128
    for name in padir mdlm; do
        train_objective runs/multi30k_objectives "$name" configs/run/multi30k_de_en_distilled_cpu.gin --data "${data}_distilled" \
            "--gin.train.start_from='$teacher'" --gin.Cosine.peak=1e-2 --gin.Cosine.warmup_steps=50 \
            --gin.Objective.length_weight=5.0
    done
    models+=("autoregressive=$teacher")
    compare multi30k "4 10" "bleu non_words stutter_before passes" --data "$data" --split validation --metric "${words[@]/#/known_words=}"
}

case "${1:-}" in
    toy | multi30k) make_environment && "$@" ;;
    *) echo "usage: scripts/objectives.sh toy [OBJECTIVE..] | multi30k DIR KNOWN_WORDS.." >&2 && exit 2 ;;
esac
