"""What connects evaljournal with other programs: file formats, commands, scorers, workers and views of theirs.

The core imports none of it. It finds each part by an entry point of our own distribution, in groups that other packages can
use, too: `evaljournal.formats`, `.commands`, `.scorers`, `.workers` and `.outputs`. An integration may import everything.
"""
