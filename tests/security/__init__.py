"""Attacks, one module per attacker."""
