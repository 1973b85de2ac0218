"""Who works on what, when: a state machine without clock, threads or I/O."""
