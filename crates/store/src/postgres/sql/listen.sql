LISTEN tenure;
SHOW transaction_read_only
