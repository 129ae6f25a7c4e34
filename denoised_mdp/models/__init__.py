"""World models: the factorized RSSM, networks, losses, and the denoised MDP that a policy sees."""
