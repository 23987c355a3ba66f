-- name: sandbox_gate_lock
SELECT only_row FROM sandbox_gate FOR UPDATE
