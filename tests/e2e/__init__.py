"""verl's real trainers from data file to dump on a CPU; what needs a GPU is a double, named as one in `doubles.py`."""
