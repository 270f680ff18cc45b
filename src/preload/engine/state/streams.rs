//! The numbers by which the journal tells streams apart.

use std::sync::Mutex;

use base::sync::lock;

/// The number of the default stream; 0 means that the record names no stream.
const DEFAULT_STREAM: u8 = 1;
/// The number of the first stream that is not the default one.
const FIRST_NUMBER: usize = 2;
/// The number of all streams after the last one that has a number of its own.
const NO_NUMBER: u8 = u8::MAX;

#[derive(Default)]
pub struct StreamNumbers {
    /// Identities of the streams that have a number, in the order of their numbers.
    known: Mutex<Vec<u64>>,
}

impl StreamNumbers {
    /// The journal's number of a stream. An identity of 0 is the default stream.
    pub fn number(&self, stream: Option<u64>) -> u8 {
        let identity = match stream {
            None => return 0,
            Some(0) => return DEFAULT_STREAM,
            Some(identity) => identity,
        };
        let mut known = lock(&self.known);
        let index = known.iter().position(|&other| other == identity).unwrap_or(known.len());
        match u8::try_from(FIRST_NUMBER + index) {
            Ok(number) if number != NO_NUMBER => {
                if index == known.len() {
                    known.push(identity);
                }
                number
            }
            _ => NO_NUMBER,
        }
    }
}
