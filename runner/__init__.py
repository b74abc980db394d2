"""Acts: make an evaluation happen, and record every step of it."""
