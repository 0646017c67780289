"""The folder of one home: paths, settings, disk space, and checks of its place.

Names of files in the database are relative to it, so that a home can be moved.
"""
