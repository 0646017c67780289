"""What can be done with a home, for screens, verbs and Python alike: submit, steer, export, estimate, measure."""
