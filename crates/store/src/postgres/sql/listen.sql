LISTEN tenure
