#!/usr/bin/env bash
# Scores the shipped models for pages: writes files of results/. Takes 40 minutes and more on 2 CPU cores.
#   scripts/shipped.sh DATA
# DATA has files NAME.SPLIT.{de,en}: SPLIT valid and test for tatoeba, bible and multi30k, and SPLIT train for the corpora of WORDS, whose
# English sides are the list of known words. Files that are there are kept, so an interrupted call goes on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

(($#)) || { sed -n '3,5s/^# *//p' "$0" >&2; exit 2; }
DATA="$1"
WORDS=(tatoeba bible mlqe_pe multi30k wmt_dev manpages libreoffice mozilla debian docs ui)
known=("${WORDS[@]/%/.train.en}")
known=("${known[@]/#/$DATA/}")
RUNS=runs/shipped
mkdir -p "$RUNS"
make_environment

# scored NAME SET WORDS..: evaluates on a set such as tatoeba.valid; the rows and their texts go to NAME, whose last file is NAME.md.
scored() {
    [[ -f "$1.md" ]] || .venv/bin/padir evaluate --languages de-en --test "$DATA/$2.de" "$DATA/$2.en" "${@:3}" \
        --metric "${known[@]/#/known_words=}" --output "$1"
}

[[ -f results/everyday.json ]] || .venv/bin/python scripts/known_words.py --known "${known[@]}" --json results/everyday.json
scored "$RUNS/bible_stutter" bible.test --model de_en de_en_ar --mode refine causal --beam 1 --num_steps 1 4 --num_lengths 1 --rerank own \
    --drop_repeats
scored "$RUNS/strategies_validation" tatoeba.valid --model de_en --num_steps 4 10 \
    --strategy padir mask_predict p2 renoise renoise:gamma=20
scored "$RUNS/shipped_tatoeba" tatoeba.test --model de_en de_en_ctc de_en_ar --mode refine causal --beam 1 5
scored "$RUNS/shipped_validation" tatoeba.valid --model de_en --mode refine causal --beam 1
for set in tatoeba bible multi30k; do
    scored "$RUNS/fusion_$set.one_pass" "$set.valid" --model de_en_ctc --prefix_beam 1 --rerank own --fusion none
    scored "$RUNS/fusion_$set.table" "$set.valid" --model de_en_ctc --prefix_beam 8 --rerank own --fusion bigrams
    scored "$RUNS/fusion_$set.fallback" "$set.valid" --model de_en_ctc --prefix_beam 8 --rerank own --fusion bigrams:fallback=True
    scored "$RUNS/fusion_$set.greedy" "$set.valid" --model de_en_ctc --beam 1 --fusion none
done
scored "$RUNS/blank_penalty" tatoeba.valid --model de_en_ctc --blank_penalty 0 0.5 1 1.5 2 --prefix_beam 1 5 --rerank causal --fusion none
scored "$RUNS/one_pass" tatoeba.test --model de_en_ctc de_en_ar --mode refine causal --beam 1 5 --prefix_beam 1 5 --rerank causal \
    --fusion none
for set in tatoeba multi30k; do
    [[ -f "results/terms_$set.json" ]] || .venv/bin/python scripts/words_that_stand.py --sentences 500 --pairs "$DATA/$set".test.{de,en} \
        --ways greedy "beam 5" refine --json "results/terms_$set.json"
done
.venv/bin/python scripts/shipped.py "$RUNS"
