-- A notice is a hint: nobody waits for it to be on disk.
SET synchronous_commit = off
