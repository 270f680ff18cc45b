//! Reads PyTorch's memory snapshot (`torch.cuda.memory._dump_snapshot`, a pickle of plain values).

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use journal::format::Frame;

use super::pickle_reader::{Pickle, Value};
use super::plain_file::{self, Wrong};
use crate::analysis::each_once::EachOnce;

/// PyTorch has 16.
const MOST_DIVISIONS: usize = 64;
/// Devices have numbers below this one: PyTorch's `DeviceIndex` is an `int8_t` (c10/core/Device.h).
const MOST_DEVICES: usize = 128;
/// A small file may have this many events, segments and blocks.
const FREE_PARTS: usize = 1 << 16;
/// Beyond that, so many bytes of the file for each of them. PyTorch writes 30 or more.
const BYTES_OF_PART: usize = 8;
/// A small file may have so many bytes of names in its frames; beyond that, a multiple of its size. A name is written once
/// into a snapshot, but once for each frame into the file of stacks.
const FREE_NAME_BYTES: usize = 64 << 20;
const NAME_BYTES_OF_BYTE: usize = 4;

pub const WANTED: &str = "give what torch.cuda.memory._dump_snapshot wrote";

#[derive(Default)]
pub struct Snapshot {
    pub device_traces: Vec<Vec<Event>>,
    pub segments: Vec<Segment>,
    pub allocator_settings: Settings,
    pub external_annotations: Vec<Annotation>,
}

/// One event of a device. The action decides which other fields are present.
#[derive(Default)]
pub struct Event {
    pub action: Action,
    pub addr: Option<u64>,
    pub size: Option<u64>,
    pub stream: Option<u64>,
    pub time_us: Option<u64>,
    /// Of a failure: what the device had free.
    pub device_free: Option<u64>,
    /// PyTorch's pool (`MempoolId_t`); PyTorch before 2.12 tells it of segments alone.
    pub pool_id: Option<(u64, u64)>,
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

#[derive(Default)]
pub struct Segment {
    pub device: Option<i16>,
    pub address: Option<u64>,
    pub total_size: Option<u64>,
    pub stream: Option<u64>,
    pub segment_pool_id: Option<(u64, u64)>,
    pub blocks: Vec<Block>,
}

#[derive(Default)]
pub struct Block {
    pub address: Option<u64>,
    pub state: Rc<str>,
    pub size: Option<u64>,
    /// The requested bytes; `size` is rounded.
    pub requested_size: Option<u64>,
    pub frames: StackNumber,
}

#[derive(Default)]
pub struct Settings {
    /// The value of the job's variable `PYTORCH_CUDA_ALLOC_CONF`; empty if it is not told.
    pub conf: Rc<str>,
    /// In bytes; `None` for no limit.
    pub max_split_size: Option<u64>,
    /// By size, from 1 MiB on to twice the size each.
    pub roundup_power2_divisions: Vec<u64>,
}

/// What the job named with `record_function` or the like.
#[derive(Default)]
pub struct Annotation {
    pub name: Rc<str>,
    /// `START` or `END`.
    pub stage: Rc<str>,
    pub time_us: Option<u64>,
}

impl From<&str> for Action {
    fn from(text: &str) -> Action {
        match text {
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

/// The number of a stack in `Stacks`, from 1; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackNumber(pub u32);

/// The stacks of a snapshot: each once, though millions of events name them.
#[derive(Default)]
pub struct Stacks {
    pub all_frames: Vec<Frame>,
    /// The frames of each stack, as indices of `all_frames`, innermost first.
    pub stacks: EachOnce<Vec<u32>>,
}

/// Makes a snapshot of a pickle's values. Errors say which field of what is wrong.
struct Maker<'p> {
    pickle: &'p Pickle,
    /// How many more events, segments, blocks and annotations there may be. A list that is named again and again has many
    /// in few bytes.
    parts_left: usize,
    name_bytes_left: usize,
    stacks: Stacks,
    /// The stacks of lists, and the frames of dictionaries, that were seen.
    of_lists: HashMap<u32, StackNumber>,
    of_dictionaries: HashMap<u32, u32>,
    /// The frames of their contents: the numbers of the two texts, and the line.
    of_contents: HashMap<(Option<u32>, u64, Option<u32>), u32>,
}

/// Makes a record of a dictionary: a method of the maker reads the entry of each field.
macro_rules! record {
    ($maker:ident, $what:literal, $value:ident, $record:ident { $($field:ident => $read:ident),* }) => {{
        $maker.part()?;
        let mut record = $record::default();
        for (name, value) in $maker.fields($what, $value)? {
            match name {
                $(stringify!($field) => record.$field = $maker.$read(name, value)?,)*
                _ => {}
            }
        }
        Ok(record)
    }};
}

impl<'p> Maker<'p> {
    fn wrong(&self, name: &str, value: Value, wanted: &'static str) -> Wrong {
        format!("{name} is {}, expected {wanted}", self.pickle.told(value))
    }

    /// The named entries of a dictionary.
    fn fields(&self, what: &str, value: Value) -> Result<impl Iterator<Item = (&'p str, Value)> + use<'p>, Wrong> {
        let pickle = self.pickle;
        let Value::Dictionary(number) = value else {
            return Err(self.wrong(what, value, "a dictionary"));
        };
        let entries = pickle.entries(number).iter();
        Ok(entries.filter_map(|&(key, value)| match key {
            Value::Text(number) => Some((&**pickle.text(number), value)),
            _ => None,
        }))
    }

    fn list(&self, name: &str, value: Value) -> Result<&'p [Value], Wrong> {
        match value {
            Value::List(number) => Ok(self.pickle.list(number)),
            Value::Nothing => Ok(&[]),
            other => Err(self.wrong(name, other, "a list")),
        }
    }

    fn number(&self, name: &str, value: Value) -> Result<Option<u64>, Wrong> {
        match value {
            Value::Number(number) => Ok(Some(number)),
            Value::Nothing => Ok(None),
            other => Err(self.wrong(name, other, "a whole number from 0 to 2^64 - 1")),
        }
    }

    /// A pair of numbers; PyTorch writes no other pools.
    fn pool(&self, _name: &str, value: Value) -> Result<Option<(u64, u64)>, Wrong> {
        let Value::List(number) = value else { return Ok(None) };
        Ok(match *self.pickle.list(number) {
            [Value::Number(first), Value::Number(second)] => Some((first, second)),
            _ => None,
        })
    }

    fn text(&self, name: &str, value: Value) -> Result<Rc<str>, Wrong> {
        match value {
            Value::Text(number) => Ok(self.pickle.text(number).clone()),
            Value::Nothing => Ok("".into()),
            other => Err(self.wrong(name, other, "a text")),
        }
    }

    fn part(&mut self) -> Result<(), Wrong> {
        let left = self.parts_left.checked_sub(1);
        self.parts_left = left.ok_or("names the same events, segments or blocks again and again")?;
        Ok(())
    }

    fn snapshot(&mut self, root: Value) -> Result<Snapshot, Wrong> {
        let mut page = Snapshot::default();
        let mut is_one = false;
        for (name, value) in self.fields("the whole", root)? {
            is_one |= matches!(name, "device_traces" | "segments");
            match name {
                "device_traces" => {
                    let devices = self.list(name, value)?.len();
                    if devices > MOST_DEVICES {
                        return Err(format!(
                            "device_traces has {devices} devices, and PyTorch knows {MOST_DEVICES} at most"
                        ));
                    }
                    page.device_traces = self.each(name, value, "device", Maker::trace)?;
                }
                "segments" => page.segments = self.each(name, value, "segment", Maker::segment)?,
                "allocator_settings" => {
                    for (name, value) in self.fields(name, value)? {
                        let settings = &mut page.allocator_settings;
                        match (name, value) {
                            ("PYTORCH_CUDA_ALLOC_CONF", Value::Text(number)) => {
                                settings.conf = self.pickle.text(number).clone();
                            }
                            ("max_split_size", Value::Number(bytes)) => settings.max_split_size = Some(bytes),
                            ("roundup_power2_divisions", Value::Dictionary(number)) => {
                                let divisions = self.pickle.entries(number).iter().take(MOST_DIVISIONS);
                                let divisions = divisions.map(|&(_, value)| match value {
                                    Value::Number(number) => number,
                                    _ => 0,
                                });
                                settings.roundup_power2_divisions = divisions.collect();
                            }
                            _ => {}
                        }
                    }
                }
                "external_annotations" => {
                    page.external_annotations = self.each(name, value, "annotation", Maker::annotation)?;
                }
                _ => {}
            }
        }
        is_one.then_some(page).ok_or("missing field `device_traces`".to_owned())
    }

    /// Makes each entry of a list. An error says which of these `what` it was.
    fn each<T>(
        &mut self,
        name: &str,
        list: Value,
        what: &'static str,
        make: impl Fn(&mut Self, Value) -> Result<T, Wrong>,
    ) -> Result<Vec<T>, Wrong> {
        let entries = self.list(name, list)?.iter().enumerate();
        let within = |index| move |problem| format!("{what} {index}: {problem}");
        entries
            .map(|(index, &one)| make(self, one).map_err(within(index)))
            .collect()
    }

    fn trace(&mut self, value: Value) -> Result<Vec<Event>, Wrong> {
        self.each("a trace", value, "event", Maker::event)
    }

    fn event(&mut self, value: Value) -> Result<Event, Wrong> {
        record!(self, "the event", value, Event {
            action => action, addr => number, size => number, stream => number, time_us => number,
            device_free => number, pool_id => pool, frames => stack
        })
    }

    fn segment(&mut self, value: Value) -> Result<Segment, Wrong> {
        record!(self, "the segment", value, Segment {
            device => device, address => number, total_size => number, stream => number,
            segment_pool_id => pool, blocks => blocks
        })
    }

    fn block(&mut self, value: Value) -> Result<Block, Wrong> {
        record!(self, "the block", value, Block {
            address => number, state => text, size => number, requested_size => number, frames => stack
        })
    }

    fn annotation(&mut self, value: Value) -> Result<Annotation, Wrong> {
        record!(self, "the annotation", value, Annotation { name => text, stage => text, time_us => number })
    }

    fn action(&self, name: &str, value: Value) -> Result<Action, Wrong> {
        Ok(Action::from(&*self.text(name, value)?))
    }

    fn blocks(&mut self, name: &str, value: Value) -> Result<Vec<Block>, Wrong> {
        self.each(name, value, "block", Maker::block)
    }

    fn device(&self, name: &str, value: Value) -> Result<Option<i16>, Wrong> {
        match value {
            Value::Number(number) if number < MOST_DEVICES as u64 => Ok(Some(number as i16)),
            Value::Nothing => Ok(None),
            other => Err(self.wrong(name, other, "a number below 128, as PyTorch's devices have")),
        }
    }

    /// PyTorch writes equal stacks once and then refers to them, so each list is read once.
    fn stack(&mut self, name: &str, value: Value) -> Result<StackNumber, Wrong> {
        let list = match value {
            Value::List(list) => list,
            Value::Nothing => return Ok(StackNumber(0)),
            other => return Err(self.wrong(name, other, "a list")),
        };
        if let Some(&known) = self.of_lists.get(&list) {
            return Ok(known);
        }
        let frames = self.pickle.list(list).iter().map(|&frame| self.frame(frame));
        let frames = frames.collect::<Result<Vec<u32>, Wrong>>()?;
        let number = match frames[..] {
            [] => StackNumber(0),
            _ => StackNumber(self.stacks.stacks.place(frames) as u32 + 1),
        };
        self.of_lists.insert(list, number);
        Ok(number)
    }

    fn frame(&mut self, value: Value) -> Result<u32, Wrong> {
        if let Value::Dictionary(number) = value
            && let Some(&known) = self.of_dictionaries.get(&number)
        {
            return Ok(known);
        }
        let (mut file, mut line, mut function) = (None, 0, None);
        for (name, value) in self.fields("the frame", value)? {
            let text = match value {
                Value::Text(number) => Some(number),
                _ => None,
            };
            match name {
                "filename" => file = text,
                "line" => line = self.number(name, value)?.unwrap_or(0),
                "name" => function = text,
                _ => {}
            }
        }
        let next = self.stacks.all_frames.len() as u32;
        let number = match self.of_contents.get(&(file, line, function)) {
            Some(&known) => known,
            None => {
                let text = |number: Option<u32>| number.map_or("", |number| self.pickle.text(number));
                let (file_text, function_text) = (text(file), text(function));
                let left = self.name_bytes_left.checked_sub(file_text.len() + function_text.len());
                self.name_bytes_left = left.ok_or("the names of its frames are too long")?;
                self.stacks.all_frames.push(Frame::new(file_text, line, function_text));
                self.of_contents.insert((file, line, function), next);
                next
            }
        };
        if let Value::Dictionary(dictionary) = value {
            self.of_dictionaries.insert(dictionary, number);
        }
        Ok(number)
    }
}

/// Reads a snapshot, and the stacks that it names.
pub fn read(path: &Path) -> Result<(Snapshot, Stacks), Wrong> {
    let none = |problem| format!("is no memory snapshot of PyTorch: {problem}; {WANTED}");
    let bytes = plain_file::read(path)?;
    let pickle = Pickle::read(&bytes).map_err(none)?;
    let size = bytes.len();
    drop(bytes);
    let mut maker = Maker {
        pickle: &pickle,
        parts_left: FREE_PARTS + size / BYTES_OF_PART,
        name_bytes_left: size.saturating_mul(NAME_BYTES_OF_BYTE).saturating_add(FREE_NAME_BYTES),
        stacks: Stacks::default(),
        of_lists: HashMap::new(),
        of_dictionaries: HashMap::new(),
        of_contents: HashMap::new(),
    };
    let page = maker.snapshot(pickle.root).map_err(none)?;
    Ok((page, maker.stacks))
}
