"""A simulator: the real queue, runs, lines, router and store on virtual time, over workers that draw from a profile.

``profile`` records a home, ``cluster_file`` reads the case, ``simulation`` runs it and reads the results.
"""
