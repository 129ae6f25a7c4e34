"""``python -m denoised_mdp`` is ``denoised-mdp``."""

import sys

from denoised_mdp.cli.main import main

sys.exit(main())
