#!/usr/bin/env bash
# Fetches the files of a WMT direction, which `padir vocab` and `padir prepare` read with --recipe and --downloads.
#   scripts/wmt_files.sh DIRECTION FOLDER
#   scripts/wmt_files.sh wmt14_de_en downloads
# padir/data/wmt_parts.tsv has addresses, sizes and sums; the sizes and sums are TFDS's. A file that is not whole is called
# NAME.part, and the same command goes on with it. The status is 1 if a file is missing at the end; the others are there.
# PAUSE is the time between two tries in seconds.
set -euo pipefail
table="$(dirname "${BASH_SOURCE[0]}")/../padir/data/wmt_parts.tsv"
case "${1:-}" in
    wmt14_de_en | wmt14_en_de | wmt16_ro_en | wmt16_en_ro | wmt17_zh_en | wmt17_en_zh) (($# == 2)) || set -- ;;
    *) set -- ;;
esac
if (($# == 0)); then
    echo "usage: scripts/wmt_files.sh wmt14_de_en|wmt14_en_de|wmt16_ro_en|wmt16_en_ro|wmt17_zh_en|wmt17_en_zh FOLDER" >&2
    exit 2
fi
command -v curl >/dev/null || { echo "scripts/wmt_files.sh needs curl: install it" >&2; exit 2; }
sum="sha256sum"
command -v sha256sum >/dev/null || sum="shasum -a 256" # macOS
mkdir -p "$2"
table="$(cd "$(dirname "$table")" && pwd)/wmt_parts.tsv"
cd "$2"

size_of() {
    if [[ -f "$1" ]]; then wc -c <"$1" | tr -d ' '; else echo 0; fi
}

fetch() { # address, file, size: fetches the file in several tries, each of which goes on where the one before stopped
    local try status
    for try in 1 2 3 4 5; do
        (($(size_of "$2") == $3)) && return
        (($(size_of "$2") > $3)) && rm "$2" # another file
        status=0
        curl --fail --location --continue-at - --connect-timeout 30 --speed-limit 1000 --speed-time 60 --output "$2" "$1" ||
            status=$?
        ((status != 23)) || { echo "$PWD/$2 cannot be written: is the disk full?" >&2; exit 1; }
        ((status != 33)) || rm -f "$2" # the server sends whole files only
        # A whole answer of another size is another file, such as a page of a network that asks for a password.
        if ((status == 0 && $(size_of "$2") != $3)); then
            echo "$1 has $(size_of "$2") bytes, not $3" >&2
            rm "$2"
            return 1
        fi
        ((status == 0)) || sleep "${PAUSE:-10}"
    done
    (($(size_of "$2") == $3))
}

missing=()
while IFS=$'\t' read -r size sha256 origin about; do
    name="${origin##*/}"
    if (($(size_of "$name") == size)) && echo "$sha256  $name" | $sum --check --status; then
        echo "$name is here" >&2
        continue
    fi
    if [[ -e "$name" ]]; then
        missing+=("$name: the file here is another one ($(size_of "$name") bytes, expected $size); remove it, and call again")
    elif [[ "$origin" == ftp:* ]]; then
        missing+=("$name: $about ($origin is dead)")
    elif ! fetch "$origin" "$name.part" "$size"; then
        missing+=("$name: $origin did not give it")
    elif ! echo "$sha256  $name.part" | $sum --check --status; then
        rm "$name.part"
        missing+=("$name: $origin gave a file of another sum, which was removed")
    else
        mv "$name.part" "$name"
    fi
done < <(awk -F '\t' -v year="${1%%_*}" '$1 == year && !seen[$6]++ { print $4 "\t" $5 "\t" $6 "\t" $8 }' "$table")

((${#missing[@]} == 0)) && exit
printf '%s\n' "missing:" "${missing[@]}" "docs/running.md (2. Data) names other ways to these files" >&2
exit 1
