"""Batches of model calls at half the price: the APIs of the providers, and what the engine does with them."""
