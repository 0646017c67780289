"""Watches what policies learn: signs that it goes wrong, each with its step and the rollouts that show it.

``detectors`` decides, from what ``course`` holds and with the arithmetic of ``noise``; all three are pure. ``evidence``
chooses rollouts, and ``watch`` runs it after each step and evaluation.
"""
