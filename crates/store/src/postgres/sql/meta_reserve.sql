UPDATE meta SET next_number = next_number + $1 RETURNING next_number
