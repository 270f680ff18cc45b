//! Numbers for things that occur often, such as texts and stacks.

use std::collections::HashMap;
use std::hash::Hash;

/// Each thing once, in the order in which they came.
#[derive(Debug)]
pub struct EachOnce<T> {
    places: HashMap<T, usize>,
    pub list: Vec<T>,
}

impl<T> Default for EachOnce<T> {
    fn default() -> Self {
        let (places, list) = (HashMap::new(), Vec::new());
        EachOnce { places, list }
    }
}

impl<T: Clone + Eq + Hash> EachOnce<T> {
    pub fn place(&mut self, thing: T) -> usize {
        *self.places.entry(thing).or_insert_with_key(|thing| {
            self.list.push(thing.clone());
            self.list.len() - 1
        })
    }
}
