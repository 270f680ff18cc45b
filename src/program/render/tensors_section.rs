//! PyTorch's tensors as text.

use std::io::{self, Write};

use journal::format::Frame;

use super::format::{amount, count, duration, printable, size, strong};
use super::table::table;
use crate::analysis::frameless::NO_PYTHON;
use crate::analysis::tensors::{Holder, Tensors};

fn place(frame: Option<&Frame>) -> String {
    match frame {
        Some(frame) => printable(&format!("{}:{} {}", frame.file, frame.line, frame.function), 200),
        None => NO_PYTHON.to_owned(),
    }
}

/// Writes the lines that held tensors at the peak of each device, `top` of them.
pub fn page(out: &mut impl Write, tensors: &Tensors, top: usize, bold: bool) -> io::Result<()> {
    for device in &tensors.devices {
        let peak = &device.peak;
        let title = format!("PyTorch's tensors on device {} at its peak", device.device);
        writeln!(out, "\n{}", strong(&title, bold))?;
        writeln!(
            out,
            "  {} in {} tensors at {}, beside {} cached; other code had {}{}",
            amount(peak.tensor_bytes()),
            count(peak.tensors),
            duration(peak.time_ns),
            amount(peak.cached_bytes()),
            amount(peak.other_bytes()),
            match peak.others_or_torch {
                0 => String::new(),
                later => format!(
                    ", and {} came after PyTorch's last line here: whose they are is not known",
                    size(later)
                ),
            }
        )?;
        let row = |holder: &Holder| vec![size(holder.bytes), count(holder.tensors), place(holder.place.as_ref())];
        let rows: Vec<_> = peak.holders.iter().take(top).map(row).collect();
        table(out, &["bytes", "tensors", "allocated at"], &[0, 1], rows)?;
        if peak.holders.len() > top {
            writeln!(out, "  {} more lines", count((peak.holders.len() - top) as u64))?;
        }
    }
    let damaged = match tensors.damaged {
        0 => String::new(),
        lines => format!(", {} damaged lines", count(lines)),
    };
    if tensors.from == "state" {
        return writeln!(
            out,
            "  from snapshots of PyTorch {} (--torch state) until {}: {} tensors seen{damaged}. Those that came and went between\n\
             \x20 two snapshots are not known, nor when a tensor was made: --torch record tells both",
            printable(&tensors.torch, 40),
            duration(tensors.until_ns),
            count(tensors.recorded),
        );
    }
    writeln!(
        out,
        "  recorded from PyTorch {} until {}: {} allocations, {} lost{damaged}",
        printable(&tensors.torch, 40),
        duration(tensors.until_ns),
        count(tensors.recorded),
        count(tensors.lost),
    )
}

/// Says of a job under `--torch record` that it has no tensors.
pub fn none(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "\nNo tensor of PyTorch was recorded. The job has not imported PyTorch or made no tensor on a GPU, its PyTorch\n\
         is too old, or the job itself took the memory history; its stderr says which. Or it was killed in its first\n\
         second."
    )
}
