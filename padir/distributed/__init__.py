"""Training on many devices and hosts: sharding of parameters and batches, and communication between processes."""
