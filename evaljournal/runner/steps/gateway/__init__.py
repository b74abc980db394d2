"""The gateway: an HTTP server on 127.0.0.1 that forwards the model calls of an agent, and records each as a step."""
