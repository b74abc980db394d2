"""Views: what the facts mean, the same for ever."""
