"""What a training job loads: pack lookup and the autotuners that obey it. Imports the standard library only."""
