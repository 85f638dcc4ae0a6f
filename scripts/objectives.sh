#!/usr/bin/env bash
# Trains models on the built-in corpus (toy_de_en) on CPU cores. Takes hours; resumes if interrupted.
#   scripts/objectives.sh toy [OBJECTIVE..]   equal data, size and updates (STEPS, 3,000) for all objectives, or those that are named
#   scripts/objectives.sh components          the paper's components: eight systems with three seeds each, and several strategies;
#                                             writes results/components.json, with the core-minutes of each run
#   scripts/objectives.sh samplers            the prediction of docs/samplers.md: three models on masks, on which samplers are scored; some
#                                             25 core-minutes of training and 10 of scoring; writes results/samplers.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

TIMEFORMAT='%U %S' # of `time`: the process time in seconds

padir() { .venv/bin/python -m padir "$@"; }

prepared() { [[ -f "data/$1/manifest.json" ]]; }

toy_corpus() {
    prepared toy_de_en && return
    padir vocab --task toy_de_en --size 2400 --output data/toy.model
    padir prepare --task toy_de_en --vocab data/toy.model --output data/toy_de_en --set max_source_tokens=64 max_target_tokens=64
}

# component NAME SEED STEPS WORDS..: trains and scores runs/components/NAME_SEED; its process time, in seconds, goes to NAME_SEED.seconds,
# the commit and the machine on which it began to NAME_SEED.origin.
component() {
    local run="runs/components/$1_$2"
    mkdir -p runs/components
    [[ -f "$run.origin" ]] || { git rev-parse --short HEAD; grep -m 1 "^model name" /proc/cpuinfo | cut -d: -f2; } >"$run.origin"
    if [[ ! -f "$run/manifest.json" ]]; then
        { time padir train components_cpu "${@:4}" --model_dir "$run" --seed "$2" --steps "$3" \
            >"$run.log" 2>&1; } 2>>"$run.seconds"
    fi
    [[ "$1" == teacher || -f "$run.json" ]] ||
        scored "$run" test padir "$run.json"
}

# scored RUN SPLIT STRATEGIES FILE: writes the scores of a run's model with a list of strategies to FILE.
scored() {
    padir evaluate --model "$1" --data data/toy_de_en --split "$2" --strategy $3 --num_steps 1 4 10 --num_lengths 1 --drop_repeats \
        --batch_size 256 --json "$4"
}

components() {
    local name split seed runs=runs/components distilled=data/toy_de_en_distilled
    toy_corpus
    for seed in 0 1 2; do
        component padir $seed 1500
        component unmasking_01 $seed 1500 ablation/unmasking_01
        component unmasking_09 $seed 1500 ablation/unmasking_09
        component masks $seed 1500 '--gin.Objective.corruption=@Mask()'
        component one_stage $seed 2250 ablation/stages_1
        component no_positions $seed 1650 ablation/no_positional_attention
        component teacher 0 2250 objective/autoregressive
        prepared toy_de_en_distilled || { time padir distill --model $runs/teacher_0 --data data/toy_de_en --output $distilled \
            --beam 5 --batch_size 256 --ctranslate2 int8 >$runs/distill.log 2>&1; } 2>>$runs/distill.seconds
        component distilled $seed 1500 --data $distilled
        component padir_longer $seed 4000
    done
    for name in padir masks; do
        for seed in 0 1 2; do
            for split in validation test; do
                [[ -f "$runs/${name}_$seed.$split.json" ]] || scored "$runs/${name}_$seed" $split \
                    "padir mask_predict p2 renoise sundae:share=0.5,temperature=0" "$runs/${name}_$seed.$split.json"
            done
        done
    done
    .venv/bin/python scripts/components.py
}

samplers() {
    local run seed
    toy_corpus
    for seed in 0 1 2; do
        run="runs/samplers/mdlm_$seed"
        [[ -f "$run/manifest.json" ]] ||
            padir train components_cpu objective/mdlm --model_dir "$run" --seed "$seed" --steps 4000
        # shellcheck disable=SC2046  # the names of the strategies are words
        [[ -f "$run.json" ]] ||
            PYTHONPATH=examples/strategies padir evaluate --model "$run" --data data/toy_de_en --split test --num_steps 4 \
                --num_lengths 1 --no-drop_repeats \
                --batch_size 256 --strategy $(.venv/bin/python scripts/samplers.py --names) --json "$run.json"
    done
    .venv/bin/python scripts/samplers.py
}

toy() {
    local name
    (($#)) || set -- padir one_stage rejecter sundae cmlm mdlm rdm smart glat disco autoregressive
    toy_corpus
    for name; do
        padir train toy_cpu "objective/$name" --model_dir "runs/toy_objectives/$name" --steps "${STEPS:-3000}" \
            --gin.Intervals.evaluate=0 --gin.ModelConfig.length_unit=1 # also for sundae
    done
}

case "${1:-}" in
    toy | components | samplers) make_environment && "$@" ;;
    *) echo "usage: scripts/objectives.sh toy [OBJECTIVE..] | components | samplers" >&2 && exit 2 ;;
esac
