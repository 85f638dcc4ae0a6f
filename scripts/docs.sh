#!/usr/bin/env bash
# Builds the documentation into site/, without the network once the extra docs is installed. Warnings are errors, and every
# link between pages, every anchor and every link to a file of the repository is checked. Arguments go to `mkdocs build`.
# To read it: .venv/bin/python -m http.server -d site
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

make_environment docs
export NO_MKDOCS_2_WARNING=1  # the theme's advertisement; padir pins mkdocs below 2
exec .venv/bin/python -m mkdocs --quiet build --strict --clean "$@"
