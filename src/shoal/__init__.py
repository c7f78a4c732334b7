"""Shoal: distributed reinforcement learning on shared memory."""
