"""What a trained model holds: renderings, probes, report."""
