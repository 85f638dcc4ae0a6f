#!/usr/bin/env bash
# The paper's whole recipe in small, on real text and one CPU core: vocabulary, prepared pairs, autoregressive teacher, distilled text,
# student with two stages, scores after four and ten passes. It tests the pipeline in languages with and without spaces; its
# scores are no result of the paper. Resumes if interrupted.
#   scripts/miniature.sh DATA [DIRECTION..]   de-en en-de ro-en en-ro zh-en en-zh, or those that are named
# DATA has a folder for each corpus, such as tatoeba_de-en/{train,valid,test}.{de,en}.gz. TEACHER_STEPS and STUDENT_STEPS set the
# numbers of updates. Writes results/miniature.json with the core-minutes of each part.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

LINES_MOST="${LINES_MOST:-30000}" # of each corpus
TIMEFORMAT='%U %S'

padir() { .venv/bin/python -m padir "$@"; }

# corpora DIRECTION: the folders of DATA with text for it; the first one has the validation and test text.
corpora() {
    case "$1" in
        de-en | en-de) echo tatoeba_de-en multi30k mlqe-pe_en-de ;;
        ro-en | en-ro) echo tatoeba_ro-en ro-sts_ro-en mlqe-pe_ro-en ;;
        zh-en | en-zh) echo tatoeba_zh-en 3am_zh-en mlqe-pe_en-zh ;;
        *) echo "miniature: the direction must be one of de-en, en-de, ro-en, en-ro, zh-en and en-zh, got $1" >&2 && exit 2 ;;
    esac
}

# timed PART COMMAND..: appends the process time of the part to $run/PART.seconds, and its output to $run/PART.log.
timed() {
    { time "${@:2}" >>"$run/$1.log" 2>&1; } 2>>"$run/$1.seconds"
}

direction() {
    local run="runs/miniature/$1" source="${1%-*}" target="${1#*-}" corpus language train=() held
    held="$DATA/$(corpora "$1" | cut -d' ' -f1)"
    mkdir -p "$run/text"
    [[ -f "$run/origin" ]] || { git rev-parse --short HEAD; grep -m 1 "^model name" /proc/cpuinfo | cut -d: -f2; } >"$run/origin"
    for corpus in $(corpora "$1"); do
        for language in "$source" "$target"; do
            train+=("$run/text/$corpus.$language")
            [[ -f "${train[-1]}" ]] || gzip -cd "$DATA/$corpus/train.$language.gz" | sed -n "1,${LINES_MOST}p" >"${train[-1]}"
        done
    done
    [[ -f "$run/vocab.model" ]] ||
        timed prepare padir vocab --languages "$1" --train "${train[@]}" --size 4000 --output "$run/vocab.model"
    [[ -f "$run/data/manifest.json" ]] ||
        timed prepare padir prepare --languages "$1" --train "${train[@]}" --validation "$held"/valid.{"$source","$target"}.gz \
            --test "$held"/test.{"$source","$target"}.gz --vocab "$run/vocab.model" --output "$run/data" \
            --set max_source_tokens=63 max_target_tokens=63 drop="equal script" --dedupe --placeholders 0.5
    timed teacher padir train miniature objective/autoregressive --data "$run/data" --model_dir "$run/teacher" \
        --steps "${TEACHER_STEPS:-6000}"
    [[ -f "$run/distilled/manifest.json" ]] ||
        timed distill padir distill --model "$run/teacher" --data "$run/data" --output "$run/distilled" \
            --beam 5 --batch_size 128 --ctranslate2 int8
    timed student padir train miniature --data "$run/distilled" --model_dir "$run/student" --start_from "$run/teacher" \
        --steps "${STUDENT_STEPS:-6000}"
    [[ -f "$run/scores.md" ]] ||
        timed evaluate padir evaluate --model "teacher=$run/teacher" "student=$run/student" --data "$run/data" --split test \
            --mode refine causal --num_steps 4 10 --num_lengths 5 --beam 1 5 --output "$run/scores"
}

(($#)) || { sed -n '5,7s/^# *//p' "$0" >&2; exit 2; }
DATA="$1"
shift
make_environment peers
(($#)) || set -- de-en en-de ro-en en-ro zh-en en-zh
for each; do
    direction "$each"
done
.venv/bin/python scripts/miniature.py
