"""What happened: the ledger that a sweep lives by, and MLflow, its mirror for people."""
