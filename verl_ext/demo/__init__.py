"""The demo: mixed reward schemas on real verl and Ray, and the rig that runs both on a CPU."""
