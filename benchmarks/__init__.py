"""How long the course takes to start and to run, measured on this machine."""
