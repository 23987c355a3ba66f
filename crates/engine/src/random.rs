use tenure_core::command::claim::Seed;

/// 128 bits from the system. Without randomness nothing that we hand out would be safe.
pub fn random_bits() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).unwrap_or_else(|error| panic!("the system provides no randomness: {error}"));
    u128::from_be_bytes(bytes)
}

/// What the attempt ids and tokens of one claim are drawn from.
pub fn random_seed() -> Seed {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).unwrap_or_else(|error| panic!("the system provides no randomness: {error}"));
    Seed(bytes)
}
