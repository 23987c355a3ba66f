//! The version of the tables.

use crate::error::StoreError;

/// The schema that this binary creates. Versions below this one were never released, so nothing upgrades them.
pub const SCHEMA: i64 = 22;

/// Whether this binary can run on the schema `found`; 0 is an empty database. A newer schema names the `oldest` version
/// that a binary must know to run on it.
pub fn check(found: i64, oldest: i64) -> Result<(), StoreError> {
    if found > SCHEMA && oldest > SCHEMA {
        return Err(StoreError::NewerSchema { found, oldest, known: SCHEMA });
    }
    if (1..SCHEMA).contains(&found) {
        return Err(StoreError::OlderSchema { found, known: SCHEMA });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_schemas_that_take_this_binary_are_used() {
        assert!(check(0, 0).is_ok() && check(SCHEMA, SCHEMA).is_ok() && check(SCHEMA + 1, SCHEMA).is_ok());
        assert!(matches!(check(SCHEMA + 1, SCHEMA + 1), Err(StoreError::NewerSchema { .. })));
        assert!(matches!(check(SCHEMA - 1, SCHEMA - 1), Err(StoreError::OlderSchema { .. })));
        assert!(matches!(check(1, 1), Err(StoreError::OlderSchema { .. })));
    }
}
