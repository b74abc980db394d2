"""The command line: `evaljournal VERB RUN`."""
