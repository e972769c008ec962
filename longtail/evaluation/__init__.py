"""How good predictions are: metrics, probabilities, explanations."""
