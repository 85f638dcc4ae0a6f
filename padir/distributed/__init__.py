"""Devices and processes: sharding, and agreement between hosts."""
