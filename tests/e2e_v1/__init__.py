"""verl's default trainer (v1, TransferQueue) on a CPU: the rig, its doubles, and the tests."""
