"""Copy the records of a journal into a new one."""
