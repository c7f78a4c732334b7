"""Configuration: scenarios, settings on the command line, and messages that name the remedy."""
