//! Reads PyTorch's memory snapshot (`torch.cuda.memory._dump_snapshot`, a pickle of plain values).

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use deser::Deserialize;
use deser::adapters::FromInto;
use deser_pickle::DeserializerConfig;
use journal::format::Frame;

/// The most values that may be read through references. PyTorch writes equal call stacks once and then refers to them,
/// and the reader reads the stack again at every reference. A million events with stacks of a hundred frames take a
/// fifth of this number.
const MOST_REPEATED: usize = 1 << 32;

pub const WANTED: &str = "give what torch.cuda.memory._dump_snapshot wrote";

#[derive(Deserialize)]
pub struct Snapshot {
    pub device_traces: Vec<Vec<Event>>,
    #[deser(default)]
    pub segments: Vec<Segment>,
    #[deser(default)]
    pub allocator_settings: Settings,
    #[deser(default)]
    pub external_annotations: Vec<Annotation>,
}

/// One event of a device. The action decides which other fields are present.
#[derive(Default, Deserialize)]
#[deser(default)]
pub struct Event {
    #[deser(deserialize_as = FromInto<String>)]
    pub action: Action,
    pub addr: Option<u64>,
    pub size: Option<u64>,
    pub stream: Option<u64>,
    pub time_us: Option<u64>,
    #[deser(deserialize_as = FromInto<Vec<FrameText>>)]
    pub frames: StackNumber,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    OutOfMemory,
    #[default]
    Other,
}

#[derive(Default, Deserialize)]
#[deser(default)]
pub struct Segment {
    pub device: Option<i16>,
    pub address: Option<u64>,
    pub total_size: Option<u64>,
    pub stream: Option<u64>,
    pub blocks: Vec<Block>,
}

#[derive(Default, Deserialize)]
#[deser(default)]
pub struct Block {
    pub address: Option<u64>,
    pub state: String,
    pub size: Option<u64>,
    /// The requested bytes; `size` is rounded.
    pub requested_size: Option<u64>,
    #[deser(deserialize_as = FromInto<Vec<FrameText>>)]
    pub frames: StackNumber,
}

#[derive(Default, Deserialize)]
#[deser(default)]
pub struct Settings {
    pub expandable_segments: bool,
}

/// What the job named with `record_function` or the like.
#[derive(Default, Deserialize)]
#[deser(default)]
pub struct Annotation {
    pub name: String,
    /// `START` or `END`.
    pub stage: String,
    pub time_us: Option<u64>,
}

impl From<String> for Action {
    fn from(text: String) -> Action {
        match text.as_str() {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" | "segment_map" => Action::SegmentAlloc,
            "segment_free" | "segment_unmap" => Action::SegmentFree,
            "oom" => Action::OutOfMemory,
            _ => Action::Other,
        }
    }
}

#[derive(Default, Deserialize)]
#[deser(default)]
struct FrameText {
    filename: String,
    line: u64,
    name: String,
}

/// The number of a stack in `Stacks`, from 1; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackNumber(pub u32);

/// The stacks of a snapshot: each once, though millions of events name them.
#[derive(Default)]
pub struct Stacks {
    frames: HashMap<(String, u64, String), u32>,
    pub all_frames: Vec<Frame>,
    stacks: HashMap<Vec<u32>, u32>,
    /// The frames of each stack, as indices of `all_frames`, innermost first.
    pub all_stacks: Vec<Vec<u32>>,
}

impl Stacks {
    fn number(&mut self, texts: Vec<FrameText>) -> u32 {
        if texts.is_empty() {
            return 0;
        }
        let mut numbers = Vec::with_capacity(texts.len());
        for text in texts {
            let next = self.all_frames.len() as u32;
            let key = (text.filename, text.line, text.name);
            let number = match self.frames.get(&key) {
                Some(&known) => known,
                None => {
                    self.all_frames.push(Frame {
                        file: key.0.as_str().into(),
                        line: key.1,
                        function: key.2.as_str().into(),
                    });
                    self.frames.insert(key, next);
                    next
                }
            };
            numbers.push(number);
        }
        if let Some(&known) = self.stacks.get(&numbers) {
            return known;
        }
        self.all_stacks.push(numbers.clone());
        let number = self.all_stacks.len() as u32;
        self.stacks.insert(numbers, number);
        number
    }
}

thread_local! {
    // The reader builds values without a context of ours, so the table of stacks is beside it.
    static STACKS: RefCell<Stacks> = RefCell::default();
}

impl From<Vec<FrameText>> for StackNumber {
    fn from(texts: Vec<FrameText>) -> StackNumber {
        StackNumber(STACKS.with_borrow_mut(|stacks| stacks.number(texts)))
    }
}

/// Reads a snapshot, and the stacks that it names.
pub fn read(path: &Path) -> Result<(Snapshot, Stacks), String> {
    let bytes = std::fs::read(path).map_err(|problem| format!("cannot be read: {problem}"))?;
    let reader = DeserializerConfig::builder().max_shared_events(MOST_REPEATED).build();
    STACKS.take();
    let page: Snapshot = reader
        .from_slice(&bytes)
        .map_err(|problem| format!("is no memory snapshot of PyTorch: {problem}; {WANTED}"))?;
    Ok((page, STACKS.take()))
}
