//! Remembers what was used lately.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// A map that forgets what was not used for a while: entries of the young half that are not asked for while it fills up
/// become the old half, and go when it fills up again.
#[derive(Debug)]
pub struct Cache<K, V> {
    /// The weight of one half.
    half: usize,
    weight: usize,
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    /// Holds about `weight` at the most, and at least the entry that was added last.
    pub fn new(weight: usize) -> Self {
        Self { half: weight / 2, weight: 0, young: HashMap::new(), old: HashMap::new() }
    }

    pub fn get<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if let Some((value, _)) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, (value, weight)) = self.old.remove_entry(key)?;
        self.insert(key, value.clone(), weight);
        Some(value)
    }

    pub fn insert(&mut self, key: K, value: V, weight: usize) {
        if self.weight > 0 && self.weight + weight > self.half {
            self.old = std::mem::take(&mut self.young);
            self.weight = 0;
        }
        self.weight += weight;
        if let Some((_, replaced)) = self.young.insert(key, (value, weight)) {
            self.weight -= replaced;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let mut cache = Cache::new(20);
        for n in 0..1_000 {
            cache.insert(n, n, 1);
            assert_eq!(cache.get(&0), Some(0), "{n}");
            assert!(cache.young.len() + cache.old.len() <= 21);
        }
        assert_eq!((cache.get(&999), cache.get(&500)), (Some(999), None));
        cache.insert(1_000, 1_000, 1_000);
        assert_eq!(cache.get(&1_000), Some(1_000), "however heavy it is");
        // The same key again weighs once.
        let mut cache = Cache::new(20);
        (0..100).for_each(|_| cache.insert(1, 1, 5));
        cache.insert(2, 2, 5);
        assert_eq!((cache.get(&1), cache.get(&2)), (Some(1), Some(2)));
    }
}
