#!/usr/bin/env bash
# Set everything up on a fresh machine, check the style and run the tests. Arguments go to pytest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

.venv/bin/ruff check .
.venv/bin/python -m pytest "$@"
