#!/usr/bin/env bash
# CPU seconds and wall-clock seconds of words that run nothing, of `import padir` and of the first use of a name of padir; the
# quickest of 5 calls.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
TIMEFORMAT='%U %S %R'

measure() {
    local name="$1" best="" one
    shift
    for _ in 1 2 3 4 5; do
        one="$({ time "$@" >/dev/null 2>&1 || true; } 2>&1 | awk '{print $1 + $2, $3}')"
        [[ -z "$best" ]] || best="$(printf '%s\n%s\n' "$best" "$one" | sort -n | head -n 1)"
        best="${best:-$one}"
    done
    printf '%-32s %s\n' "$name" "$best"
}

python=.venv/bin/python
measure "padir --version" $python -m padir --version
measure "padir --help" $python -m padir --help
measure "padir fly" $python -m padir fly
measure "padir translate --num_stepz 3" $python -m padir translate --num_stepz 3
measure "padir translate --help" $python -m padir translate --help
measure "import padir" $python -c "import padir"
measure "import padir; padir.Translator" $python -c "import padir; padir.Translator"
