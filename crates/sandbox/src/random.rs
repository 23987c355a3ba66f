use crate::error::{Error, Result};

/// 64 random bits in hex.
pub(crate) fn hex() -> Result<String> {
    let number = getrandom::u64().map_err(|error| Error::internal("no random numbers").with_source(error))?;
    Ok(format!("{number:016x}"))
}
