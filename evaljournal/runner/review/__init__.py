"""Write labels: the journal of a review, imported files, the page in a browser."""
