"""Write a journal: open it, append records, and write blobs."""
