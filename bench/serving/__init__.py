"""What `bench.serve` needs: a load generator, servers to measure, and Annif as one of them."""
