"""Agents, which learn and act."""
