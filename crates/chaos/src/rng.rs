//! Chance that can be repeated: the same seed draws the same numbers on every machine.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Draws what belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A source of its own for one part, so that what one part draws does not move what the others draw.
    pub fn fork(seed: u64, part: &str) -> Self {
        let mixed = part.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut rng = Self(mixed);
        rng.draw();
        rng
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `low..high`. An empty range gives `low`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % high.saturating_sub(low).max(1)
    }

    /// An index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        (self.draw() % length.max(1) as u64) as usize
    }

    /// True in `percent` of a hundred draws.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.draw() % 100 < percent
    }

    /// One of them. `None` when there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.index(of.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_and_parts_draw_apart() {
        let draw = |mut rng: Rng| (0..5).map(|_| rng.draw()).collect::<Vec<_>>();
        assert_eq!(draw(Rng::new(7)), draw(Rng::new(7)));
        assert_ne!(draw(Rng::new(7)), draw(Rng::new(8)));
        assert_eq!(draw(Rng::fork(7, "a")), draw(Rng::fork(7, "a")));
        assert_ne!(draw(Rng::fork(7, "a")), draw(Rng::fork(7, "b")));
        assert!((0..1000).map(|_| Rng::new(3).between(5, 9)).all(|drawn| (5..9).contains(&drawn)));
    }
}
