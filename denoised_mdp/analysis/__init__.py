"""Analysis of trained models: renderings, probes, report."""
