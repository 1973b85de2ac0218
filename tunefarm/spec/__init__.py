"""What the user writes: workloads, search spaces and experiments, read and checked."""
