UPDATE meta SET next_number = next_number + ? RETURNING next_number
