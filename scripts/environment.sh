# Sourced by the other scripts, from the root of the checkout.
#   make_environment [EXTRA [FOLDER]]   leaves an environment in FOLDER (.venv) with padir (and EXTRA, such as dev, or several
#                                       with commas) installed in place
# PYTHON names the interpreter to make it with; otherwise the first suitable one is taken.

supported_python() {
    # ensurepip is imported because Debian ships Pythons without it, which cannot make an environment.
    "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null
}

find_python() {
    local candidate
    if [[ -n "${PYTHON:-}" ]]; then
        supported_python "$PYTHON" && { echo "$PYTHON"; return; }
        echo "padir: PYTHON=$PYTHON is not a Python 3.11 to 3.14 with venv: name another or unset PYTHON" >&2
        return 1
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        supported_python "$candidate" && { echo "$candidate"; return; }
    done
    echo "padir: found no Python 3.11 to 3.14 with venv: install one, or set PYTHON to its path" >&2
    return 1
}

python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'
}

make_environment() {
    local extra="${1:-}" venv="${2:-.venv}" python
    local stamp="$venv/installed-${1:-core}"
    if [[ ! -x "$venv/bin/python" ]]; then
        python="$(find_python)" || return 1
        echo "padir: making $venv with $("$python" --version)" >&2
        "$python" -m venv "$venv" || return 1
    elif ! supported_python "$venv/bin/python"; then
        echo "padir: $venv is not a working Python 3.11 to 3.14: remove it (rm -r $venv) and run this again" >&2
        return 1
    elif [[ -n "${PYTHON:-}" && "$(python_version "$PYTHON")" != "$(python_version "$venv/bin/python")" ]]; then
        echo "padir: $venv is Python $(python_version "$venv/bin/python"), not PYTHON=$PYTHON: remove it (rm -r $venv) and run this again" >&2
        return 1
    fi
    # The stamp is the pyproject.toml that was installed; it is written last, so that an interrupted install runs again.
    if ! cmp --silent pyproject.toml "$stamp"; then
        echo "padir: installing padir${extra:+[$extra]} into $venv (0.7 GB, some minutes the first time)" >&2
        "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --editable ".${extra:+[$extra]}" |
            sed -un 's/^Collecting \([^ ]*\).*/  \1/p; s/^Installing collected packages.*/  installing them/p' >&2 || return 3  # callers set pipefail
        cp pyproject.toml "$stamp"
    fi
}
