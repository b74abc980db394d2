"""A model endpoint and an executor on a virtual clock, so that twenty minutes of calls take seconds."""
