"""Compile and measure: legality, builds for any arch on CPUs, and workers that only launch and time."""
