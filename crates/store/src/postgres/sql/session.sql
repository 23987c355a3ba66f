-- Plans here are simple; compiling them would cost more than running them.
SET jit = off;
SET statement_timeout = '10s';
SET lock_timeout = '5s';
SET idle_in_transaction_session_timeout = '60s'
