"""What the commands of `cli.py` are made of, and those that train nothing."""
