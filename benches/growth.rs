//! What driver calls cost a job that only grows: its requests are served by `cuMemAlloc` of the driver, or by
//! `auto_growth`. The simulated GPU counts the calls and adds up their prices (`src/prices/prices.toml`), so other work
//! on the machine does not change the figures.

use comfy_table::Table;
use serde_json::{Value, json};

use crate::contender::{CONTENDERS, Contender, Device, Places};
use crate::text::{self, Progress};

const MIB: u64 = 1 << 20;
/// The sizes of the requests of a job; each job has requests of one size.
const SIZES: [u64; 7] = [2 * MIB, 20 * MIB, 48 * MIB, 64 * MIB, 120 * MIB, 512 * MIB, 1024 * MIB];
/// How much each job grows by.
const BYTES: u64 = 40 << 30;
const MEMORY: &str = "80GiB";
/// The contender that the others are compared with.
const BARE: &str = "bare";
const NAMES: [&str; 3] = [BARE, "auto_growth", "auto_growth_tensors"];

/// What one process of `enlarge.c` told.
struct Sample {
    paid_ns: f64,
    calls: u64,
    waits: u64,
}

pub struct Growth {
    /// For each size and each of `NAMES`.
    samples: Vec<Vec<Result<Sample, String>>>,
}

pub fn measure(places: &Places, progress: &Progress) -> Growth {
    let of = |name: &str| CONTENDERS.into_iter().find(|contender| contender.name == name);
    let samples = SIZES.iter().map(|&size| {
        let each = NAMES.iter().map(|name| {
            progress.show(&format!("growth by {}: {name}", text::size(size)));
            let contender = of(name).ok_or_else(|| format!("no contender {name}"))?;
            enlarge(&contender, places, size)
        });
        each.collect()
    });
    Growth {
        samples: samples.collect(),
    }
}

fn enlarge(contender: &Contender, places: &Places, size: u64) -> Result<Sample, String> {
    let journals = tempfile::tempdir_in(&places.scratch).map_err(|error| error.to_string())?;
    let bytes = BYTES.next_multiple_of(size);
    let output = contender
        .command(
            places,
            Device::Simulated,
            "enlarge",
            MEMORY,
            &[size, bytes],
            journals.path(),
        )
        .env("SIMGPU_LATENCY", "prices")
        .env("SIMGPU_COUNTS", "1")
        .output()
        .map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [paid_ns, calls, waits] if output.status.success() => Ok(Sample {
            paid_ns: paid_ns as f64,
            calls,
            waits,
        }),
        _ => Err(format!(
            "{} {}",
            said.trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

impl Growth {
    fn ratio(&self, size: usize, name: usize) -> Option<f64> {
        let row = &self.samples[size];
        let (ours, bare) = (row[name].as_ref().ok()?, row[0].as_ref().ok()?);
        Some(ours.paid_ns / bare.paid_ns)
    }

    pub fn print(&self) {
        println!("Growth: a job allocates {} and frees nothing", text::size(BYTES));
        println!("ms = the sum of the prices of its driver calls; calls = those that change memory\n");
        let mut table = Table::new();
        let heads = [
            "size of a request",
            "contender",
            "ms",
            "calls",
            "waits",
            "relative to bare",
        ];
        text::prepare(&mut table, heads.map(str::to_owned).into_iter());
        for (index, row) in self.samples.iter().enumerate() {
            for (number, sample) in row.iter().enumerate() {
                let Ok(sample) = sample else { continue };
                let ratio = self.ratio(index, number);
                table.add_row([
                    text::size(SIZES[index]),
                    NAMES[number].to_owned(),
                    format!("{:.1}", sample.paid_ns / 1e6),
                    text::count(sample.calls),
                    text::count(sample.waits),
                    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}x")),
                ]);
            }
        }
        text::align(&mut table, 2);
        println!("{table}");
        for (row, size) in self.samples.iter().zip(SIZES) {
            for (sample, name) in row.iter().zip(NAMES) {
                if let Err(why) = sample {
                    println!("  no number for {name}, {}: {why}", text::size(size));
                }
            }
        }
    }

    pub fn json(&self) -> Value {
        let mut rows = Vec::new();
        for (index, row) in self.samples.iter().enumerate() {
            for (number, sample) in row.iter().enumerate() {
                let mut page = json!({ "request": SIZES[index], "bytes": BYTES, "contender": NAMES[number] });
                match sample {
                    Ok(sample) => {
                        page["paid_ns"] = json!(sample.paid_ns);
                        page["calls"] = json!(sample.calls);
                        page["waits"] = json!(sample.waits);
                        page["versus_bare"] = json!(self.ratio(index, number));
                    }
                    Err(why) => page["why"] = json!(why),
                }
                rows.push(page);
            }
        }
        Value::Array(rows)
    }

    pub fn complete(&self) -> bool {
        self.samples.iter().flatten().all(Result::is_ok)
    }
}
