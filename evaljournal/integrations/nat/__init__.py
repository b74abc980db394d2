"""NeMo Agent Toolkit: the files of `nat eval`, written at the end of a run or while it runs, and the steps of its replies."""
