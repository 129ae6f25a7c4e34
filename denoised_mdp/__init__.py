"""Denoised MDPs: world models that keep only what matters."""

__version__ = "0.1.0"
