"""What is known of labels as a set: trees, co-occurrence graphs, hierarchies."""
