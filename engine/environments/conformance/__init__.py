"""Checks if an environment is fit to train on."""
