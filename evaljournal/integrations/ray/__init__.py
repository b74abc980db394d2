"""Ray: workers on a cluster."""
