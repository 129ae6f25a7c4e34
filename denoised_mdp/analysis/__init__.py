"""Looking at what a trained model holds."""
