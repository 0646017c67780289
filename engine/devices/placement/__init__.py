"""Which worker goes on which device: machine, base and wishes flow in, a plan with its reasons flows out. Pure."""
