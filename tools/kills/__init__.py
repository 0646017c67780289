"""The kill harness: real engines on real homes, killed at random moments and at named ones, and then checked.

``tasks`` says what is trained, ``lab`` drives one home from outside, ``campaign`` kills, ``tally`` counts. What is left
in the end is proven by ``tests.oracle``, and bit for bit beside an uninterrupted run.
"""
