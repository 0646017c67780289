"""What is measured, sent to trackers of experiments: an observer process for each reads the store, and writes nothing.

A tracker that is slow, down or broken costs the engine nothing; its curve is sent later.
"""
