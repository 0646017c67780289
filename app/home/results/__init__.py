"""What tasks have measured: in the forms of other programs, and compared by prompt."""
