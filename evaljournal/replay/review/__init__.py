"""Labels that people give to the outputs of a run, the samples that they were given for, and what follows from them."""
