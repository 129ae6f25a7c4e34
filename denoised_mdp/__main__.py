"""``python -m denoised_mdp`` is ``denoised-mdp``."""

import sys

from denoised_mdp.cli import main

sys.exit(main())
