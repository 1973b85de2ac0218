"""Which candidates to measure, how far, and who wins; sees trials only."""
