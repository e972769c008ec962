"""KNN: the nearest training documents vote."""
