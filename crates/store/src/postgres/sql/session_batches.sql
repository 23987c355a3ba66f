-- A plan is kept for as long as its connection lives. One that was made while a table was empty would read the whole
-- table, and go on to do so when it is full: every statement of a batch has an index, and is to use it.
SET enable_seqscan = off
