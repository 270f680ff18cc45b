//! A map of few keys, for counts that change with each event. The key of the last change is found without a search.

use std::ops::Index;

#[derive(Clone, Debug)]
pub struct Tally<K, V> {
    /// In the order of the keys.
    entries: Vec<(K, V)>,
    /// The index of the entry that was found last.
    last: usize,
}

impl<K, V> Default for Tally<K, V> {
    fn default() -> Self {
        Tally {
            entries: Vec::new(),
            last: 0,
        }
    }
}

impl<K: Ord + Copy, V> Tally<K, V> {
    /// The value of a key, for a change. A value that is not there is made.
    #[inline]
    pub fn of(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        if self.entries.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = self.find(key).unwrap_or_else(|place| {
                self.entries.insert(place, (key, V::default()));
                place
            });
        }
        &mut self.entries[self.last].1
    }

    /// Sets the value of a key, and returns the value before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(key) {
            Ok(place) => Some(std::mem::replace(&mut self.entries[place].1, value)),
            Err(place) => {
                self.entries.insert(place, (key, value));
                None
            }
        }
    }

    fn find(&self, key: K) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&key, |(key, _)| *key)
    }

    #[inline]
    pub fn get(&self, key: &K) -> Option<&V> {
        match self.entries.get(self.last) {
            Some((last, value)) if last == key => Some(value),
            _ => self.find(*key).ok().map(|place| &self.entries[place].1),
        }
    }

    pub fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.into_iter()
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<K: Ord + Copy, V> Index<&K> for Tally<K, V> {
    type Output = V;

    /// Panics if the key is not there.
    fn index(&self, key: &K) -> &V {
        self.get(key).expect("no entry for this key")
    }
}

impl<'a, K, V> IntoIterator for &'a Tally<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = std::iter::Map<std::slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (&'a K, &'a V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.iter().map(|(key, value)| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_in_order_whatever_came_last() {
        let mut tally = Tally::<u16, u64>::default();
        for key in [7, 3, 7, 9, 3, 3, 1] {
            *tally.of(key) += 1;
        }
        let all: Vec<(u16, u64)> = tally.iter().map(|(&key, &value)| (key, value)).collect();
        assert_eq!(all, [(1, 1), (3, 3), (7, 2), (9, 1)]);
        assert_eq!((tally.get(&9), tally.get(&2), tally[&3]), (Some(&1), None, 3));
        assert_eq!(
            (tally.insert(2, 5), tally.insert(2, 6), tally.len()),
            (None, Some(5), 5)
        );
        *tally.of(1) += 1;
        assert_eq!((tally[&1], tally[&2]), (2, 6));
    }
}
