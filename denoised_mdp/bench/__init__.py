"""Benchmarks, and the doctor that checks a machine and a configuration."""
