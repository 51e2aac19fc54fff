"""Measurements of egpu on a real card: quotas of memory and of time, what they cost, attacks.

`python3 -m measure [RESULT_FOLDER]`, which run.sh starts. Needs root, an NVIDIA driver, Python's
standard library; PyTorch where a measurement trains. settings.py lists what can be asked for.
"""
