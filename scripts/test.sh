#!/usr/bin/env bash
# Makes .venv with the development extras and runs the tests; arguments go to pytest.
#   ./scripts/test.sh                        everything but the slow tests
#   ./scripts/test.sh tests/metrics/test_scores.py  one file
#   PYTHON=python3.12 ./scripts/test.sh      with a certain Python (if there is no .venv yet)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

make_environment dev
# The tests of a file stay together: they share fixtures and compiled programs.
exec .venv/bin/python -m pytest -n 2 --dist loadfile "$@"
