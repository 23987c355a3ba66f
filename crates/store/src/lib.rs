//! Where tasks live: one Store trait, SQLite and Postgres behind it.
