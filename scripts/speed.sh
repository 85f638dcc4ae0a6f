#!/usr/bin/env bash
# Speed on this machine, into results/speed_*: the paper's size, the models that come with padir, and training.
# About 70 minutes on 2 cores, which should have nothing else to do. The models
# and training need prepared folders in data/ (configs/run/general_de_en_cpu.gin and multi30k_de_en_cpu.gin say how).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

padir() { .venv/bin/python -m padir "$@"; }

make_environment
export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"  # large pages for large arrays, where Linux grants them
paper=(--model padir=configs/model/padir_6_6.gin ar=configs/model/ar_6_6.gin --mode refine causal --strategy mask_predict)
peers=()
.venv/bin/python -c 'import ctranslate2' 2> /dev/null && peers=(--ctranslate2 int8)

# The paper's size, random weights; mask_predict makes all four passes, where padir stops at a fixed point.
padir benchmark "${paper[@]}" --set tokens=30 --num_lengths 1 5 --beam 1 5 --precision float32 int8 "${peers[@]}" \
    --batch_size 1 --set sentences=10 repeats=3 --output results/speed_30_tokens
padir benchmark "${paper[@]}" --set tokens=30 --beam 1 --precision float32 int8 "${peers[@]}" \
    --batch_size 32 --set sentences=32 repeats=5 --output results/speed_30_tokens_batch_32
padir benchmark "${paper[@]}" --set tokens=100 --beam 1 --batch_size 1 --set sentences=10 repeats=3 \
    --output results/speed_100_tokens
padir benchmark --model padir=configs/model/padir_6_6.gin --strategy mask_predict --set tokens=128 --num_lengths 5 \
    --batch_size 16 --set sentences=16 repeats=1 --output results/speed_128_tokens_batch_16
# Deep encoders and shallow decoders, with two and four passes.
shapes=()
for shape in padir_6_6 padir_6_2 padir_9_1 padir_12_1 ar_6_6 ar_6_2 ar_12_1; do
    shapes+=("$shape=configs/model/$shape.gin")
done
mkdir -p runs
.venv/bin/python scripts/numbers_shortlist.py runs/numbers.shortlist.npz
common=(--mode refine causal --strategy mask_predict --num_steps 2 4 --set tokens=30 --beam 1 --precision float32 int8 "${peers[@]}" --set sentences=32)
padir benchmark --model "${shapes[@]}" "${common[@]}" --batch_size 1 --set repeats=3 --output results/speed_shapes_batch_1
padir benchmark --model "${shapes[@]}" "${common[@]}" --batch_size 32 --set repeats=5 --output results/speed_shapes_batch_32
padir benchmark --model "${shapes[@]}" "${common[@]}" --batch_size 32 --set repeats=5 \
    --shortlist runs/numbers.shortlist.npz --output results/speed_shapes_batch_32_shortlist
# What a list of 4,096 ids saves, and a pass fewer: short sentences halt after 2.7 on average, long ones hardly do.
padir benchmark "${paper[@]}" --num_steps 3 4 --set tokens=30 --beam 1 --precision float32 int8 "${peers[@]}" \
    --shortlist none runs/numbers.shortlist.npz --batch_size 1 --set sentences=10 repeats=3 \
    --output results/speed_30_tokens_shortlist
padir benchmark "${paper[@]}" --num_steps 3 4 --set tokens=30 --beam 1 --shortlist none runs/numbers.shortlist.npz \
    --batch_size 32 --set sentences=32 repeats=3 --output results/speed_30_tokens_batch_32_shortlist

# The models that come with padir: quality beside speed, on short sentences and on long ones.
if [[ -f data/tatoeba_de_en/manifest.json ]]; then
    # Its programs need more memory mappings than Linux allows by default: sysctl -w vm.max_map_count=262144
    for pieces in 10 20 40 65; do
        corpus=bible about=("$pieces") how=(--prefix_beam 1 5 --set sentences=64)
        [[ $pieces == 10 ]] && corpus=tatoeba
        [[ $pieces == 65 ]] && about=(80 --low 0.7) how=(--prefix_beam 1 5 --set sentences=32)
        .venv/bin/python scripts/by_length.py "data/${corpus}_de_en" "${about[@]}" --output "runs/pieces_$pieces"
        texts=(--languages de-en --test "runs/pieces_$pieces".{de,en} --batch_size 1 32 --rerank causal --beam 1)
        padir benchmark --model de_en_ctc de_en_ar "${texts[@]}" --mode refine causal --num_steps 1 "${how[@]}" repeats=3 \
            --precision float32 int8 "${peers[@]}" --output "results/speed_modes_$pieces"
        if ((pieces <= 20)); then
            padir benchmark --model de_en "${texts[@]}" --mode refine causal --num_steps 4 --num_lengths 5 \
                --set sentences=64 repeats=3 --output "results/speed_modes_${pieces}_refine"
        fi
    done
    [[ -f runs/general.shortlist.npz ]] || padir shortlist --data data/tatoeba_de_en data/bible_de_en data/mlqe_pe_de_en \
        --output runs/general.shortlist.npz
    padir benchmark --model de_en de_en_ar --data data/bible_de_en --mode refine causal --num_lengths 1 --rerank own --beam 1 --precision float32 int8 "${peers[@]}" \
        --shortlist none runs/general.shortlist.npz --batch_size 1 --set sentences=60 repeats=3 \
        --output results/speed_de_en_long
fi

# Training at the published size, on real lengths: captions, and news of some 32 tokens.
for data in multi30k_de_en wmt_dev_de_en; do
    if [[ -f "data/$data/manifest.json" ]]; then
        padir benchmark --steps 5 --gin_file=configs/run/speed.gin --set vocab_size=32100 --data "data/$data" \
            --output "results/speed_training_$data"
    fi
done

# Training of a small model with products of rounded operands, on one core and on two.
if [[ -f data/multi30k_de_en/manifest.json ]]; then
    for config in distilled_cpu ar_cpu; do
        for cores in 0 0-1; do
            for precision in default BF16_BF16_F32; do
                JAX_DEFAULT_MATMUL_PRECISION="$precision" taskset -c "$cores" .venv/bin/python -m padir benchmark --steps 16 \
                    --gin_file="configs/run/multi30k_de_en_$config.gin" --data data/multi30k_de_en --gin.Batching.rows=16 \
                    --gin.Batching.row_length=64 --output "results/speed_rounding_${config}_${cores}_$precision"
            done
        done
    done
fi
