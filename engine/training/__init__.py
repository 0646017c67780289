"""Stage 3, training: complete groups in, adapter versions out."""
