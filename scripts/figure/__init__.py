"""One file a figure: what it measures, and what it writes down. `scripts/figures` is the command."""
