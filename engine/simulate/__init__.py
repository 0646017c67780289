"""The engine's code on virtual time: ``profile`` records, ``cluster_file`` reads a case, ``simulation`` runs it."""
