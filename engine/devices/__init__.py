"""The machine's cards, cores, memory and libraries, and the part that marlaas may use.

What may hang or crash runs in a child process.
"""
