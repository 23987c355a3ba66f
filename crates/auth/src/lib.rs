//! Who is calling: worker identity, user keys, secrets that never print.
