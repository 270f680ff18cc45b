//! What a stack is called: by the job's own line, and by as many of its callers as tell it from other stacks of that
//! line.

use journal::format::{Frame, frames_of_the_job};

/// Stacks that differ further out have the same name.
const MOST_LINES: usize = 8;

/// Caches of libraries, by a part of the file or of the function of a frame that asked for their memory.
const CACHES: [(&str, &str); 12] = [
    ("libonnxruntime", "ONNX Runtime's arena"),
    ("onnxruntime::", "ONNX Runtime's arena"),
    ("/cupy/cuda/memory", "CuPy's memory pool"),
    ("SingleDeviceMemoryPool", "CuPy's memory pool"),
    ("pool_memory_resource", "RMM's pool"),
    ("arena_memory_resource", "RMM's arena"),
    ("xla_cuda_plugin.so", "XLA's allocator"),
    ("libtensorflow", "TensorFlow's arena"),
    ("BFCAllocator", "a BFC arena"),
    ("ggml_cuda_pool", "llama.cpp's pool"),
    ("libpaddle.so", "Paddle's allocator"),
    ("paddle::memory::", "Paddle's allocator"),
];

/// The library's cache that asked for memory with this stack.
pub fn cache_of(frames: &[Frame]) -> Option<&'static str> {
    let asked = |part| {
        frames
            .iter()
            .any(|frame| frame.file.contains(part) || frame.function.contains(part))
    };
    CACHES.iter().find(|(part, _)| asked(*part)).map(|(_, cache)| *cache)
}

/// The job's own line of a stack and its callers, `lines` together; and the cache that the memory is in.
pub fn place(frames: &[Frame], lines: usize) -> String {
    let place = lines_of(frames, lines);
    match cache_of(frames) {
        Some(cache) => format!("{place} (cached by {cache}, what is used inside is not known)"),
        None => place,
    }
}

fn lines_of(frames: &[Frame], lines: usize) -> String {
    let texts: Vec<String> = frames_of_the_job(frames)
        .take(lines.clamp(1, MOST_LINES))
        .enumerate()
        .map(|(number, frame)| line(frame, number == 0))
        .collect();
    if texts.is_empty() {
        "(no code of the job)".to_owned()
    } else {
        texts.join(" < ")
    }
}

/// The places in a stack of the frames that `place` names.
pub fn named_frames(frames: &[Frame], lines: usize) -> Vec<usize> {
    let named = frames_of_the_job(frames).take(lines.clamp(1, MOST_LINES));
    let place = |named: &Frame| frames.iter().position(|frame| std::ptr::eq(frame, named));
    named.filter_map(place).collect()
}

/// Callers are named without the folder of their file.
fn line(frame: &Frame, in_full: bool) -> String {
    let file = if in_full {
        &frame.file
    } else {
        frame.file.rsplit('/').next().unwrap_or_default()
    };
    match frame.line {
        0 => frame.function.to_string(),
        number => format!("{file}:{number} {}", frame.function),
    }
}

/// For each stack, how many lines tell it from all others. Stacks whose own lines are the same have the same name.
pub fn lines_apart<'a>(stacks: impl IntoIterator<Item = &'a [Frame]>) -> Vec<usize> {
    let chains: Vec<Vec<&Frame>> = stacks
        .into_iter()
        .map(|frames| frames_of_the_job(frames).take(MOST_LINES).collect())
        .collect();
    let mut sorted: Vec<usize> = (0..chains.len()).collect();
    sorted.sort_unstable_by(|&one, &other| chains[one].cmp(&chains[other]));
    sorted.dedup_by(|one, other| chains[*one] == chains[*other]);
    let shared = |one: usize, other: usize| {
        let pairs = chains[one].iter().zip(&chains[other]);
        pairs.take_while(|(one, other)| one == other).count()
    };
    // What has most in common with a chain is its neighbour.
    let lines = |place: usize| {
        let before = place
            .checked_sub(1)
            .map_or(0, |before| shared(sorted[before], sorted[place]));
        let after = sorted.get(place + 1).map_or(0, |&after| shared(sorted[place], after));
        (before.max(after) + 1).min(chains[sorted[place]].len().max(1))
    };
    let apart: Vec<usize> = (0..sorted.len()).map(lines).collect();
    let find = |chain: &Vec<&Frame>| {
        let place = sorted.binary_search_by(|&other| chains[other].cmp(chain));
        place.map_or(1, |place| apart[place])
    };
    chains.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(frames: &[(&str, u64, &str)]) -> Vec<Frame> {
        let frame = |&(file, line, function): &(&str, u64, &str)| Frame::new(file, line, function);
        frames.iter().map(frame).collect()
    }

    #[test]
    fn what_a_librarys_cache_obtained_says_so() {
        let frames = stack(&[
            ("/p/librmm_user.so", 0, "rmm::mr::pool_memory_resource<X>::expand_pool"),
            ("/x/job.py", 3, "load"),
        ]);
        let name = "/x/job.py:3 load (cached by RMM's pool, what is used inside is not known)";
        assert_eq!(place(&frames, 1), name);
        assert_eq!(place(&frames[1..], 1), "/x/job.py:3 load");
    }
}
