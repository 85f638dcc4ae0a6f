#!/usr/bin/env bash
# From nothing to a translator in under 10 minutes on 2 cores: makes .venv, generates the built-in German-English corpus,
# trains a small PaDIR on it, evaluates it and shows how it refines a few translations. Everything goes into demo/; run
# again, it uses what is there. DEMO_STEPS sets the number of training steps.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
padir() { .venv/bin/python -m padir "$@"; }

began=$SECONDS
make_environment
steps="${DEMO_STEPS:-3000}"

if [[ ! -f demo/data/manifest.json ]]; then
    say "1. A vocabulary (about a minute), and 100,000 sentence pairs of the built-in grammar as records"
    padir vocab --task toy_de_en --size 2400 --output demo/vocab.model
    padir prepare --task toy_de_en --vocab demo/vocab.model --output demo/data \
        --set max_source_tokens=64 max_target_tokens=64
fi

say "2. Training ($steps steps; interrupted, it goes on where it stopped)"
# With products of bfloat16 numbers, processors that have them train faster.
precision="${JAX_DEFAULT_MATMUL_PRECISION-$(grep -qs avx512_bf16 /proc/cpuinfo && echo BF16_BF16_F32 || echo float32)}"
JAX_DEFAULT_MATMUL_PRECISION="$precision" padir train demo --data demo/data \
    --model_dir "demo/model-$steps" --steps "$steps"

say "3. The held-out sentences, whose grammar lists every right translation"
padir evaluate --model "demo/model-$steps" --data demo/data --split test --num_steps 1 2 4 10 --json demo/scores.json

say "4. How four steps refine a draft"
head -n 4 demo/data/test.de.txt | padir translate --model "demo/model-$steps" --num_steps 4 --trace --html demo/trace.html

say "Done in $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s."
echo "Every step as a page: demo/trace.html. Try: echo '...' | .venv/bin/padir translate --model demo/model-$steps"
