"""Make and check claims about a run: its secret, signatures of `ssh-keygen`, and the files in `RUN/claims/`.

What a claim says and how it is recomputed is in `replay.claims`. Start reading in `claim`.
"""
