"""Scoring and ranking in processes of their own, which all versions of one interpreter share.

``VersionScoring`` is one version's access to a ``ScoringPool``; ``ScoringPools`` has one for each interpreter.
"""
