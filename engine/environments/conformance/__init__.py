"""Whether an environment is fit to train on: one check per file, each with what it looks at and how it judges."""
