"""The command line. It owns the terminal, and it alone reads the environment."""
