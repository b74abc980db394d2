"""Write labels: the journal of a review, and imported files. The page in a browser is served by `runner.cli`.

A review is a journal of its own beside that of the run, whose records never change. Start with `journal`. It may import data.
"""
