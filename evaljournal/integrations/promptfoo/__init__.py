"""Import of promptfoo configurations; nothing is executed or fetched."""
