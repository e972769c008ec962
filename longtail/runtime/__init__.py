"""What all packages stand on: rows for compiled code, threads, and model folders on disk."""
