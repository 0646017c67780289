"""The terminal application and the command line. Reads the store, writes commands, computes nothing."""
