"""What the view of rollouts is made of: lists of steps, groups and conversations, and the pane that reads one."""
