"""Other tools' tables of configs, in and out."""
