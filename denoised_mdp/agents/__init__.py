"""Agents: what learns and acts."""
