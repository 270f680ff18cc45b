use super::*;
use proptest::prelude::*;

#[test]
fn the_impossible_is_refused_or_left_out() {
    let mut space = Space::default();
    space.add_segment(1000, 100);
    space.occupy(1010, 10).unwrap();
    assert_eq!(space.add_segment(u64::MAX, 100), 0);
    assert_eq!(space.add_segment(1020, 40), 0, "all of it is there");
    assert_eq!(space.occupy(1015, 10), Err(Contradiction));
    assert_eq!(space.occupy(2000, 10), Err(Contradiction));
    assert_eq!(space.occupy(1090, 20), Err(Contradiction));
    assert_eq!(space.release(1000, 15), Err(Contradiction));
    assert_eq!(space.release(1095, u64::MAX), Err(Contradiction));
    assert_eq!(space.release(5, 1), Err(Contradiction));
    assert_eq!(space.remove_segment(7, 100), 0);
    assert_eq!(space.remove_segment(1000, u64::MAX), 0);
    assert_eq!(space.remove_segment(1050, 0), 0);
    assert_eq!((space.free(), space.largest(), space.segments()), (90, 80, 1));
    assert_eq!(space.add_segment(990, 200), 100, "what is not there yet, on both sides");
    assert_eq!((space.free(), space.largest()), (190, 170));
    assert_eq!(space.add_segment(0, u64::MAX), u64::MAX - 200);
    assert_eq!((space.free(), space.segments()), (u64::MAX - 10, 5));
    assert_eq!(space.unused(), u64::MAX - 100, "all but the segment of the block");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Start and length. Frees the block that begins at start, or makes a block there.
    Block(u64, u64),
    Add(u64, u64),
    Remove(u64, u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    (0u64..60, 1u64..12, 0..6).prop_map(|(start, length, kind)| match kind {
        0 => Step::Add(start, 2 * length),
        1 => Step::Remove(start, length),
        _ => Step::Block(start, length),
    })
}

proptest! {
    #[test]
    fn agrees_with_a_bitmap(steps in prop::collection::vec(any_step(), 1..120)) {
        let mut space = Space::default();
        // For each address: whether it lies in a segment, and whether it lies in a block.
        let (mut held, mut used) = ([false; 96], [false; 96]);
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        let range = |start: u64, length: u64| start as usize..(start + length) as usize;
        for step in [Step::Add(0, 30), Step::Add(30, 30)].into_iter().chain(steps) {
            match step {
                Step::Add(start, length) => {
                    let new = held[range(start, length)].iter().filter(|&&held| !held).count() as u64;
                    prop_assert_eq!(space.add_segment(start, length), new);
                    held[range(start, length)].fill(true);
                }
                Step::Remove(start, length) => {
                    let there = held[range(start, length)].iter().filter(|&&held| held).count() as u64;
                    prop_assert_eq!(space.remove_segment(start, length), there);
                    held[range(start, length)].fill(false);
                    used[range(start, length)].fill(false);
                    // A block that lost bytes is freed and forgotten, because later blocks may take the same addresses.
                    for &(s, len) in &blocks {
                        if s < start + length && start < s + len {
                            for place in range(s, len) {
                                if held[place] && used[place] {
                                    prop_assert_eq!(space.release(place as u64, 1), Ok(()));
                                    used[place] = false;
                                }
                            }
                        }
                    }
                    blocks.retain(|&(s, len)| s >= start + length || start >= s + len);
                }
                Step::Block(start, length) => {
                    if let Some(place) = blocks.iter().position(|&(s, _)| s == start) {
                        let (s, len) = blocks.swap_remove(place);
                        prop_assert_eq!(space.release(s, len), Ok(()));
                        used[range(s, len)].fill(false);
                    } else {
                        let fits = range(start, length).all(|place| held[place] && !used[place]);
                        prop_assert_eq!(space.occupy(start, length).is_ok(), fits);
                        if fits {
                            used[range(start, length)].fill(true);
                            blocks.push((start, length));
                        }
                    }
                }
            }
            let free: Vec<bool> = (0..96).map(|place| held[place] && !used[place]).collect();
            let largest = free.split(|&free| !free).map(<[bool]>::len).max().unwrap_or(0);
            prop_assert_eq!(space.free(), free.iter().filter(|&&free| free).count() as u64);
            prop_assert_eq!(space.largest(), largest as u64);
            prop_assert_eq!(space.segments() == 0, held.iter().all(|&held| !held));
        }
    }
}
