"""Benchmark this machine; the same as `denoised-mdp bench`, which says more with --help.

python scripts/benchmark.py --output results/benchmark.json                    # the paper's sizes, everything
python scripts/benchmark.py --parts update --repeats 9 preset=quickstart       # one part at other sizes
"""

from __future__ import annotations

import sys

from denoised_mdp.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
