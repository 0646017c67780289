"""What the machine has, what of it marlaas may take, and which worker goes where."""
