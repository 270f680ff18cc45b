//! The memory that each strategy would have reserved for recorded requests. Runs `vramshim replay` on every trace and
//! prints one row for each trace.

use std::path::{Path, PathBuf};
use std::process::Command;

use comfy_table::Table;
use serde_json::{Value, json};

use crate::text::{self, Progress};

const ENDS: [&str; 4] = [".csv", ".csv.gz", ".vraj", ".pickle"];
const STRATEGIES: [&str; 5] = [
    "naive_best_fit",
    "auto_growth",
    "passthrough",
    "torch",
    "torch_expandable",
];

struct Row {
    name: String,
    /// The output of `vramshim replay --json`, or the reason why it failed.
    replay: Result<Value, String>,
}

pub struct Fragmentation {
    rows: Vec<Row>,
}

/// The traces of a folder, sorted by name.
pub fn traces(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            path.is_file() && ENDS.iter().any(|end| name.ends_with(end))
        })
        .collect();
    files.sort();
    match files.is_empty() {
        true => Err(format!(
            "{}: no trace in it; traces end with {}",
            folder.display(),
            ENDS.join(", ")
        )),
        false => Ok(files),
    }
}

pub fn measure(files: &[PathBuf], program: &Path, progress: &Progress) -> Fragmentation {
    let rows = files
        .iter()
        .enumerate()
        .map(|(index, file)| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            progress.show(&format!("trace {} of {}: {name}", index + 1, files.len()));
            Row {
                name,
                replay: replay(file, program),
            }
        })
        .collect();
    Fragmentation { rows }
}

fn replay(file: &Path, program: &Path) -> Result<Value, String> {
    let output = Command::new(program)
        .arg("replay")
        .arg(file)
        .arg("--json")
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        return Err(last.unwrap_or("vramshim replay failed").to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}

/// The result of a strategy, if it served every request.
fn served<'a>(replay: &'a Value, strategy: &str) -> Option<&'a Value> {
    replay["strategies"]
        .as_array()?
        .iter()
        .find(|outcome| outcome["name"] == strategy && outcome["fits"] == true)
}

fn number(replay: &Value, strategy: &str, field: &str) -> Option<f64> {
    served(replay, strategy)?[field].as_f64()
}

/// Peak of the reserved bytes minus peak of the live bytes.
fn waste(replay: &Value, strategy: &str) -> Option<f64> {
    Some(number(replay, strategy, "peak_reserved")? - replay["peak_live"].as_f64()?)
}

fn waste_against_torch(replay: &Value) -> Option<f64> {
    let ours = waste(replay, "auto_growth")?;
    match waste(replay, "torch")? {
        torch if torch > 0.0 => Some(ours / torch),
        _ => None,
    }
}

/// `auto_growth` compared with PyTorch's allocator, over the traces of which both serve every request.
struct Summary {
    traces: usize,
    mean_utilisation: f64,
    /// Traces in which `auto_growth` wastes at most 1 % of its reserved bytes, or at most a tenth of torch's share.
    hardly_any_waste: usize,
    /// Traces for which `auto_growth` reserves more than torch.
    worse_than_torch: usize,
}

impl Fragmentation {
    fn summary(&self) -> Option<Summary> {
        let both: Vec<(f64, f64)> = self
            .rows
            .iter()
            .filter_map(|row| row.replay.as_ref().ok())
            .filter_map(|replay| {
                let utilisation = |strategy| number(replay, strategy, "utilisation");
                utilisation("auto_growth").zip(utilisation("torch"))
            })
            .collect();
        let hardly_any = |&&(ours, torch): &&(f64, f64)| ours >= 0.99 || 1.0 - ours <= (1.0 - torch) / 10.0;
        (!both.is_empty()).then(|| Summary {
            traces: both.len(),
            mean_utilisation: both.iter().map(|&(ours, _)| ours).sum::<f64>() / both.len() as f64,
            hardly_any_waste: both.iter().filter(hardly_any).count(),
            worse_than_torch: both.iter().filter(|&&(ours, torch)| ours < torch).count(),
        })
    }

    pub fn print(&self) {
        println!("Fragmentation: utilisation = peak live / peak reserved, on a device of 80 GiB");
        println!("waste = peak reserved - peak live; - if the strategy does not serve every request");
        println!("driver ms = the price of all driver calls, from the table of vramshim replay\n");
        let mut table = Table::new();
        let heads = ["trace", "peak live"].into_iter().chain(STRATEGIES).chain([
            "driver ms of auto_growth",
            "of torch",
            "waste, auto_growth/torch",
        ]);
        text::prepare(&mut table, heads.map(str::to_owned));
        for row in &self.rows {
            let Ok(replay) = &row.replay else { continue };
            let mut cells = vec![
                row.name.clone(),
                replay["peak_live"].as_u64().map_or("-".to_owned(), text::size),
            ];
            for strategy in STRATEGIES {
                let utilisation = number(replay, strategy, "utilisation");
                cells.push(utilisation.map_or("-".to_owned(), |value| format!("{value:.3}")));
            }
            for strategy in ["auto_growth", "torch"] {
                let ns = number(replay, strategy, "driver_ns");
                cells.push(ns.map_or("-".to_owned(), |ns| format!("{:.1}", ns / 1e6)));
            }
            let ratio = waste_against_torch(replay);
            cells.push(ratio.map_or("-".to_owned(), |value| format!("{}x", text::significant(value))));
            table.add_row(cells);
        }
        text::align(&mut table, 1);
        println!("{table}");
        if let Some(summary) = self.summary() {
            println!(
                "auto_growth, {} traces: utilisation {:.3} on average; of {} it wastes at most 1%, or a tenth of what torch \
                 does;\nof {} more than torch",
                summary.traces, summary.mean_utilisation, summary.hardly_any_waste, summary.worse_than_torch
            );
        }
        for row in &self.rows {
            if let Err(why) = &row.replay {
                println!("  {}: {why}", row.name);
            }
        }
    }

    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| match &row.replay {
                Ok(replay) => {
                    let utilisation: serde_json::Map<String, Value> = STRATEGIES
                        .iter()
                        .map(|&strategy| (strategy.to_owned(), json!(number(replay, strategy, "utilisation"))))
                        .collect();
                    json!({
                        "trace": row.name,
                        "requests": replay["requests"],
                        "peak_live": replay["peak_live"],
                        "utilisation": utilisation,
                        "auto_growth_driver_calls": number(replay, "auto_growth", "driver_calls"),
                        "auto_growth_driver_ns": number(replay, "auto_growth", "driver_ns"),
                        "torch_driver_ns": number(replay, "torch", "driver_ns"),
                        "auto_growth_waste": waste(replay, "auto_growth"),
                        "torch_waste": waste(replay, "torch"),
                        "waste_versus_torch": waste_against_torch(replay),
                    })
                }
                Err(why) => json!({ "trace": row.name, "why": why }),
            })
            .collect();
        let summary = self.summary().map(|summary| {
            json!({
                "traces": summary.traces,
                "mean_utilisation": summary.mean_utilisation,
                "hardly_any_waste": summary.hardly_any_waste,
                "worse_than_torch": summary.worse_than_torch,
            })
        });
        json!({ "traces": rows, "auto_growth": summary })
    }

    pub fn complete(&self) -> bool {
        self.rows.iter().all(|row| row.replay.is_ok())
    }
}
