"""One group: its members are played, what fails is played again, and what each policy gets of it is closed."""
