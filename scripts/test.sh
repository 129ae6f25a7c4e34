#!/usr/bin/env bash
# Set everything up on a fresh machine, check the style and run the tests. Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

.venv/bin/ruff check .
.venv/bin/ruff format --check .
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" # a process per core; threads on top would wait for one another
.venv/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder "$@"
