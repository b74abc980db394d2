"""Trajectories of agents in the Agent Trajectory Interchange Format (ATIF), as Harbor and NeMo Agent Toolkit write them."""
