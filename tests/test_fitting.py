"""Errors while a checkpoint is restored: of the checkpoint, or of an environment."""

import pytest
from small_runs import tiny

from denoised_mdp.config import as_tree
from denoised_mdp.errors import EnvironmentFailure, UserError
from denoised_mdp.run.folder import RunFolder
from denoised_mdp.run.load import fitting


@pytest.mark.parametrize(
    ("error", "raised"), [(KeyError("x"), UserError), (EnvironmentFailure("dead"), EnvironmentFailure)]
)
def test_an_environment_that_fails_is_not_a_checkpoint_that_does_not_fit(error, raised, tmp_path):
    config = tiny(tmp_path)
    with pytest.raises(raised), fitting(RunFolder(tmp_path), config, {"config": as_tree(config)}):
        raise error
