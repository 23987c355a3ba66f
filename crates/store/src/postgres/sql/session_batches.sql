-- A plan is kept for as long as its connection lives. One that was made while a table was empty would read the whole
-- table, and go on to do so when it is full: every statement of a batch has an index, and is to use it. Plans are made
-- once, without a look at the parameters: what the statistics of a moment say about them has led to worse ones.
SET enable_seqscan = off;
SET plan_cache_mode = force_generic_plan
