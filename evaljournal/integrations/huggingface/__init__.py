"""Datasets on the Hugging Face Hub as cases: `hf://owner/name[@revision][:config/split]`."""
