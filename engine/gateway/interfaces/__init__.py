"""The four interfaces: what each accepts, how it answers, whole or as a stream, and how it writes a refusal."""
