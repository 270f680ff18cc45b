//! A tensor that grows: each step takes a larger block, copies the old one into it, adds to it, and frees the old one. All
//! of it is freed then, and the next tensor grows larger. So memory is asked for in ever new sizes while the pieces that
//! come back are too short, which allocators serve worst.

use std::sync::atomic::Ordering::Relaxed;

use super::cuda::Hand;
use super::kind::Kind;
use super::memory::Block;
use super::random::Random;
use super::site::Site;
use crate::stress::fault::Fault;

/// How many tensors grow in a round, each to a larger size.
const TENSORS: u64 = 3;
/// Steps in which a tensor grows from the first size to its last.
const STEPS: u64 = 12;
/// The sizes of blocks that are taken between two steps and live on until the tensor is whole.
const MOST_BETWEEN_BYTES: u64 = 256 << 10;

/// Plays a round, and leaves the last tensor and what was taken beside it in `left`.
pub fn play(
    site: &Site,
    hand: &mut Hand,
    random: &mut Random,
    stream: usize,
    left: &mut Vec<Block>,
) -> Result<(), Fault> {
    let kind = match random.below(4) {
        0 if site.kinds.contains(&Kind::Async) => Kind::Async,
        1 if site.kinds.contains(&Kind::Mapped) => Kind::Mapped,
        _ => Kind::Linear,
    };
    for tensor in 1..=TENSORS {
        for block in left.drain(..) {
            site.check(hand, &block, random, stream)?;
            site.give_back(hand, block, stream)?;
        }
        // Old and new tensor are live together.
        let last = site.most_live() / 3 / TENSORS * tensor;
        grow(site, hand, random, stream, kind, last, left)?;
        if site.is_over.load(Relaxed) {
            return Ok(());
        }
    }
    Ok(())
}

fn grow(
    site: &Site,
    hand: &mut Hand,
    random: &mut Random,
    stream: usize,
    kind: Kind,
    last: u64,
    left: &mut Vec<Block>,
) -> Result<(), Fault> {
    let first = (last / STEPS).max(1);
    let mut tensor: Option<Block> = None;
    for step in 1..=STEPS {
        // Words of the pattern stay words when the tensor grows.
        let bytes = (first * step + random.below(first)).next_multiple_of(4);
        let word = tensor.as_ref().map_or_else(|| site.new_word(), |tensor| tensor.word);
        let Some(grown) = site.take(hand, kind, bytes, word, stream)? else {
            break;
        };
        let kept = tensor.as_ref().map_or(0, |tensor| tensor.size.min(grown.size) / 4 * 4);
        if let Some(before) = tensor.take() {
            site.cuda
                .copy(hand, 0, grown.address, before.address, kept as usize, stream)?;
            site.give_back(hand, before, stream)?;
        }
        site.fill(hand, &grown, kept, stream)?;
        site.check(hand, &grown, random, stream)?;
        tensor = Some(grown);
        let bytes = random.size(MOST_BETWEEN_BYTES);
        if let Some(between) = site.take(hand, Kind::Linear, bytes, site.new_word(), stream)? {
            site.fill(hand, &between, 0, stream)?;
            left.push(between);
        }
    }
    left.extend(tensor);
    Ok(())
}
